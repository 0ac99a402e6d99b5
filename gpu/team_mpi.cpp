#include "gpu/team.hpp"

#define OMPI_SKIP_MPICXX 1  // the C interface alone: the C++ one is gone from newer MPI libraries
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

namespace ringlab::gpu {
namespace {

// MPI counts in int: longer messages go in parts.
constexpr std::size_t part_bytes = std::size_t{1} << 30;
constexpr int clock_round_trips = 50;
enum Tag : int { clock_tag = 200, size_tag = 201, bytes_tag = 202 };

void check(int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    fail("{} failed: {}", call, std::string_view(text, static_cast<std::size_t>(length)));
}

class MpiTeam : public Team {
public:
    MpiTeam(int* argc, char*** argv) {
        int running = 0;
        check(MPI_Initialized(&running), "MPI_Initialized");
        if (!running) {
            int provided = 0;
            check(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
            owns_session_ = true;
        }
        check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
        check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
        check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
        check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
        align_clock();
    }

    ~MpiTeam() override {
        // After a failure the others may never come: main() ends all processes by abort_mpi().
        if (cancelled_) return;
        MPI_Comm_free(&comm_);
        if (owns_session_) MPI_Finalize();
    }

    int size() const override { return size_; }
    int first_local() const override { return rank_; }
    int local_size() const override { return 1; }

    std::vector<Bytes> all_gather(int, Bytes bytes, Clock::duration timeout) override {
        int mine = static_cast<int>(bytes.size());
        std::vector<int> sizes(static_cast<std::size_t>(size_)), begins;
        MPI_Request request;
        check(MPI_Iallgather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_, &request), "MPI_Iallgather");
        wait(request, timeout);
        int total = 0;
        for (const int size : sizes) {
            begins.push_back(total);
            total += size;
        }
        Bytes all(static_cast<std::size_t>(total));
        check(MPI_Iallgatherv(bytes.data(), mine, MPI_BYTE, all.data(), sizes.data(), begins.data(), MPI_BYTE, comm_,
                              &request),
              "MPI_Iallgatherv");
        wait(request, timeout);
        std::vector<Bytes> split;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            split.emplace_back(all.begin() + begins[i], all.begin() + begins[i] + sizes[i]);
        return split;
    }

    std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration timeout) override {
        MPI_Request request;
        unsigned long long count = bytes.size();
        if (rank_ != 0) {
            check(MPI_Isend(&count, 1, MPI_UNSIGNED_LONG_LONG, 0, size_tag, comm_, &request), "MPI_Isend");
            wait(request, timeout);
            for (std::size_t begin = 0; begin < bytes.size(); begin += part_bytes) {
                const auto part = static_cast<int>(std::min(part_bytes, bytes.size() - begin));
                check(MPI_Isend(bytes.data() + begin, part, MPI_BYTE, 0, bytes_tag, comm_, &request), "MPI_Isend");
                wait(request, timeout);
            }
            return {};
        }
        std::vector<Bytes> all{std::move(bytes)};
        for (int peer = 1; peer < size_; ++peer) {
            check(MPI_Irecv(&count, 1, MPI_UNSIGNED_LONG_LONG, peer, size_tag, comm_, &request), "MPI_Irecv");
            wait(request, timeout);
            auto& from_peer = all.emplace_back(static_cast<std::size_t>(count));
            for (std::size_t begin = 0; begin < from_peer.size(); begin += part_bytes) {
                const auto part = static_cast<int>(std::min(part_bytes, from_peer.size() - begin));
                check(MPI_Irecv(from_peer.data() + begin, part, MPI_BYTE, peer, bytes_tag, comm_, &request),
                      "MPI_Irecv");
                wait(request, timeout);
            }
        }
        return all;
    }

    Clock::duration clock_offset() const override { return offset_; }
    Clock::duration clock_uncertainty() const override { return uncertainty_; }

    void cancel() noexcept override { cancelled_ = true; }
    bool cancelled() const noexcept override { return cancelled_; }

private:
    /// A process that has died or hangs must not take this one with it.
    void wait(MPI_Request& request, Clock::duration timeout) const {
        const auto begin = Clock::now();
        int done = 0;
        while (true) {
            check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done) return;
            require(Clock::now() - begin < timeout, "process {} has waited {} s for the other processes", rank_,
                    std::chrono::duration<double>(timeout).count());
            if (Clock::now() - begin > std::chrono::milliseconds(1))
                std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

    /// The root answers each process's message with its time; half of the shortest round trip is the uncertainty.
    void align_clock() {
        for (int peer = 1; peer < size_; ++peer) {
            if (rank_ != 0 && rank_ != peer) continue;
            auto shortest = Clock::duration::max();
            for (int i = 0; i < clock_round_trips; ++i) {
                long long time = 0;
                if (rank_ == 0) {
                    check(MPI_Recv(nullptr, 0, MPI_BYTE, peer, clock_tag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
                    time = Clock::now().time_since_epoch().count();
                    check(MPI_Send(&time, 1, MPI_LONG_LONG, peer, clock_tag, comm_), "MPI_Send");
                } else {
                    const auto sent = Clock::now();
                    check(MPI_Send(nullptr, 0, MPI_BYTE, 0, clock_tag, comm_), "MPI_Send");
                    check(MPI_Recv(&time, 1, MPI_LONG_LONG, 0, clock_tag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
                    const auto round_trip = Clock::now() - sent;
                    if (round_trip >= shortest) continue;
                    shortest = round_trip;
                    offset_ = Clock::duration(time) - (sent + round_trip / 2).time_since_epoch();
                    uncertainty_ = round_trip / 2;
                }
            }
        }
    }

    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0, size_ = 1;
    bool owns_session_ = false;
    Clock::duration offset_{}, uncertainty_{};
    std::atomic<bool> cancelled_ = false;
};

}  // namespace

std::unique_ptr<Team> make_mpi_team(int* argc, char*** argv) { return std::make_unique<MpiTeam>(argc, argv); }

void abort_mpi(const std::string& message) {
    int running = 0, ended = 0;
    MPI_Initialized(&running);
    MPI_Finalized(&ended);
    if (!running || ended) return;
    std::fprintf(stderr, "%s\n", message.c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int mpi_rank_on_host() {
    MPI_Comm host = MPI_COMM_NULL;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "MPI_Comm_split_type");
    int rank = 0;
    check(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
    check(MPI_Comm_free(&host), "MPI_Comm_free");
    return rank;
}

}  // namespace ringlab::gpu
