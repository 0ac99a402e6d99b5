#pragma once

#include "experiments/files/file_state.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::experiments {

/// What programs write, and may replace when asked to.
enum class FileKind { record, tensors, machine, trace, execution_trace, advice };

/// How a JSON file of advice begins, by which it is known again.
inline constexpr std::string_view advice_begin = "{\n  \"ringlab_advice\": ";

/// What becomes of a file that is there already.
enum class IfThere {
    refuse,   ///< it is an error
    replace,  ///< if it is a file of the same kind
    keep,     ///< the writer adds to it, and checks it itself
};

/// All files that one command reads and writes. Whatever it writes goes through writes() before the first byte of
/// anything is written, so that no command destroys what it reads, or what is not of Ringlab's making.
class FileGuard {
public:
    /// A file that the command reads; `what` is what to call it: "input". Throws Error if it is a folder, a device, or
    /// a FIFO, which could block for ever. A path that leads nowhere is left to whoever reads it.
    void reads(const std::string& what, const std::filesystem::path& path);

    /// A file that the command will write; `what` names the option. Throws Error, one line, if
    ///   - it is one that the command reads, under whatever name or link, or one that it writes already;
    ///   - it is a folder, device, FIFO, socket, or a link that leads nowhere, or its folder is missing;
    ///   - there is a file that must not be replaced, is write-protected, or is not of this kind: not made by Ringlab,
    ///     or damaged.
    void writes(const std::string& what, const std::filesystem::path& path, FileKind kind, IfThere if_there);

    /// What lay at `path` when writes() was asked for it; none if it was not.
    std::optional<FileState> found(const std::filesystem::path& path) const;

    /// Writes a file that writes() was asked for or, if others have put another one there since, beside it, and says so
    /// on stderr. Returns where it is. Throws Error if the disk is not writable.
    std::filesystem::path write(const std::filesystem::path& path, std::span<const std::byte> bytes) const;

private:
    struct File {
        std::string what;
        std::filesystem::path path;   ///< as given
        std::filesystem::path place;  ///< without links, as far as it exists
        FileState state = {};         ///< of a file to write: state of what lies there so far
    };

    std::vector<File> read_, written_;
};

}  // namespace ringlab::experiments
