#pragma once

#include "processes/watching/first_error.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ringlab::processes {

using Clock = std::chrono::steady_clock;

/// A thread that ends this process, with one line that says why and without running any destructor, when the process
/// waits too long in a call that cannot be given a time-out, when it is asked to end (SIGTERM), or when something else
/// that it looks at is wrong. Time in which the process itself was stopped does not count.
class Guardian {
public:
    /// What is wrong, or nothing; called every interval() with the time since the last call.
    using Look = std::function<std::string(Clock::duration)>;

    Guardian(FirstError& first_error, Clock::duration patience);
    ~Guardian();
    Guardian(const Guardian&) = delete;
    Guardian& operator=(const Guardian&) = delete;

    Clock::duration patience() const { return patience_; }
    Clock::duration interval() const { return interval_; }

    /// From now on `look` is called too; returns when it is no longer called if it is empty.
    void look_by(Look look);

    /// Which processes are stopped or gone, in words, or nothing: asked when a wait was too long, or when this process
    /// is asked to end.
    void suspect_by(std::function<std::string()> suspects);

    /// What is said after anything else, from now on.
    void advise(std::string advice);

    /// How this process calls itself; "process 1234" until it is known better.
    void set_name(std::string name);

    /// What the process waits for, in words, from now on for `limit`; nothing if it is null.
    void watch(const char* call, Clock::duration limit);

private:
    void run();
    std::string complaint(Clock::duration elapsed);
    std::string reason_to_end() const;

    FirstError& first_error_;
    const Clock::duration patience_, interval_;
    std::mutex mutex_;
    std::string advice_;
    Look look_;
    std::function<std::string()> suspects_;
    std::string name_;
    const char* call_ = nullptr;
    Clock::duration limit_{}, waited_{};
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace ringlab::processes
