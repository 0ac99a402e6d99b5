#include "experiments/files/files_read.hpp"

#include "experiments/files/digest.hpp"
#include "experiments/files/resources.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/basics/text_file.hpp"

#include <algorithm>

namespace ringlab::experiments {
namespace {

FilesRead* current_account = nullptr;

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
    auto text = layouts::read_text_from_disk(path, what);
    if (!known) known = &files_.emplace_back(File{path.string(), digest_of(text), {}});
    return known->text.emplace(std::move(text));
}

std::string FilesRead::digest(const std::filesystem::path& path) {
    const std::lock_guard lock(mutex_);
    if (const auto* known = find(path)) return known->sha256;
    return files_.emplace_back(File{path.string(), digest_of_file(path), {}}).sha256;
}

std::vector<FileDigest> FilesRead::digests() {
    const std::lock_guard lock(mutex_);
    std::vector<FileDigest> all;
    for (const auto& file : files_) all.push_back({resource_name(file.path), file.sha256});
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

void note_read(const std::filesystem::path& path) {
    auto* account = FilesRead::current();
    if (account && std::filesystem::is_regular_file(path)) account->digest(path);
}

std::size_t count_read() {
    auto* account = FilesRead::current();
    return account ? account->count() : 0;
}

}  // namespace ringlab::experiments
