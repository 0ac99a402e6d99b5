#pragma once

#include "experiments/console/interrupt.hpp"
#include "experiments/files/digest.hpp"
#include "experiments/files/file_state.hpp"

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

namespace ringlab::experiments {

/// The right to write the file `path`, held by one process at a time as a lock on a sidecar.
///
/// The sidecar goes when the holder does, or is interrupted; one that a killed process left behind is harmless and is
/// taken over. (The file itself cannot carry the lock: HDF5 readers take one of their own on it, and it is replaced at
/// every commit.)
class WriterLock {
public:
    /// Throws Error at once if another holds it, or if the sidecar cannot be made.
    explicit WriterLock(const std::filesystem::path& path);

    /// The lock, or null if another process holds it. Throws Error if the sidecar cannot be made.
    static std::unique_ptr<WriterLock> if_free(const std::filesystem::path& path);

    static std::filesystem::path sidecar_of(const std::filesystem::path& path);
    ~WriterLock();
    WriterLock(const WriterLock&) = delete;
    WriterLock& operator=(const WriterLock&) = delete;

private:
    struct Unlocked {};
    WriterLock(const std::filesystem::path& path, Unlocked);
    bool lock(const std::filesystem::path& path);

    std::filesystem::path path_;
    int descriptor_ = -1;
    RemovedWhenInterrupted sidecar_, temporary_, unfinished_temporary_;
};

/// Where replace_file() prepares the new contents; what a killed process left there may be removed.
std::filesystem::path temporary_of(const std::filesystem::path& path);

/// The file that a path leads to, so that what is replaced is a link's target and not the link.
std::filesystem::path followed(const std::filesystem::path& path);

/// Whether `path` is a link, or a file behind one, that is never come to.
bool leads_to_itself(const std::filesystem::path& path);

/// Throws Error if there is something at `path` that a new file must not take the place of: a folder, device, FIFO,
/// socket or link, or a file that is write-protected.
void require_replaceable(const std::filesystem::path& path);

/// Where a record grows that will replace the one at `path`.
std::filesystem::path unfinished_of(const std::filesystem::path& path);

/// `path` for 1; "record-2.h5" for "record.h5" and 2.
std::filesystem::path numbered(const std::filesystem::path& path, int number);

/// Whether nothing lies at `path`, and no record grows that will be put there.
bool is_free(const std::filesystem::path& path);

/// Makes the finished file `made` the file `path`, durably and all at once: whoever opens `path`, whenever, after
/// whatever crash, finds the old file or the new one; `made` is gone then. What lies at `path` must be nothing or the
/// file of `state`, which becomes the state of the new one. Returns false, with both files as they are, if somebody has
/// put another file there, has written into it or has protected it. Throws Error, with the old file intact, if the disk
/// is not writable.
bool move_into_place(const std::filesystem::path& made, const std::filesystem::path& path, FileState& state);

/// Makes a file of `bytes`, whatever was there. Throws Error, and leaves none, if the disk is full or not writable.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// As replace_file() above, with a file that is made of `bytes`.
bool replace_file(const std::filesystem::path& path, std::span<const std::byte> bytes, FileState& state);

/// Moves the finished file `made` to `path` or, where that would destroy what is not of `state`, to the next free one
/// of numbered(path, 2) and so on, and says so on stderr. Returns where it is.
std::filesystem::path move_into_place_or_beside(const std::filesystem::path& made, const std::filesystem::path& path,
                                                FileState state);

/// The note on stderr that what was to be written to `path` goes to `other`.
void say_that_it_goes_beside(const std::filesystem::path& path, const std::filesystem::path& other);

/// "sha-256\n" and the bytes' digest, to be written after them: HDF5 does not look beyond its own end, so others can
/// read the file all the same.
using Checksum = std::array<std::byte, 8 + std::tuple_size_v<Digest>>;
Checksum checksum_of(std::span<const std::byte> bytes);

/// The bytes before the checksum that they end in. Throws Error if it is not there or not that of the bytes.
std::span<const std::byte> without_checksum(std::span<const std::byte> bytes);

/// Throws Error if `path` cannot be read.
struct FileContents {
    std::vector<std::byte> bytes;
    FileState state;
};
FileContents read_file(const std::filesystem::path& path);

}  // namespace ringlab::experiments
