#pragma once

#include "layouts/basics/require.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ringlab::gpu {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

/// Thrown by a member's waits after another member has failed; the other one's error is the one to report.
class Cancelled : public Error {
public:
    Cancelled() : Error("stopped because another rank failed") {}
};

/// The host threads that issue work to GPUs: threads of one process, or one per process of an MPI world. They meet
/// before and after passes, never inside one.
class Team {
public:
    virtual ~Team() = default;

    virtual int size() const = 0;

    /// Members [first_local(), first_local() + local_size()) are threads of this process.
    virtual int first_local() const = 0;
    virtual int local_size() const = 0;
    bool is_root() const { return first_local() == 0; }

    /// The bytes of all members, in their order; all members call it. If that takes longer than `timeout`, throws
    /// Error, or ends the run where members are processes; throws Cancelled if a member of this process has failed.
    virtual std::vector<Bytes> all_gather(int member, Bytes bytes, Clock::duration timeout) = 0;

    /// The bytes of all processes, on the root process; nothing on others. Called once per process.
    virtual std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration timeout) = 0;

    /// Called by a member that has failed before it lets go of anything that others may be using. Cancels the members
    /// of this process; where members are processes, ends all of them with this line and does not return: what waits
    /// for another process, such as a device, need not come back from being asked to stop.
    virtual void give_up(const std::string& why) = 0;

    /// clock_offset() is added to this process's clock to get the root's clock. clock_uncertainty() is its largest
    /// error.
    virtual Clock::duration clock_offset() const = 0;
    virtual Clock::duration clock_uncertainty() const = 0;

    /// Tells this process's members that one has failed; any thread, any time.
    virtual void cancel() noexcept = 0;
    virtual bool cancelled() const noexcept = 0;

    void barrier(int member, Clock::duration timeout) { all_gather(member, {}, timeout); }

    /// Runs a step that needs no other member, and exchanges how it went: if it failed for one member, throws for all.
    void together(int member, Clock::duration timeout, const std::function<void()>& step);

    /// Returns to all members at the same instant, as far as clocks agree.
    void start_together(int member, Clock::duration timeout);

    /// Runs body(member) on a thread for each member of this process (on this thread if there is one) and waits for
    /// all. If one throws, cancels the others and throws its error.
    void run(const std::function<void(int member)>& body);
};

/// `members` threads of this process.
std::unique_ptr<Team> make_thread_team(int members);

/// One member per MPI process; main() holds a processes::Session. Throws Error in a program built without MPI.
std::unique_ptr<Team> make_mpi_team();

}  // namespace ringlab::gpu
