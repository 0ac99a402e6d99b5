#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace ringlab::experiments {

/// What tells a file from another one at the same path, and from itself after somebody has written into it.
struct FileState {
    dev_t device = 0;
    ino_t inode = 0;  ///< 0: there is nothing at the path
    std::int64_t bytes = 0, modified_ns = 0;

    bool is_there() const { return inode != 0; }
    bool operator==(const FileState&) const = default;
};

/// State of what lies at `path` now: of a link itself, not of its target.
FileState state_of(const std::filesystem::path& path);

/// `path`, or the first of "record-2.h5", "record-3.h5" and so on where there is nothing.
std::filesystem::path free_name(const std::filesystem::path& path);

/// Throws Error if there is something at `path` that is not a regular file, such as a FIFO, which could block for ever.
/// `what` names the kind of file in the message: "input".
void require_regular_file(const std::filesystem::path& path, const std::string& what);

/// Throws Error if a new file must not replace what is at `path`: a folder, device, FIFO, socket or link that leads
/// nowhere, or a file that is write-protected.
void require_replaceable(const std::filesystem::path& path);

/// A file that a command writes whole, once or again and again. At any time, even after a crash, there is the old or
/// the new contents at its path. What others put there meanwhile, or write into it, stays: the file then goes to the
/// next free one of the numbered names, with a note on stderr.
class WrittenFile {
public:
    /// What is at the path now may be replaced. A link is followed.
    WrittenFile(const std::filesystem::path& name) { take(name); }

    /// As it was given, or the numbered name that was taken.
    const std::filesystem::path& name() const { return name_; }
    /// With links followed.
    const std::filesystem::path& path() const { return path_; }

    /// Whether there is what was found, or what was written last.
    bool is_untouched() const { return state_of(path_) == state_; }

    /// From now on nothing may be replaced but what is written.
    void spare_what_is_there() { state_ = {}; }

    /// Throws Error, with the old contents intact, if the disk is full or not writable.
    void write(std::span<const std::byte> bytes);

    /// Removes what processes that were killed have left.
    void remove_temporaries() const;

private:
    void take(const std::filesystem::path& name);
    bool replaced_by(std::span<const std::byte> bytes);

    std::filesystem::path name_, path_;
    FileState state_;
};

}  // namespace ringlab::experiments
