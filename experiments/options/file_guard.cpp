#include "experiments/options/file_guard.hpp"

#include "experiments/record/hdf5.hpp"
#include "experiments/record/tensors_file.hpp"
#include "layouts/basics/require.hpp"
#include "sim/machine/machine.hpp"
#include "sim/report/chakra_trace.hpp"
#include "sim/report/chrome_trace.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
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

/// The first bytes of a file, at most so many.
std::string beginning_of(const fs::path& path, std::size_t bytes) {
    std::string begin(bytes, '\0');
    std::ifstream file(path, std::ios::binary);
    file.read(begin.data(), static_cast<std::streamsize>(bytes));
    begin.resize(static_cast<std::size_t>(file.gcount()));
    return begin;
}

/// Throws Error unless the file is of this kind.
void require_kind(const fs::path& path, FileKind kind) {
    constexpr std::size_t largest_machine = 1 << 20;
    switch (kind) {
        case FileKind::record: {
            const auto file = hdf5::File::open(path);
            require(file.has("ringlab_schema") && file.has("experiment"), "no record");
            return;
        }
        case FileKind::tensors:
            require(hdf5::File::open(path).text("description") == tensors_file_description, "no tensors");
            return;
        case FileKind::machine: sim::parse_machine(beginning_of(path, largest_machine), path.string()); return;
        case FileKind::trace: require(beginning_of(path, 256).starts_with(sim::chrome_trace_begin), "no trace"); return;
        case FileKind::execution_trace:
            require(beginning_of(path, 64).find(sim::chakra_generator) != std::string::npos, "no trace");
            return;
        case FileKind::advice: require(beginning_of(path, 256).starts_with(advice_begin), "no advice"); return;
    }
}

bool is_of_kind(const fs::path& path, FileKind kind) {
    try {
        require_kind(path, kind);
    } catch (const Error&) {
        return false;
    }
    return true;
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
    require_replaceable(path);
    const auto place = place_of(path);
    const bool makes_folder = kind == FileKind::tensors || kind == FileKind::execution_trace;
    require(makes_folder || fs::is_directory(place.parent_path()), "{} '{}': there is no folder '{}'", what,
            path.string(), place.parent_path().string());
    std::error_code missing;
    const bool is_there = fs::exists(place, missing);  // asked once, not for each of thousands of files
    for (const auto& other : read_)
        require(!same_file(place, is_there, other.place),
                "{} '{}' would replace the {} '{}' that this command reads; write elsewhere", what, path.string(),
                other.what, other.path.string());
    for (const auto& other : written_)
        require(!same_file(place, is_there, other.place), "{} '{}' and {} '{}' are one file; give them different names",
                what, path.string(), other.what, other.path.string());
    if (is_there && if_there != IfThere::keep) {
        require(if_there == IfThere::replace, "{} '{}' exists; {}--overwrite replaces it, or write elsewhere", what,
                path.string(), kind == FileKind::record ? "--resume adds to it, " : "");
        require(is_of_kind(place, kind), "{} '{}' exists and is no {}, or damaged: it is not replaced; write elsewhere",
                what, path.string(), name_of(kind));
    }
    written_.push_back({what, path, place});
    to_write_.emplace_back(path);
}

WrittenFile FileGuard::file(const fs::path& path) const {
    const auto same = std::ranges::find(to_write_, path, &WrittenFile::name);
    return same == to_write_.end() ? WrittenFile(path) : *same;
}

fs::path FileGuard::write(const fs::path& path, std::span<const std::byte> bytes) const {
    auto written = file(path);
    written.write(bytes);
    return written.name();
}

}  // namespace ringlab::experiments
