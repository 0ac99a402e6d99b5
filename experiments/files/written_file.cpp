#include "experiments/files/written_file.hpp"

#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "layouts/basics/require.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

/// A file descriptor that closes itself.
class Descriptor {
public:
    Descriptor(const fs::path& path, int flags) : path_(path), value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
        require_done(value_ >= 0);
    }
    ~Descriptor() {
        if (value_ >= 0) ::close(value_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int value() const { return value_; }

    void write(std::span<const std::byte> bytes) const {
        while (!bytes.empty()) {
            const auto written = ::write(value_, bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) continue;
            require_done(written > 0);
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        }
        require_done(::fsync(value_) == 0);
    }

    void close() { require_done(::close(std::exchange(value_, -1)) == 0); }

private:
    void require_done(bool done) const { require(done, "cannot write {}: {}", path_.string(), error_text()); }

    fs::path path_;
    int value_;
};

/// Writes a folder to disk, because only then does a rename in it survive a power cut. Some network file systems cannot
/// sync folders, but keep renames in order themselves.
void sync_folder(const fs::path& folder) {
    const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
    if (::fsync(descriptor.value()) != 0)
        require(errno == EINVAL || errno == ENOTSUP, "cannot write {}: {}", folder.string(), error_text());
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// Nobody may write it, or not this user; root may always.
bool is_protected(const fs::path& path) {
    struct stat status {};
    constexpr mode_t writable = S_IWUSR | S_IWGRP | S_IWOTH;
    return ::stat(path.c_str(), &status) == 0 &&
           ((status.st_mode & writable) == 0 || ::access(path.c_str(), W_OK) != 0);
}

const char* name_of_kind(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISLNK(mode)  ? "a link that leads nowhere"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/// Moves `made` to `path` if there is what is `expected`. A file that comes in the microseconds between the check and
/// the rename is replaced only where the file system cannot rename without replacing, such as NFS.
bool moved(const fs::path& made, const fs::path& path, const FileState& expected) {
    const auto there = state_of(path);
    if (there.is_there() && (there != expected || is_protected(path))) return false;
    const unsigned flags = there.is_there() ? 0 : RENAME_NOREPLACE;
    if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), flags) == 0) return true;
    if (errno == EEXIST) return false;
    const bool cannot_refuse = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
    require(cannot_refuse && ::rename(made.c_str(), path.c_str()) == 0, "cannot write {}: {}", path.string(),
            error_text());
    return true;
}

constexpr const char* temporary_ending = ".ringlab-tmp";

fs::path temporary_of(const fs::path& path) {
    return fmt::format("{}.{}{}", path.string(), ::getpid(), temporary_ending);
}

}  // namespace

FileState state_of(const fs::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) return {};
    constexpr std::int64_t giga = 1'000'000'000;
    return {status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec * giga + status.st_mtim.tv_nsec};
}

fs::path free_name(const fs::path& path) {
    auto name = path;
    for (int number = 2; state_of(name).is_there(); ++number)
        name = path.parent_path() / fmt::format("{}-{}{}", path.stem().string(), number, path.extension().string());
    return name;
}

void require_regular_file(const fs::path& path, const std::string& what) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
    fail("{} '{}' is {}; it must be a file", what, path.string(), name_of_kind(status.st_mode));
}

void require_replaceable(const fs::path& path) {
    struct stat status {};
    const bool leads_to_itself = ::stat(path.c_str(), &status) != 0 && errno == ELOOP;
    require(!leads_to_itself, "{} is a link that leads to itself; write to another file", path.string());
    if (::stat(path.c_str(), &status) != 0 && ::lstat(path.c_str(), &status) != 0) return;
    require(S_ISREG(status.st_mode), "{} is {}; write to another file", path.string(), name_of_kind(status.st_mode));
    require(!is_protected(path),
            "{} is write-protected (mode {:o}); allow to write it (chmod u+w), or write to another file", path.string(),
            status.st_mode & 07777);
}

void WrittenFile::take(const fs::path& name) {
    std::error_code ignored;
    name_ = name;
    path_ = fs::canonical(name, ignored);
    if (path_.empty()) path_ = name;
    state_ = state_of(path_);
}

void WrittenFile::write(std::span<const std::byte> bytes) {
    while (!replaced_by(bytes)) {
        const auto before = name_;
        take(free_name(before));
        fmt::print(stderr,
                   "[note] '{}' is not the file that was there before: it stays as it is, and this goes to '{}'\n",
                   before.string(), name_.string());
    }
}

/// False, and nothing is changed, if there is something else than was found or written last.
bool WrittenFile::replaced_by(std::span<const std::byte> bytes) {
    const Uninterrupted until_it_is_done;
    const auto temporary = temporary_of(path_);
    bool done = false;
    try {
        Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
        file.write(bytes);
        file.close();
        const auto own = state_of(temporary);
        done = moved(temporary, path_, state_);
        if (done) state_ = own;
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
    if (done)
        sync_folder(folder_of(path_));
    else
        ::unlink(temporary.c_str());
    return done;
}

void WrittenFile::remove_temporaries() const {
    const auto begin = path_.filename().string() + ".";
    for (const auto& file : fs::directory_iterator(folder_of(path_))) {
        const auto name = file.path().filename().string();
        if (name.starts_with(begin) && name.ends_with(temporary_ending)) fs::remove(file.path());
    }
}

}  // namespace ringlab::experiments
