#include "processes/mpi_calls.hpp"
#include "processes/peers.hpp"

#include <cstdint>
#include <limits>
#include <numeric>

namespace ringlab::processes {
namespace {

constexpr int clock_round_trips = 50;

// Messages of others have tags of their own, from 0 on.
enum Tag : int { clock_tag = 30000, size_tag, bytes_tag };

template <class Value>
std::span<std::byte> bytes_of(Value& value) {
    return std::as_writable_bytes(std::span(&value, 1));
}

template <class Start>
void finish(Session& session, const std::string& what, Clock::duration limit, const char* call, Start start) {
    MPI_Request request = MPI_REQUEST_NULL;
    once(session, call, [&] { return start(communicator(session), &request); });
    wait(session, request, limit, [&] { return what; });
}

}  // namespace

void Peers::barrier(const char* what, Clock::duration limit) {
    finish(session_, what, limit, "MPI_Ibarrier", MPI_Ibarrier);
}

std::vector<Bytes> Peers::all_gather(const Bytes& bytes, Clock::duration limit) {
    constexpr std::uint64_t most = std::numeric_limits<int>::max();  // MPI counts in int
    const std::uint64_t mine = bytes.size();
    std::vector<std::uint64_t> sizes(static_cast<std::size_t>(session_.size()));
    finish(session_, "the other processes", limit, "MPI_Iallgather", [&](MPI_Comm comm, MPI_Request* request) {
        return MPI_Iallgather(&mine, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, comm, request);
    });
    const auto total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    require(total <= most, "the processes have {} bytes to tell each other at once; MPI can move {}", total, most);
    std::vector<int> counts(sizes.begin(), sizes.end()), begins(sizes.size(), 0);
    std::partial_sum(counts.begin(), counts.end() - 1, begins.begin() + 1);
    Bytes all(total);
    finish(session_, "the other processes", limit, "MPI_Iallgatherv", [&](MPI_Comm comm, MPI_Request* request) {
        return MPI_Iallgatherv(bytes.data(), static_cast<int>(mine), MPI_BYTE, all.data(), counts.data(), begins.data(),
                               MPI_BYTE, comm, request);
    });
    std::vector<Bytes> split;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        split.emplace_back(all.begin() + begins[i], all.begin() + begins[i] + counts[i]);
    return split;
}

std::vector<Bytes> Peers::gather_to_root(Bytes bytes, Clock::duration limit) {
    std::uint64_t count = bytes.size();
    if (session_.rank() != 0) {
        send(bytes_of(count), 0, size_tag, limit);
        send(bytes, 0, bytes_tag, limit);
        return {};
    }
    std::vector<Bytes> all{std::move(bytes)};
    for (int peer = 1; peer < session_.size(); ++peer) {
        receive(bytes_of(count), peer, size_tag, limit);
        receive(all.emplace_back(static_cast<std::size_t>(count)), peer, bytes_tag, limit);
    }
    return all;
}

std::int64_t Peers::broadcast(std::int64_t root_says, const char* what, Clock::duration limit) {
    finish(session_, what, limit, "MPI_Ibcast", [&](MPI_Comm comm, MPI_Request* request) {
        return MPI_Ibcast(&root_says, 1, MPI_INT64_T, 0, comm, request);
    });
    return root_says;
}

ClockOffset Peers::align_clock() {
    const auto now = [] { return Clock::now().time_since_epoch().count(); };
    ClockOffset offset;
    std::int64_t time = 0;
    if (session_.rank() == 0) {
        for (int peer = 1; peer < session_.size(); ++peer)
            for (int i = 0; i < clock_round_trips; ++i) {
                receive(bytes_of(time), peer, clock_tag, patiently);
                time = now();
                send(bytes_of(time), peer, clock_tag, patiently);
            }
        return offset;
    }
    auto quickest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < clock_round_trips; ++i) {
        const auto asked = now();
        send(bytes_of(time), 0, clock_tag, patiently);
        receive(bytes_of(time), 0, clock_tag, patiently);
        const auto round_trip = now() - asked;
        if (round_trip >= quickest) continue;
        quickest = round_trip;
        offset = {Clock::duration(time - (asked + quickest / 2)), Clock::duration(quickest / 2)};
    }
    return offset;
}

void Peers::send(std::span<const std::byte> bytes, int peer, int tag, Clock::duration limit) {
    for_each_part(bytes.size(), [&](std::size_t offset, int count) {
        finish(session_, fmt::format("rank {} to take a message", peer), limit, "MPI_Isend",
               [&](MPI_Comm comm, MPI_Request* request) {
                   return MPI_Isend(bytes.data() + offset, count, MPI_BYTE, peer, tag, comm, request);
               });
    });
}

void Peers::receive(std::span<std::byte> bytes, int peer, int tag, Clock::duration limit) {
    for_each_part(bytes.size(), [&](std::size_t offset, int count) {
        finish(session_, fmt::format("a message from rank {}", peer), limit, "MPI_Irecv",
               [&](MPI_Comm comm, MPI_Request* request) {
                   return MPI_Irecv(bytes.data() + offset, count, MPI_BYTE, peer, tag, comm, request);
               });
    });
}

}  // namespace ringlab::processes
