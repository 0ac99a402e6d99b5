#pragma once

#include "processes/mpi_calls.hpp"

#include <atomic>
#include <condition_variable>
#include <optional>
#include <vector>

namespace ringlab::processes {

/// Signs of life that all processes exchange with the root, so that the root can name who is gone. The guardian's
/// thread beats; the main thread says what it does.
class Heartbeat {
public:
    /// On a communicator of its own. `mutex` is held during any call of MPI; `interval` lies between two beats.
    Heartbeat(std::mutex& mutex, MPI_Comm comm, Clock::duration interval);
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

    /// Says that this process lives and hears the others, `elapsed` after the last time. Returns who has been silent
    /// for longer than `patience`.
    std::optional<int> beat(Clock::duration elapsed, Clock::duration patience);

    /// This process begins to compute, or is done with it.
    void set_computing(bool computing) { computing_ = computing; }

    /// Whether another one is known to; some beats late.
    bool others_compute() const { return others_compute_; }

    /// Says that this process leaves; returns when all have.
    void leave();

    /// Whether all have said that they leave: the guardian's thread asks.
    bool over() const;

private:
    enum State : int { rests, computes, leaves };

    struct Link {
        int peer = 0;
        int incoming = rests, outgoing = rests;  // buffers
        MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
        Clock::duration silence{};
        int they = rests, we = rests;  // what was heard and said last
        bool sent = false;             // that this process leaves

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
