#pragma once

#include "experiments/console/interrupt.hpp"
#include "experiments/record/digest.hpp"

#include <array>
#include <cstddef>
#include <filesystem>
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
    static std::filesystem::path sidecar_of(const std::filesystem::path& path);
    ~WriterLock();
    WriterLock(const WriterLock&) = delete;
    WriterLock& operator=(const WriterLock&) = delete;

private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    RemovedWhenInterrupted sidecar_, temporary_, unfinished_temporary_;
};

/// Where replace_file() prepares the new contents; what a killed process left there may be removed.
std::filesystem::path temporary_of(const std::filesystem::path& path);

/// The file that a path leads to, so that what is replaced is a link's target and not the link.
std::filesystem::path followed(const std::filesystem::path& path);

/// Throws Error if there is something at `path` that a new file must not take the place of: a folder, device, FIFO,
/// socket or link.
void require_replaceable(const std::filesystem::path& path);

/// Makes `bytes` the contents of `path`, durably and all at once: whoever opens it, whenever, after whatever crash,
/// finds the old file or the new one. Throws Error, with the old file intact, if the disk is full or not writable.
void replace_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// Where a record grows that will replace the one at `path`.
std::filesystem::path unfinished_of(const std::filesystem::path& path);

/// Makes the finished file `made` the file `path`, durably and all at once; `made` is gone then. Throws Error, with
/// both as they are, if `path` cannot be replaced.
void replace_by(const std::filesystem::path& path, const std::filesystem::path& made);

/// "sha-256\n" and the bytes' digest, to be written after them: HDF5 does not look beyond its own end, so others can
/// read the file all the same.
using Checksum = std::array<std::byte, 8 + std::tuple_size_v<Digest>>;
Checksum checksum_of(std::span<const std::byte> bytes);

/// The bytes before the checksum that they end in. Throws Error if it is not there or not that of the bytes.
std::span<const std::byte> without_checksum(std::span<const std::byte> bytes);

/// Throws Error if `path` cannot be read.
std::vector<std::byte> read_file(const std::filesystem::path& path);

}  // namespace ringlab::experiments
