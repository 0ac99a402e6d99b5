#include "experiments/files/record_files.hpp"

#include "experiments/console/message.hpp"
#include "layouts/basics/require.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

/// A file descriptor that closes itself.
class Descriptor {
public:
    Descriptor(const fs::path& path, int flags) : path_(path), value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
        require(value_ >= 0, "cannot open {}: {}", path_.string(), error_text());
    }
    ~Descriptor() {
        if (value_ >= 0) ::close(value_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int value() const { return value_; }

    void write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const auto written = ::write(value_, bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) continue;
            require(written > 0, "cannot write {}: {}", path_.string(), error_text());
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        }
    }

    void sync() const { require(::fsync(value_) == 0, "cannot write {}: {}", path_.string(), error_text()); }

    void close() {
        require(::close(std::exchange(value_, -1)) == 0, "cannot write {}: {}", path_.string(), error_text());
    }

private:
    fs::path path_;
    int value_;
};

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// Writes a folder to disk, because only then does a rename in it survive a power cut. Some network file systems cannot
/// sync folders, but keep renames in order themselves.
void sync_folder(const fs::path& folder) {
    const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
    if (::fsync(descriptor.value()) != 0)
        require(errno == EINVAL || errno == ENOTSUP, "cannot write {}: {}", folder.string(), error_text());
}

/// Nobody may write it, or not this user; root may always.
bool is_protected(const fs::path& path) {
    struct stat status {};
    constexpr mode_t writable = S_IWUSR | S_IWGRP | S_IWOTH;
    return ::stat(path.c_str(), &status) == 0 &&
           ((status.st_mode & writable) == 0 || ::access(path.c_str(), W_OK) != 0);
}

/// Gives `made` the next free name beside `path`.
fs::path put_beside(const fs::path& made, const fs::path& path) {
    for (int number = 2;; ++number) {
        const auto other = numbered(path, number);
        FileState nothing;
        if (is_free(other) && move_into_place(made, other, nothing)) return other;
    }
}

/// move_into_place() without writing to disk. A file that comes in the microseconds between the check and the rename is
/// replaced only where the file system cannot rename without replacing, such as NFS.
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

}  // namespace

fs::path temporary_of(const fs::path& path) { return fmt::format("{}.{}.ringlab-tmp", path.string(), ::getpid()); }

void remove_temporaries_of(const fs::path& path) {
    const auto begin = path.filename().string() + ".";
    for (const auto& file : fs::directory_iterator(folder_of(path))) {
        const auto name = file.path().filename().string();
        if (name.starts_with(begin) && name.ends_with(".ringlab-tmp")) fs::remove(file.path());
    }
}

fs::path followed(const fs::path& path) {
    require(!path.empty(), "what is written needs a file name");
    std::error_code ignored;
    const auto target = fs::canonical(path, ignored);
    return target.empty() ? path : target;
}

bool leads_to_itself(const fs::path& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) != 0 && errno == ELOOP;
}

void require_replaceable(const fs::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) return;
    if (S_ISREG(status.st_mode)) {
        require(!is_protected(path),
                "{} is write-protected (mode {:o}); allow to write it (chmod u+w), or write to another file",
                path.string(), status.st_mode & 07777);
        return;
    }
    fail("{} is {}; write to another file", path.string(),
         S_ISDIR(status.st_mode)   ? "a folder"
         : S_ISLNK(status.st_mode) ? leads_to_itself(path) ? "a link that leads to itself" : "a link that leads nowhere"
         : S_ISFIFO(status.st_mode) ? "a FIFO"
         : S_ISSOCK(status.st_mode) ? "a socket"
                                    : "a device");
}

fs::path unfinished_of(const fs::path& path) { return path.string() + ".ringlab-unfinished"; }

fs::path numbered(const fs::path& path, int number) {
    if (number == 1) return path;
    return path.parent_path() / fmt::format("{}-{}{}", path.stem().string(), number, path.extension().string());
}

bool is_free(const fs::path& path) { return !state_of(path).is_there() && !state_of(unfinished_of(path)).is_there(); }

bool move_into_place(const fs::path& made, const fs::path& path, FileState& state) {
    FileState own;
    {
        const Descriptor file(made, O_RDONLY);
        file.sync();
        own = state_of(file.value(), made);
    }
    if (!moved(made, path, state)) return false;
    sync_folder(folder_of(path));
    state = own;
    return true;
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
    try {
        Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
        file.write(bytes);
        file.sync();
        file.close();
    } catch (...) {
        ::unlink(path.c_str());
        throw;
    }
}

bool replace_file(const fs::path& path, std::span<const std::byte> bytes, FileState& state) {
    const auto temporary = temporary_of(path);
    write_file(temporary, bytes);
    if (move_into_place(temporary, path, state)) return true;
    ::unlink(temporary.c_str());
    return false;
}

fs::path move_into_place_or_beside(const fs::path& made, const fs::path& path, FileState state) {
    if (move_into_place(made, followed(path), state)) return path;
    const auto other = put_beside(made, path);
    say_that_it_goes_beside(path, other);
    return other;
}

void say_that_it_goes_beside(const fs::path& path, const fs::path& other) {
    fmt::print(stderr, "[note] '{}' is not the file that was there before: it stays as it is, and this goes to '{}'\n",
               path.string(), other.string());
}

void require_regular_file(const std::filesystem::path& path, const std::string& what) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
    fail("{} '{}' is {}; it must be a file", what, path.string(),
         S_ISDIR(status.st_mode)    ? "a folder"
         : S_ISFIFO(status.st_mode) ? "a FIFO"
         : S_ISSOCK(status.st_mode) ? "a socket"
                                    : "a device");
}

FileContents read_file(const fs::path& path) {
    const Descriptor file(path, O_RDONLY | O_NONBLOCK);  // opening a FIFO would wait for a writer
    struct stat status {};
    require(::fstat(file.value(), &status) == 0, "cannot read {}: {}", path.string(), error_text());
    require(S_ISREG(status.st_mode), "cannot read {}: it is not a file", path.string());
    std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
    for (std::size_t done = 0; done < bytes.size();) {
        const auto got = ::read(file.value(), bytes.data() + done, bytes.size() - done);
        if (got < 0 && errno == EINTR) continue;
        require(got >= 0, "cannot read {}: {}", path.string(), error_text());
        if (got == 0) bytes.resize(done);
        done += static_cast<std::size_t>(got);
    }
    return {std::move(bytes), state_of(file.value(), path)};
}

}  // namespace ringlab::experiments
