#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

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

/// State of the file that a descriptor has open. Throws Error, which names `path`, if the system does not tell.
FileState state_of(int descriptor, const std::filesystem::path& path);

}  // namespace ringlab::experiments
