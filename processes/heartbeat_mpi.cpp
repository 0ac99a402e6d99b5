#include "processes/heartbeat.hpp"

namespace ringlab::processes {

Heartbeat::Heartbeat(std::mutex& mutex, MPI_Comm comm, Clock::duration interval)
    : mutex_(mutex), comm_(comm), interval_(interval) {
    const std::lock_guard lock(mutex_);
    int size = 1;
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
    if (rank_ != 0) links_.push_back({.peer = 0});
    for (int peer = 1; rank_ == 0 && peer < size; ++peer) links_.push_back({.peer = peer});
    for (auto& link : links_)
        check(MPI_Irecv(&link.incoming, 1, MPI_INT, link.peer, 0, comm_, &link.receive), "MPI_Irecv");
}

std::optional<int> Heartbeat::beat(Clock::duration elapsed, Clock::duration patience) {
    // While the main thread waits, it takes the mutex for one short call of MPI after another, so a few attempts are
    // enough. It holds the mutex longer only in calls that the Guardian watches.
    for (int attempt = 0; attempt < 20; ++attempt) {
        const std::unique_lock lock(mutex_, std::try_to_lock);
        if (lock) {
            for (auto& link : links_) exchange(link);
            break;
        }
        std::this_thread::yield();
    }
    for (auto& link : links_) {
        link.silence += elapsed;
        if (link.they != leaves && link.silence > patience) return link.peer;
    }
    others_compute_ = std::ranges::any_of(links_, [](const Link& link) { return link.they == computes; });
    if (over()) {
        const std::lock_guard lock(leave_mutex_);
        all_left_ = true;
        left_.notify_all();
    }
    return {};
}

void Heartbeat::exchange(Link& link) {
    for (int done = 0; link.they != leaves; done = 0) {
        MPI_Test(&link.receive, &done, MPI_STATUS_IGNORE);
        if (!done) break;
        link.silence = -interval_;  // the interval that has just passed is added to it
        link.they = link.incoming;
        if (link.they != leaves) MPI_Irecv(&link.incoming, 1, MPI_INT, link.peer, 0, comm_, &link.receive);
    }
    int done = 0;
    MPI_Test(&link.send, &done, MPI_STATUS_IGNORE);
    if (!done) return;
    link.sent = link.we == leaves;
    if (link.sent) return;
    link.outgoing = link.we = state_for(link);
    MPI_Isend(&link.outgoing, 1, MPI_INT, link.peer, 0, comm_, &link.send);
}

/// Process 0 speaks for all others too: it says that it computes if any other one does. It leaves last, so that it can
/// receive the states of all others until then.
Heartbeat::State Heartbeat::state_for(const Link& link) const {
    const auto left = [](const Link& other) { return other.they == leaves; };
    const auto working = [&](const Link& other) { return &other != &link && other.they == computes; };
    const std::lock_guard lock(leave_mutex_);
    if (may_leave_ && (rank_ != 0 || std::ranges::all_of(links_, left))) return leaves;
    return computing_ || std::ranges::any_of(links_, working) ? computes : rests;
}

void Heartbeat::leave() {
    if (links_.empty()) return;
    std::unique_lock lock(leave_mutex_);
    may_leave_ = true;
    left_.wait(lock, [&] { return all_left_; });
}

bool Heartbeat::over() const { return std::ranges::all_of(links_, &Link::over); }

}  // namespace ringlab::processes
