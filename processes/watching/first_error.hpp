#pragma once

#include <atomic>
#include <string>

namespace ringlab::processes {

/// The one line that a run leaves when it fails: of all processes that a launcher has started on a host, and all
/// threads of a process, the first that comes says it. Any thread, any time.
class FirstError {
public:
    /// `program` begins the line.
    explicit FirstError(std::string program) : program_(std::move(program)) {}

    /// Prints the line on stderr, unless somebody has said one; whether this was the first. Returns in one
    /// thread of a process alone: the others are left to end with it.
    bool say(const std::string& message);

    /// From now on who speaks here waits first: processes of another host may have the same to say, of which nothing is
    /// known here, and their launcher then ends this process.
    void let_another_host_begin() { waits_ = true; }

    /// Ends this process, and with it whatever it is in the middle of.
    [[noreturn]] void exit() const;

private:
    bool claim();

    std::string program_;
    std::atomic<bool> said_ = false, waits_ = false;
    bool first_ = false;
    bool must_stay_ = false;  // the others see who was first by a name that is free again when this process is gone
};

/// Prints a program's last line; among processes that an MPI launcher has started, only the first one's. For errors
/// that come before there is a session, and to all processes alike.
void say_first_error(const std::string& program, const std::string& message);

}  // namespace ringlab::processes
