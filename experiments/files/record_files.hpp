#pragma once

#include "experiments/files/file_state.hpp"

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace ringlab::experiments {

/// The path at which this process prepares new contents of `path`. A killed process may leave a file there.
std::filesystem::path temporary_of(const std::filesystem::path& path);

/// Removes what processes that were killed have left at their temporary_of(path).
void remove_temporaries_of(const std::filesystem::path& path);

/// The file that a path leads to: the target of a link is replaced, and not the link.
std::filesystem::path followed(const std::filesystem::path& path);

/// Whether `path` is a link that leads to itself, or lies behind one.
bool leads_to_itself(const std::filesystem::path& path);

/// Throws Error if a new file must not replace what is at `path`: a folder, device, FIFO, socket or link, or a file
/// that is write-protected.
void require_replaceable(const std::filesystem::path& path);

/// The path of an unfinished record that will replace the one at `path`.
std::filesystem::path unfinished_of(const std::filesystem::path& path);

/// `path` for 1; "record-2.h5" for "record.h5" and 2.
std::filesystem::path numbered(const std::filesystem::path& path, int number);

/// Whether there is nothing at `path`, and no unfinished record that will be moved there.
bool is_free(const std::filesystem::path& path);

/// Moves the finished file `made` to `path`, durably and atomically: at any time, even after a crash, there is either
/// the old file or the new one at `path`. There must be nothing at `path`, or the file of `state`; `state` becomes that
/// of the new file. If somebody has put another file there, has written into it or has protected it, it returns false
/// and changes nothing. Throws Error, with the old file intact, if the disk is not writable.
bool move_into_place(const std::filesystem::path& made, const std::filesystem::path& path, FileState& state);

/// Writes `bytes` to a file, in place of any that was there. If the disk is full or not writable, it throws Error and
/// leaves no file.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// As move_into_place(), with a new file of these bytes.
bool replace_file(const std::filesystem::path& path, std::span<const std::byte> bytes, FileState& state);

/// Moves the finished file `made` to `path`. If there is another file than that of `state`, it is kept: `made` then
/// goes to the next free name of numbered(path, 2) and so on, with a note on stderr. Returns the path of the new file.
std::filesystem::path move_into_place_or_beside(const std::filesystem::path& made, const std::filesystem::path& path,
                                                FileState state);

/// The note on stderr that what was to be written to `path` goes to `other`.
void say_that_it_goes_beside(const std::filesystem::path& path, const std::filesystem::path& other);

/// Throws Error if there is something at `path` that is not a regular file, such as a FIFO, which could block for ever.
/// `what` names the kind of file in the message: "input".
void require_regular_file(const std::filesystem::path& path, const std::string& what);

/// Throws Error if `path` cannot be read.
struct FileContents {
    std::vector<std::byte> bytes;
    FileState state;
};
FileContents read_file(const std::filesystem::path& path);

}  // namespace ringlab::experiments
