#pragma once

#include "experiments/files/written_file.hpp"

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::experiments {

/// The kinds of files that programs write, and may replace when they are asked to.
enum class FileKind { record, tensors, machine, trace, execution_trace, advice };

/// The beginning of a JSON file of advice, by which it is recognised.
inline constexpr std::string_view advice_begin = "{\n  \"ringlab_advice\": ";

/// What to do with a file that exists already.
enum class IfThere {
    refuse,   ///< it is an error
    replace,  ///< if it is a file of the same kind
    keep,     ///< the writer adds to it, and checks it itself
};

/// All files that one command reads and writes. A command passes all its output files to writes() before it writes the
/// first byte. So it cannot overwrite a file that it reads, or one that Ringlab has not made.
class FileGuard {
public:
    /// Adds a file that the command reads; `what` names its kind in messages: "input". Throws Error if it is a folder,
    /// a device, or a FIFO, which could block for ever. A path that leads nowhere is no error here, but when it is
    /// read.
    void reads(const std::string& what, const std::filesystem::path& path);

    /// A file that the command will write; `what` names the option. Throws Error, one line, if
    ///   - it is one that the command reads, under whatever name or link, or one that it writes already;
    ///   - it is a folder, device, FIFO, socket, or a link that leads nowhere, or its folder is missing;
    ///   - there is a file that must not be replaced, is write-protected, or is not of this kind: not made by Ringlab,
    ///     or damaged.
    void writes(const std::string& what, const std::filesystem::path& path, FileKind kind, IfThere if_there);

    /// A file to write. If it was passed to writes(), what was there then may be replaced.
    WrittenFile file(const std::filesystem::path& path) const;

    /// Writes such a file. Returns its path, as given or numbered.
    std::filesystem::path write(const std::filesystem::path& path, std::span<const std::byte> bytes) const;

private:
    struct File {
        std::string what;
        std::filesystem::path path;   ///< as given
        std::filesystem::path place;  ///< without links, as far as it exists
    };

    std::vector<File> read_, written_;
    std::vector<WrittenFile> to_write_;  // in the order of written_
};

}  // namespace ringlab::experiments
