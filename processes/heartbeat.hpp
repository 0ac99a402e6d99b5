#pragma once

#include "processes/mpi_calls.hpp"

#include <atomic>
#include <condition_variable>
#include <optional>
#include <vector>

namespace ringlab::processes {

/// Heartbeats that every process exchanges with process 0, so that each can say which process is gone. The thread of
/// the Guardian calls beat(); the main thread calls set_computing() and leave().
class Heartbeat {
public:
    /// `comm` must be used for nothing else. `mutex` is held during any call of MPI. beat() is called every `interval`.
    Heartbeat(std::mutex& mutex, MPI_Comm comm, Clock::duration interval);
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

    /// Sends and receives heartbeats, `elapsed` after the call before. Returns the rank of a process that has sent none
    /// for longer than `patience`, if there is one.
    std::optional<int> beat(Clock::duration elapsed, Clock::duration patience);

    /// Tells the others that this process computes, or that it no longer does.
    void set_computing(bool computing) { computing_ = computing; }

    /// Whether another process computes, as far as is known: the answer is some heartbeats old.
    bool others_compute() const { return others_compute_; }

    /// Tells the others that this process will end, and waits until all have said so.
    void leave();

    /// Whether all have said that they will end. For the thread of the Guardian.
    bool over() const;

private:
    enum State : int { rests, computes, leaves };

    struct Link {
        int peer = 0;
        int incoming = rests, outgoing = rests;  // buffers
        MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
        Clock::duration silence{};
        int they = rests, we = rests;  // states last received and last sent
        bool sent = false;             // the state `leaves` was sent

        bool over() const { return they == leaves && sent; }
    };

    void exchange(Link& link);
    State state_for(const Link& link) const;

    std::mutex& mutex_;
    const MPI_Comm comm_;
    int rank_ = 0;
    const Clock::duration interval_;
    std::vector<Link> links_;
    std::atomic<bool> computing_ = false, others_compute_ = false;
    mutable std::mutex leave_mutex_;
    std::condition_variable left_;
    bool may_leave_ = false, all_left_ = false;
};

}  // namespace ringlab::processes
