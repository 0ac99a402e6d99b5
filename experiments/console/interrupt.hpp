#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <string>

namespace ringlab::experiments {

// What a person who presses Ctrl-C, a scheduler (SIGTERM) or a closed terminal (SIGHUP) leaves behind: one line on
// stderr, no lock and no half-written file, exit status 128 + signal.

/// From now on, whatever handlers libraries have set before main(). A signal that the caller of the program had set to
/// be ignored stays ignored (nohup).
void end_on_signals();

/// As end_on_signals(), for SIGHUP alone: to be called after loading libraries that may have changed its handler.
/// SIGTERM stays as it is.
void end_on_hangup();

/// The line that such an end prints: what is done and how to go on. Processes that never say one end in silence.
void say_when_interrupted(const std::string& line);

/// A file that such an end removes, from watch() on and for as long as this lives.
class RemovedWhenInterrupted {
public:
    RemovedWhenInterrupted() = default;
    ~RemovedWhenInterrupted();
    void watch(const std::filesystem::path& path);
    RemovedWhenInterrupted(const RemovedWhenInterrupted&) = delete;
    RemovedWhenInterrupted& operator=(const RemovedWhenInterrupted&) = delete;

private:
    std::string path_;
    std::atomic<const char*>* place_ = nullptr;
};

}  // namespace ringlab::experiments
