#include "experiments/files/files_read.hpp"

#include "experiments/files/digest.hpp"
#include "experiments/files/resources.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/basics/text_file.hpp"

#include <algorithm>

namespace ringlab::experiments {
namespace {

FilesRead* current_account = nullptr;

/// State of the file at `path`, or of the file to which a link leads.
FileState state_behind(const std::filesystem::path& path) {
    std::error_code missing;
    const auto place = std::filesystem::canonical(path, missing);
    return missing ? FileState{} : state_of(place);
}

}  // namespace

FilesRead::FilesRead() {
    require(current_account == nullptr, "the files that this command reads are already recorded");
    current_account = this;
    layouts::set_text_reader([this](const auto& path, std::string_view what) { return text_of(path, what); });
}

FilesRead::~FilesRead() {
    layouts::set_text_reader({});
    current_account = nullptr;
}

FilesRead* FilesRead::current() { return current_account; }

std::string FilesRead::text_of(const std::filesystem::path& path, std::string_view what) {
    const std::lock_guard lock(mutex_);
    auto* known = find(path);
    if (known && known->text) return *known->text;
    File file{path.string(), layouts::read_text_from_disk(path, what), {}, {}};
    return *(known ? *known = std::move(file) : files_.emplace_back(std::move(file))).text;
}

void FilesRead::note(const std::filesystem::path& path) {
    const std::lock_guard lock(mutex_);
    const auto state = state_behind(path);
    if (const auto* known = find(path))
        require(known->text || known->state == state,
                "'{}' was changed by others after this command had begun to read it; start again", path.string());
    else if (state.is_there())  // else whoever reads it says so
        files_.push_back({path.string(), {}, state, {}});
}

std::string FilesRead::digest(const std::filesystem::path& path) {
    note(path);
    const std::lock_guard lock(mutex_);
    return sha256_of(*find(path));
}

std::vector<FileDigest> FilesRead::digests() {
    const std::lock_guard lock(mutex_);
    std::vector<FileDigest> all;
    for (auto& file : files_) all.push_back({resource_name(file.path), sha256_of(file)});
    return all;
}

std::size_t FilesRead::count() {
    const std::lock_guard lock(mutex_);
    return files_.size();
}

FilesRead::File* FilesRead::find(const std::filesystem::path& path) {
    const auto found = std::ranges::find(files_, path.string(), &File::path);
    return found == files_.end() ? nullptr : &*found;
}

const std::string& FilesRead::sha256_of(File& file) {
    if (!file.sha256.empty()) return file.sha256;
    file.sha256 = file.text ? digest_of(*file.text) : digest_of_file(file.path);
    require(file.text || file.state == state_behind(file.path),
            "'{}' was changed by others after this command had begun to read it; start again", file.path);
    return file.sha256;
}

void note_read(const std::filesystem::path& path) {
    if (auto* account = FilesRead::current()) account->note(path);
}

std::size_t count_read() {
    auto* account = FilesRead::current();
    return account ? account->count() : 0;
}

}  // namespace ringlab::experiments
