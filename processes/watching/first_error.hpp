#pragma once

#include <atomic>
#include <string>

namespace ringlab::processes {

/// The error line of a run. Several threads, and several processes that a launcher has started on a host, may fail at
/// about the same time. Only the first of them prints its line. All functions may be called by any thread at any time.
class FirstError {
public:
    /// `program` begins the line.
    explicit FirstError(std::string program) : program_(std::move(program)) {}

    /// Prints the line on stderr, unless another process was first. Returns whether it was printed. Only the first
    /// thread of a process returns: the others sleep until the process ends.
    bool say(const std::string& message);

    /// From now on say() waits for some seconds before it prints. To be called by processes that are not on the host of
    /// rank 0: the first process there may report the same error, and its launcher then ends this process.
    void let_another_host_begin() { waits_ = true; }

    /// Ends this process without running destructors. Waits before that, if other processes must see who was first.
    [[noreturn]] void exit() const;

private:
    bool claim();

    std::string program_;
    std::atomic<bool> said_ = false, waits_ = false;
    bool first_ = false;
    // Whether the mark of being first disappears with this process (a socket name). Then exit() must wait, until the
    // other processes have seen it.
    bool must_stay_ = false;
};

/// Prints the error line of a program before there is a Session, for an error that all processes meet in the same way.
/// Among processes that an MPI launcher has started, only the first one prints it.
void say_first_error(const std::string& program, const std::string& message);

}  // namespace ringlab::processes
