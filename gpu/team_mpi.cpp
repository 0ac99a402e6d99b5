#include "gpu/team.hpp"

#include "processes/mpi_calls.hpp"

#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>

namespace ringlab::gpu {
namespace {

using processes::for_each_part;
using processes::once;
using processes::patiently;
using processes::Session;

constexpr int clock_round_trips = 50;
enum Tag : int { clock_tag = 200, size_tag = 201, bytes_tag = 202 };

class MpiTeam : public Team {
public:
    MpiTeam() { align_clock(); }

    int size() const override { return size_; }
    int first_local() const override { return rank_; }
    int local_size() const override { return 1; }

    std::vector<Bytes> all_gather(int, Bytes bytes, Clock::duration timeout) override {
        constexpr std::uint64_t most = std::numeric_limits<int>::max();  // MPI counts in int
        const std::uint64_t mine = bytes.size();
        std::vector<std::uint64_t> sizes(static_cast<std::size_t>(size_));
        finish("MPI_Iallgather", "the other processes", timeout, [&](MPI_Request* request) {
            return MPI_Iallgather(&mine, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, comm_, request);
        });
        const auto total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
        require(total <= most, "the processes have {} bytes to tell each other at once; MPI can move {}", total, most);
        std::vector<int> counts(sizes.begin(), sizes.end()), begins(sizes.size(), 0);
        std::partial_sum(counts.begin(), counts.end() - 1, begins.begin() + 1);
        Bytes all(total);
        finish("MPI_Iallgatherv", "the other processes", timeout, [&](MPI_Request* request) {
            return MPI_Iallgatherv(bytes.data(), static_cast<int>(mine), MPI_BYTE, all.data(), counts.data(),
                                   begins.data(), MPI_BYTE, comm_, request);
        });
        std::vector<Bytes> split;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            split.emplace_back(all.begin() + begins[i], all.begin() + begins[i] + counts[i]);
        return split;
    }

    std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration timeout) override {
        std::uint64_t count = bytes.size();
        if (rank_ != 0) {
            send(&count, sizeof(count), 0, size_tag, timeout);
            send(bytes.data(), bytes.size(), 0, bytes_tag, timeout);
            return {};
        }
        std::vector<Bytes> all{std::move(bytes)};
        for (int peer = 1; peer < size_; ++peer) {
            receive(&count, sizeof(count), peer, size_tag, timeout);
            auto& from_peer = all.emplace_back(static_cast<std::size_t>(count));
            receive(from_peer.data(), from_peer.size(), peer, bytes_tag, timeout);
        }
        return all;
    }

    bool agree(bool root_says) override {
        int says = root_says;
        finish("MPI_Ibcast", "rank 0 to say how to go on", patiently,
               [&](MPI_Request* request) { return MPI_Ibcast(&says, 1, MPI_INT, 0, comm_, request); });
        return says != 0;
    }

    void give_up(const std::string& why) override { session_.end(why); }

    Clock::duration clock_offset() const override { return offset_; }
    Clock::duration clock_uncertainty() const override { return uncertainty_; }

    void cancel() noexcept override { cancelled_ = true; }
    bool cancelled() const noexcept override { return cancelled_; }

private:
    template <class Start>
    void finish(const char* call, const std::string& what, Clock::duration timeout, Start start) {
        MPI_Request request = MPI_REQUEST_NULL;
        once(session_, call, [&] { return start(&request); });
        processes::wait(session_, request, timeout, [&] { return what; });
    }

    void send(const void* data, std::size_t bytes, int peer, int tag, Clock::duration timeout) {
        for_each_part(bytes, [&](std::size_t offset, int count) {
            finish("MPI_Isend", fmt::format("rank {} to take a message", peer), timeout, [&](MPI_Request* request) {
                return MPI_Isend(static_cast<const char*>(data) + offset, count, MPI_BYTE, peer, tag, comm_, request);
            });
        });
    }

    void receive(void* data, std::size_t bytes, int peer, int tag, Clock::duration timeout) {
        for_each_part(bytes, [&](std::size_t offset, int count) {
            finish("MPI_Irecv", fmt::format("a message from rank {}", peer), timeout, [&](MPI_Request* request) {
                return MPI_Irecv(static_cast<char*>(data) + offset, count, MPI_BYTE, peer, tag, comm_, request);
            });
        });
    }

    /// The root answers each process's message with its time; half of the shortest round trip is the uncertainty. The
    /// others wait here while the root is busy with what came before.
    void align_clock() {
        for (int peer = 1; peer < size_; ++peer) {
            if (rank_ != 0 && rank_ != peer) continue;
            auto shortest = Clock::duration::max();
            for (int i = 0; i < clock_round_trips; ++i) {
                std::int64_t time = 0;
                if (rank_ == 0) {
                    receive(&time, sizeof(time), peer, clock_tag, patiently);
                    time = Clock::now().time_since_epoch().count();
                    send(&time, sizeof(time), peer, clock_tag, patiently);
                    continue;
                }
                const auto sent = Clock::now();
                send(&time, sizeof(time), 0, clock_tag, patiently);
                receive(&time, sizeof(time), 0, clock_tag, patiently);
                const auto round_trip = Clock::now() - sent;
                if (round_trip >= shortest) continue;
                shortest = round_trip;
                offset_ = Clock::duration(time) - (sent + round_trip / 2).time_since_epoch();
                uncertainty_ = round_trip / 2;
            }
        }
    }

    Session& session_ = Session::current();
    const MPI_Comm comm_ = processes::communicator(session_);
    const int rank_ = session_.rank(), size_ = session_.size();
    Clock::duration offset_{}, uncertainty_{};
    std::atomic<bool> cancelled_ = false;
};

}  // namespace

std::unique_ptr<Team> make_mpi_team() { return std::make_unique<MpiTeam>(); }

}  // namespace ringlab::gpu
