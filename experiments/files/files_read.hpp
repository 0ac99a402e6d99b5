#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::experiments {

/// A file that was read, by its name and the SHA-256 of its contents.
struct FileDigest {
    std::string name;  ///< the path as given; "machines/ideal.toml" if it comes with Ringlab
    std::string sha256;
};

/// A list of all files whose contents influence the results of a command; run_program() keeps one. Texts enter it
/// through layouts::read_text(). Code that reads any other file calls note_read(). Any thread may call it.
///
/// A text is read only once. Later calls get the same text, so that all runs of a sweep use the same contents.
class FilesRead {
public:
    FilesRead();
    ~FilesRead();
    FilesRead(const FilesRead&) = delete;
    FilesRead& operator=(const FilesRead&) = delete;

    /// The list of this command; null if none is kept.
    static FilesRead* current();

    /// Adds a file, if it is not there yet. SHA-256 of its contents when it was added.
    std::string digest(const std::filesystem::path& path);

    /// All files so far, in the order in which they were first read.
    std::vector<FileDigest> digests();
    std::size_t count();

private:
    struct File {
        std::string path, sha256;
        std::optional<std::string> text;  ///< what was read of a text
    };

    std::string text_of(const std::filesystem::path& path, std::string_view what);
    File* find(const std::filesystem::path& path);

    std::mutex mutex_;
    std::vector<File> files_;
};

/// Adds a file that is not a text, and whose contents influence results, to the list. Does nothing if no list is kept
/// or there is no such file, which whoever reads it says.
void note_read(const std::filesystem::path& path);

/// Number of files in the list so far; 0 if no list is kept.
std::size_t count_read();

}  // namespace ringlab::experiments
