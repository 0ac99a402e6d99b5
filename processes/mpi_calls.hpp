#pragma once

#include "processes/session.hpp"
#include "processes/waiting.hpp"

#define OMPI_SKIP_MPICXX 1  // only the C interface: newer MPI libraries have no C++ interface
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <thread>

namespace ringlab::processes {

/// Helpers of the files that call MPI. Only one thread may call MPI at a time, and the Guardian's thread calls it too.
/// Therefore every call of MPI is made through once(), blocking() or wait(), which hold mpi_mutex().

/// A communicator of all processes. Its calls return errors instead of ending the program.
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

/// Makes a call that all processes make at the same time, and that waits for them. The Guardian ends the run if it
/// takes too long.
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

/// Waits for a request. Time in which another process computes does not count. After `limit` the run ends, because MPI
/// may still use the buffers of the request. what() gives the end of the sentence "rank 1 has waited 10 s for".
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

/// Cuts a message into parts, because MPI counts bytes in an int. Calls start(offset, bytes) for each part; an empty
/// message is one empty part.
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
