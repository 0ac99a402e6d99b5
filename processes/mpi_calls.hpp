#pragma once

#include "processes/session.hpp"
#include "processes/waiting.hpp"

#define OMPI_SKIP_MPICXX 1  // the C interface alone: the C++ one is gone from newer MPI libraries
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <thread>

namespace ringlab::processes {

/// What files that call MPI share. MPI may be called by one thread at a time, and the session has one of its own:
/// every call is made by once(), blocking() or wait().

/// A communicator of all processes, whose errors are returned.
MPI_Comm communicator(Session& session);

/// Held during any call of MPI.
std::mutex& mpi_mutex(Session& session);

/// Throws Error with the call and MPI's own text unless `status` is success.
void check(int status, const char* call);

/// A call that does not wait for other processes.
template <class Call>
void once(Session& session, const char* name, Call call) {
    const std::lock_guard lock(mpi_mutex(session));
    check(call(), name);
}

/// A call that waits for other processes, which come to it at the same time; the run ends if they do not.
class Blocking {
public:
    Blocking(Session& session, const char* name);
    ~Blocking();
    Blocking(const Blocking&) = delete;
    Blocking& operator=(const Blocking&) = delete;

private:
    Session& session_;
    std::lock_guard<std::mutex> lock_;
};

template <class Call>
void blocking(Session& session, const char* name, Call call) {
    const Blocking section(session, name);
    check(call(), name);
}

/// Waits for a request; after `limit` in which no other process computed the run ends, as the buffers of the request
/// cannot be given back. `what` ends the sentence "rank 1 has waited 10 s for".
template <class What>
void wait(Session& session, MPI_Request& request, Clock::duration limit, What what) {
    constexpr auto eager = std::chrono::milliseconds(1);
    for (Waiting waiting;;) {
        int done = 0;
        once(session, "MPI_Test", [&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); });
        if (done) return;
        const auto waited = session.others_compute() ? waiting.skip() : waiting.so_far();
        if (waited > limit)
            session.end(fmt::format("rank {} has waited {:.4g} s for {}", session.rank(),
                                    std::chrono::duration<double>(limit).count(), what()));
        if (waited < eager)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

/// Messages are cut into parts, as MPI counts in int: calls start(offset, bytes) for each; an empty message is one
/// empty part.
template <class Start>
void for_each_part(std::size_t bytes, Start start) {
    constexpr std::size_t part_bytes = std::size_t{1} << 30;
    std::size_t offset = 0;
    do {
        const auto part = std::min(part_bytes, bytes - offset);
        start(offset, static_cast<int>(part));
        offset += part;
    } while (offset < bytes);
}

}  // namespace ringlab::processes
