#pragma once

#include "processes/watching/first_error.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace ringlab::processes {

using Clock = std::chrono::steady_clock;

/// A thread that watches this process. It prints one line and ends the process, without running any destructor, in
/// three cases: the process waits too long in a call that has no time-out of its own, it is asked to end (SIGTERM), or
/// a check that was given to look_by() reports an error. Time during which the process itself was stopped does not
/// count.
class Guardian {
public:
    /// A check. Returns what is wrong, or an empty text. It is called every interval(), with the time since the last
    /// call.
    using Look = std::function<std::string(Clock::duration)>;

    Guardian(FirstError& first_error, Clock::duration patience);
    ~Guardian();
    Guardian(const Guardian&) = delete;
    Guardian& operator=(const Guardian&) = delete;

    Clock::duration patience() const { return patience_; }
    Clock::duration interval() const { return interval_; }

    /// Replaces the check; an empty one removes it. When this returns, the check before is not running any more.
    void look_by(Look look) { set(look_, std::move(look)); }

    /// Sets the function that says, as a text, which processes are stopped or gone (empty: none). It is called when a
    /// wait was too long, or when this process is asked to end.
    void suspect_by(std::function<std::string()> suspects) { set(suspects_, std::move(suspects)); }

    /// Sets a text that is appended to every line.
    void advise(std::string advice) { set(advice_, std::move(advice)); }

    /// Sets the name of this process in the line; at first it is "process 1234".
    void set_name(std::string name) { set(name_, std::move(name)); }

    /// From now on the process waits in `call`, which may take at most `limit`. Null: it waits for nothing.
    void watch(const char* call, Clock::duration limit);

private:
    template <class Value>
    void set(Value& member, Value value) {
        const std::lock_guard lock(mutex_);
        member = std::move(value);
    }
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
