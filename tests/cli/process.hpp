#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace ringlab::cli::test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline const std::string compare_layouts = RINGLAB_COMPARE_LAYOUTS;
inline const std::string gradient_equivalence = RINGLAB_GRADIENT_EQUIVALENCE;
inline const auto& gradients = gradient_equivalence;
inline const std::string bf16_error = RINGLAB_BF16_ERROR;
inline const std::string decode = RINGLAB_DECODE;
inline const std::string predict = RINGLAB_PREDICT;
inline const std::string calibrate = RINGLAB_CALIBRATE;
inline const std::string throughput = RINGLAB_THROUGHPUT;
inline const std::string advise = RINGLAB_ADVISE;
inline const std::string longest_context = RINGLAB_LONGEST_CONTEXT;
inline const std::string validate = RINGLAB_VALIDATE;

/// A folder in which programs run, that goes with everything in it.
class Folder {
public:
    Folder();
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    fs::path operator/(const std::string& name) const { return path_ / name; }
    const fs::path& path() const { return path_; }

    /// Names of what lies in it, but for the captured output of programs.
    Words left() const;

private:
    fs::path path_;
};

struct Ending {
    int status = -1;  ///< of exit(); minus the signal's number if a signal ended it
    bool timed_out = false;
    double seconds = 0;
    double processor_seconds = 0;  ///< its own, and those of its children that have ended
    std::string out, err;
};

/// Runs a program in the folder and waits for it; after `timeout_seconds` it is killed, with its process group.
Ending run(const Folder& folder, const std::string& program, const Words& arguments, double timeout_seconds = 60);

/// Sends `signal` to the program alone, a second after its record r.h5 is there, and waits for its end.
Ending interrupted(const Folder& folder, const std::string& program, const Words& arguments, int signal,
                   const std::string& environment = {});

/// The lines that are not progress reports ("[3/12, 4 s left] ...").
Words lines_beside_progress(const std::string& text);

void write_file(const fs::path& path, const std::string& contents);
std::string contents_of(const fs::path& path);

/// The words between the blanks of a command line.
Words words_of(const std::string& line);

/// `a` followed by `b`.
Words operator+(Words a, const Words& b);

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Arguments of a sweep that takes milliseconds.
inline const Words small{"--layouts", "zigzag",  "--masks", "causal",   "--schedules",
                         "ring",      "--ranks", "4",       "--tokens", "64"};

/// Runs of a record by name, each with the numbers of one of its datasets.
std::map<std::string, std::vector<double>> runs_of(const fs::path& record, const std::string& dataset);

}  // namespace ringlab::cli::test
