#pragma once

#include <string>

namespace ringlab::experiments {

// How a program ends by Ctrl-C, by a scheduler (SIGTERM) or by a closed terminal (SIGHUP): with one line on stderr and
// exit status 128 + signal.

/// Sets the handlers, in place of any that libraries have set before main(). A signal that the caller of the program
/// has set to be ignored (nohup) stays ignored.
void end_on_signals();

/// As end_on_signals(), for SIGHUP alone: to be called after loading libraries that may have changed its handler.
/// SIGTERM stays as it is.
void end_on_hangup();

/// Sets the line that is printed at such an end: what is done, and how to go on. Without it nothing is printed.
void say_when_interrupted(const std::string& line);

/// While an object of this class lives, no such signal ends the program. One that has come does so afterwards.
class Uninterrupted {
public:
    Uninterrupted();
    ~Uninterrupted();
    Uninterrupted(const Uninterrupted&) = delete;
    Uninterrupted& operator=(const Uninterrupted&) = delete;
};

}  // namespace ringlab::experiments
