#include "experiments/files/record_files.hpp"

#include "experiments/console/message.hpp"
#include "layouts/basics/require.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
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

/// move_into_place() without writing to disk. `own` is the state of `made`.
///
/// Another process may put a file there between the check and the rename. So an existing file is swapped with `made`,
/// checked again under the name of `made`, which nobody else uses, and swapped back if it is not the expected one. On
/// file systems that cannot swap, such as NFS, a window of microseconds remains.
bool moved(const fs::path& made, const fs::path& path, const FileState& expected, const FileState& own) {
    const auto rename = [&](unsigned flags) {
        return ::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), flags) == 0;
    };
    for (;;) {
        const auto there = state_of(path);
        const bool swaps = there.is_there();
        if (swaps && (there != expected || is_protected(path))) return false;
        if (rename(swaps ? RENAME_EXCHANGE : RENAME_NOREPLACE)) {
            if (!swaps) return true;
            if (state_of(made) == expected) {
                ::unlink(made.c_str());
                return true;
            }
            if (rename(RENAME_EXCHANGE) && state_of(made) == own) return false;
            fail("cannot write {}: others replace it again and again; what was there is {} now", path.string(),
                 put_beside(made, path).string());
        }
        const int error = errno;
        if (error == (swaps ? ENOENT : EEXIST) && state_of(made).is_there()) continue;  // it has just gone, or come
        const bool cannot_swap = error == EINVAL || error == ENOSYS || error == ENOTSUP;
        if (cannot_swap && rename(0)) return true;
        fail("cannot write {}: {}", path.string(), error_text());
    }
}

}  // namespace

// The names of sidecars are unlikely for any other file, because sidecars are replaced and removed without asking.
fs::path WriterLock::sidecar_of(const fs::path& path) { return path.string() + ".ringlab-lock"; }

WriterLock::WriterLock(const fs::path& path) : WriterLock(path, Unlocked{}) {
    require(lock(path), "{} is being written by another process; wait for it, or write elsewhere", path.string());
}

std::unique_ptr<WriterLock> WriterLock::if_free(const fs::path& path) {
    std::unique_ptr<WriterLock> made(new WriterLock(path, Unlocked{}));
    return made->lock(path) ? std::move(made) : nullptr;
}

WriterLock::WriterLock(const fs::path& path, Unlocked) : path_(sidecar_of(path)) {}

/// Takes the lock. Returns false if another process holds it.
bool WriterLock::lock(const fs::path& path) {
    const auto folder = folder_of(path);
    require(fs::is_directory(folder), "{} cannot be written: there is no folder {}", path.string(), folder.string());
    for (;;) {
        descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        require(descriptor_ >= 0, "{} cannot be written: cannot make {}: {}", path.string(), path_.string(),
                error_text());
        if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
            const int error = errno;
            ::close(std::exchange(descriptor_, -1));
            if (error == EWOULDBLOCK) return false;
            fail("{} cannot be locked: {}", path_.string(), std::generic_category().message(error));
        }
        // The holder before us may have removed the sidecar between our open and our lock; then this lock guards
        // nothing.
        struct stat locked {
        }, named{};
        if (::fstat(descriptor_, &locked) == 0 && ::stat(path_.c_str(), &named) == 0 && locked.st_ino == named.st_ino &&
            locked.st_dev == named.st_dev)
            break;
        ::close(descriptor_);
    }
    sidecar_.watch(path_);
    temporary_.watch(temporary_of(path));
    unfinished_temporary_.watch(temporary_of(unfinished_of(path)));
    return true;
}

WriterLock::~WriterLock() {
    if (descriptor_ < 0) return;
    ::unlink(path_.c_str());
    ::close(descriptor_);
}

fs::path temporary_of(const fs::path& path) { return path.string() + ".ringlab-tmp"; }

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
    if (!moved(made, path, state, own)) return false;
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

Checksum checksum_of(std::span<const std::byte> bytes) {
    constexpr std::string_view name = "sha-256\n";
    Checksum checksum;
    std::ranges::copy(std::as_bytes(std::span(name)), checksum.begin());
    std::ranges::copy(digest_of(bytes), checksum.begin() + name.size());
    return checksum;
}

std::span<const std::byte> without_checksum(std::span<const std::byte> bytes) {
    constexpr auto size = std::tuple_size_v<Checksum>;
    if (bytes.size() > size) {
        const auto contents = bytes.first(bytes.size() - size);
        if (std::ranges::equal(checksum_of(contents), bytes.last(size))) return contents;
    }
    fail(
        "it does not end in the checksum of its contents: it is no record, cut short, damaged, changed by others, or "
        "of "
        "an earlier Ringlab");
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
