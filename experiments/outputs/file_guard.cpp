#include "experiments/outputs/file_guard.hpp"

#include "experiments/files/record_files.hpp"
#include "experiments/outputs/tensors_file.hpp"
#include "experiments/record/hdf5/hdf5.hpp"
#include "layouts/basics/require.hpp"
#include "sim/machine/machine.hpp"
#include "sim/report/chakra_trace.hpp"
#include "sim/report/chrome_trace.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <system_error>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

/// Whether both paths lead to the same file. Existing files are compared by device and inode, so hard and symbolic
/// links do not matter. Files that do not exist yet are compared by their place.
bool same_file(const fs::path& a, bool a_is_there, const fs::path& b) {
    std::error_code missing;
    return a.native() == b.native() || (a_is_there && fs::equivalent(a, b, missing));
}

fs::path place_of(const fs::path& path) {
    std::error_code ignored;
    const auto place = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
    return place.empty() ? path : place;
}

/// Whether `holds` is true for the HDF5 file. False if the file cannot be read.
bool hdf5_file_holds(const fs::path& path, const std::function<bool(const hdf5::File&)>& holds) {
    try {
        return holds(hdf5::File::open(path));
    } catch (const Error&) {
        return false;
    }
}

bool is_machine_file(const fs::path& path) {
    try {
        const auto bytes = read_file(path).bytes;
        sim::parse_machine({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
    } catch (const Error&) {
        return false;
    }
    return true;
}

bool begins_with(const fs::path& path, std::string_view expected) {
    std::string begin(expected.size(), '\0');
    std::ifstream(path, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
    return begin == expected;
}

bool is_execution_trace(const fs::path& path) {
    std::string begin(64, '\0');
    std::ifstream(path, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
    return begin.find(sim::chakra_generator) != std::string::npos;
}

bool is_of_kind(const fs::path& path, FileKind kind) {
    switch (kind) {
        case FileKind::record:
            return hdf5_file_holds(
                path, [](const hdf5::File& file) { return file.has("ringlab_schema") && file.has("experiment"); });
        case FileKind::tensors:
            return hdf5_file_holds(path, [](const hdf5::File& file) {
                return file.has("description") && file.text("description") == tensors_file_description;
            });
        case FileKind::machine: return is_machine_file(path);
        case FileKind::trace: return begins_with(path, sim::chrome_trace_begin);
        case FileKind::execution_trace: return is_execution_trace(path);
        case FileKind::advice: return begins_with(path, advice_begin);
    }
    return false;
}

const char* name_of(FileKind kind) {
    switch (kind) {
        case FileKind::record: return "record of Ringlab";
        case FileKind::tensors: return "file of saved tensors";
        case FileKind::machine: return "machine file";
        case FileKind::trace: return "trace of Ringlab";
        case FileKind::execution_trace: return "execution trace of Ringlab";
        case FileKind::advice: return "advice of Ringlab";
    }
    return "";
}

}  // namespace

void FileGuard::reads(const std::string& what, const fs::path& path) {
    require_regular_file(path, what);
    read_.push_back({what, path, place_of(path)});
}

void FileGuard::writes(const std::string& what, const fs::path& path, FileKind kind, IfThere if_there) {
    require(!path.empty(), "{} is empty; give it a file name", what);
    for (const auto& link : {path.parent_path(), path})
        require(!leads_to_itself(link), "{} '{}': '{}' is a link that leads to itself; write to another file", what,
                path.string(), link.string());
    const auto place = place_of(path);
    const bool makes_folder = kind == FileKind::tensors || kind == FileKind::execution_trace;
    require(makes_folder || fs::is_directory(place.parent_path()), "{} '{}': there is no folder '{}'", what,
            path.string(), place.parent_path().string());
    const std::vector<fs::path> all{place, temporary_of(place), unfinished_of(place)};
    for (const auto& made : all) {
        std::error_code missing;
        const bool is_there = fs::exists(made, missing);  // asked once, not for each of thousands of files
        for (const auto& other : read_)
            require(!same_file(made, is_there, other.place),
                    "{} '{}' would replace the {} '{}' that this command reads; write elsewhere", what, path.string(),
                    other.what, other.path.string());
        for (const auto& other : written_)
            require(!same_file(made, is_there, other.place),
                    "{} '{}' and {} '{}' are one file; give them different names", what, path.string(), other.what,
                    other.path.string());
        require_replaceable(made);
    }
    if (fs::exists(place) && if_there != IfThere::keep) {
        require(if_there == IfThere::replace, "{} '{}' exists; {}--overwrite replaces it, or write elsewhere", what,
                path.string(), kind == FileKind::record ? "--resume adds to it, " : "");
        require(is_of_kind(place, kind), "{} '{}' exists and is no {}, or damaged: it is not replaced; write elsewhere",
                what, path.string(), name_of(kind));
    }
    for (const auto& made : all) written_.push_back({what, path, made, state_of(made)});
}

std::optional<FileState> FileGuard::found(const fs::path& path) const {
    const auto same = std::ranges::find(written_, path, &File::path);  // the first is the file itself
    return same == written_.end() ? std::nullopt : std::optional(same->state);
}

fs::path FileGuard::write(const fs::path& path, std::span<const std::byte> bytes) const {
    const auto place = followed(path);
    write_file(temporary_of(place), bytes);
    return move_into_place_or_beside(temporary_of(place), path, found(path).value_or(state_of(place)));
}

}  // namespace ringlab::experiments
