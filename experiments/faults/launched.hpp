#pragma once

#include <string>
#include <vector>

namespace ringlab::experiments {

/// How a program that was launched ended.
struct Launched {
    int status = -1;         ///< of exit(); minus the signal's number if a signal ended it
    bool timed_out = false;  ///< it ran too long and was killed, with all processes that it had started
    double seconds = 0;      ///< from its start to its end
    /// Seconds from its first line that begins with `mark` to its end; `seconds` if there was no such line.
    double seconds_since_mark = 0;
    std::vector<std::string> lines;  ///< of stderr
};

/// Runs the command `words`, found as a shell finds it, for ranks on one machine: Open MPI may start more ranks than
/// there are processors, unless the environment says otherwise. Its stdout is discarded. Throws Error if it cannot be
/// started.
Launched launch(const std::vector<std::string>& words, const std::string& mark, double limit_seconds);

/// A program of the folder in which this one lies.
std::string neighbouring_program(const std::string& name);

}  // namespace ringlab::experiments
