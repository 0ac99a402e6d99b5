#include "experiments/record/record_files.hpp"

#include "experiments/console/message.hpp"
#include "layouts/require.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

    void sync() { require(::fsync(value_) == 0, "cannot write {}: {}", path_.string(), error_text()); }

    void close() {
        require(::close(std::exchange(value_, -1)) == 0, "cannot write {}: {}", path_.string(), error_text());
    }

private:
    fs::path path_;
    int value_;
};

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// A rename survives a power cut once its folder is on disk. Some network file systems cannot sync folders; they order
/// renames themselves.
void sync_folder(const fs::path& folder) {
    const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
    if (::fsync(descriptor.value()) != 0)
        require(errno == EINVAL || errno == ENOTSUP, "cannot write {}: {}", folder.string(), error_text());
}

}  // namespace

// Sidecars have names that nobody gives a file, since they are replaced and removed without asking.
fs::path WriterLock::sidecar_of(const fs::path& path) { return path.string() + ".ringlab-lock"; }

WriterLock::WriterLock(const fs::path& path) : path_(sidecar_of(path)) {
    const auto folder = folder_of(path);
    require(fs::is_directory(folder), "{} cannot be written: there is no folder {}", path.string(), folder.string());
    for (;;) {
        descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        require(descriptor_ >= 0, "{} cannot be written: cannot make {}: {}", path.string(), path_.string(),
                error_text());
        if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
            const int error = errno;
            ::close(descriptor_);
            require(error != EWOULDBLOCK, "{} is being written by another process; wait for it, or write elsewhere",
                    path.string());
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
}

WriterLock::~WriterLock() {
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

void require_replaceable(const fs::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
    fail("{} is {}; write to another file", path.string(),
         S_ISDIR(status.st_mode)    ? "a folder"
         : S_ISLNK(status.st_mode)  ? "a link that leads nowhere"
         : S_ISFIFO(status.st_mode) ? "a FIFO"
         : S_ISSOCK(status.st_mode) ? "a socket"
                                    : "a device");
}

void replace_file(const fs::path& path, std::span<const std::byte> bytes) {
    require_replaceable(path);
    const auto temporary = temporary_of(path);
    try {
        Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
        file.write(bytes);
        file.close();
        replace_by(path, temporary);
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
}

fs::path unfinished_of(const fs::path& path) { return path.string() + ".ringlab-unfinished"; }

void replace_by(const fs::path& path, const fs::path& made) {
    require_replaceable(path);
    Descriptor(made, O_RDONLY).sync();
    require(::rename(made.c_str(), path.c_str()) == 0, "cannot write {}: {}", path.string(), error_text());
    sync_folder(folder_of(path));
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

std::vector<std::byte> read_file(const fs::path& path) {
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
    return bytes;
}

}  // namespace ringlab::experiments
