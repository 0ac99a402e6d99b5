#pragma once

#include "experiments/files/file_state.hpp"

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A file that was read, by its name and the SHA-256 of its contents.
struct FileDigest {
    std::string name;  ///< the path as given; "machines/ideal.toml" if it comes with Ringlab
    std::string sha256;
};

/// The account of all files from which a command takes what decides its results; run_main() keeps one. Texts come to it
/// through layouts::read_text(), and whoever reads anything else calls note_read(). Any thread.
///
/// A text is read once: whoever asks again gets what was read first, so that all runs of a sweep have the same, and its
/// digest is that of what was used.
class FilesRead {
public:
    FilesRead();
    ~FilesRead();
    FilesRead(const FilesRead&) = delete;
    FilesRead& operator=(const FilesRead&) = delete;

    /// The account of this command; null if none is kept.
    static FilesRead* current();

    /// See note_read().
    void note(const std::filesystem::path& path);

    /// SHA-256 of the contents of a file that was noted. Throws Error if somebody has changed the file since.
    std::string digest(const std::filesystem::path& path);

    /// All files so far, in the order in which they were first read. Throws Error as digest() does.
    std::vector<FileDigest> digests();
    std::size_t count();

private:
    struct File {
        std::string path;
        std::optional<std::string> text;  ///< what was read of a text
        FileState state;                  ///< of any other file, when it was first read
        std::string sha256;               ///< once it was asked for
    };

    std::string text_of(const std::filesystem::path& path, std::string_view what);
    File* find(const std::filesystem::path& path);
    const std::string& sha256_of(File& file);

    std::mutex mutex_;
    std::vector<File> files_;
};

/// Notes that a file other than a text, whose contents decide results, is read now. Throws Error if it was read before
/// and somebody has changed it since. Does nothing if no account is kept.
void note_read(const std::filesystem::path& path);

/// How many files were read so far; 0 where nobody keeps account.
std::size_t count_read();

}  // namespace ringlab::experiments
