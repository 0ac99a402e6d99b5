#include "reference/transport_mpi.hpp"

#define OMPI_SKIP_MPICXX 1  // the C interface alone: the C++ one is gone from newer MPI libraries
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <thread>

namespace ringlab::reference {
namespace {

// Messages are cut into parts, as MPI counts in int.
constexpr std::size_t part_bytes = std::size_t{1} << 30;
constexpr Clock::duration poll_interval = std::chrono::microseconds(20);
constexpr int clock_round_trips = 20;

// Payloads use their own value as tag; these must differ from them.
enum Tag : int { clock_tag = 100, result_tag = 101 };

void check(int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    fail("{} failed: {}", call, std::string_view(text, static_cast<std::size_t>(length)));
}

/// Calls start(offset, bytes) for each part of a message; an empty message is one empty part.
template <class Start>
void for_each_part(std::size_t bytes, Start start) {
    std::size_t offset = 0;
    do {
        const auto part = std::min(part_bytes, bytes - offset);
        start(offset, static_cast<int>(part));
        offset += part;
    } while (offset < bytes);
}

class MpiTransfer : public Transfer {
public:
    struct Part {
        MPI_Request request = MPI_REQUEST_NULL;
        int expected = -1;  // bytes, of a receive
    };

    explicit MpiTransfer(std::string what) : what_(std::move(what)) {}

    Part& add_part(int expected = -1) { return parts_.emplace_back(Part{MPI_REQUEST_NULL, expected}); }

    std::optional<Clock::time_point> ended() override {
        for (; done_ < parts_.size(); ++done_) {
            auto& part = parts_[done_];
            int flag = 0;
            MPI_Status status;
            const int code = MPI_Test(&part.request, &flag, &status);
            if (code != MPI_SUCCESS) fail("{}: {}", what_, reason(code, part));
            if (!flag) return {};
            if (part.expected >= 0) {
                int received = 0;
                check(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
                require(received == part.expected,
                        "{}: the sizes differ: the message has {} bytes, its receiver expects {}", what_, received,
                        part.expected);
            }
        }
        if (!end_) end_ = Clock::now();
        return end_;
    }

private:
    static std::string reason(int code, const Part& part) {
        int error_class = MPI_SUCCESS;
        MPI_Error_class(code, &error_class);
        if (error_class == MPI_ERR_TRUNCATE)
            return fmt::format("the sizes differ: the message has more than the {} bytes its receiver expects",
                               part.expected);
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(code, text, &length);
        return std::string(text, static_cast<std::size_t>(length));
    }

    std::string what_;
    std::vector<Part> parts_;
    std::size_t done_ = 0;
    std::optional<Clock::time_point> end_;
};

class MpiTransport : public Transport {
public:
    MpiTransport(MPI_Comm comm, Clock::duration timeout) : comm_(comm), timeout_(timeout) {
        check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
        check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
        align_clock();
    }

    int rank() const override { return rank_; }
    int size() const { return size_; }

    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, layouts::Payload payload) override {
        return start_send(from, peer, static_cast<int>(payload));
    }

    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, layouts::Payload payload) override {
        return start_receive(into, peer, static_cast<int>(payload));
    }

    std::unique_ptr<MpiTransfer> start_send(std::span<const std::byte> from, int peer, int tag) {
        check_peer(peer);
        auto transfer = std::make_unique<MpiTransfer>(fmt::format("rank {} sends to rank {}", rank_, peer));
        for_each_part(from.size(), [&](std::size_t offset, int bytes) {
            check(MPI_Isend(from.data() + offset, bytes, MPI_BYTE, peer, tag, comm_, &transfer->add_part().request),
                  "MPI_Isend");
        });
        return transfer;
    }

    std::unique_ptr<MpiTransfer> start_receive(std::span<std::byte> into, int peer, int tag) {
        check_peer(peer);
        auto transfer = std::make_unique<MpiTransfer>(fmt::format("rank {} receives from rank {}", rank_, peer));
        for_each_part(into.size(), [&](std::size_t offset, int bytes) {
            check(
                MPI_Irecv(into.data() + offset, bytes, MPI_BYTE, peer, tag, comm_, &transfer->add_part(bytes).request),
                "MPI_Irecv");
        });
        return transfer;
    }

    void expose(std::span<const std::byte> bytes) override {
        // MPI asks for a pointer to non-const memory even where all only read.
        auto* base = const_cast<std::byte*>(bytes.data());
        check(MPI_Win_create(base, static_cast<MPI_Aint>(bytes.size()), 1, MPI_INFO_NULL, comm_, &window_),
              "MPI_Win_create");
        check(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
        check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
        std::vector<std::int64_t> sizes(static_cast<std::size_t>(size_));
        const auto mine = static_cast<std::int64_t>(bytes.size());
        check(MPI_Allgather(&mine, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, comm_), "MPI_Allgather");
        exposed_bytes_.assign(sizes.begin(), sizes.end());
    }

    void withdraw() override {
        barrier("the end of a pass");
        check(MPI_Win_unlock_all(window_), "MPI_Win_unlock_all");
        check(MPI_Win_free(&window_), "MPI_Win_free");
    }

    std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) override {
        check_peer(peer);
        const auto exposed = exposed_bytes_[static_cast<std::size_t>(peer)];
        require(offset <= exposed && into.size() <= exposed - offset,
                "rank {} fetches bytes [{}, {}) of rank {}, which exposes {}", rank_, offset, offset + into.size(),
                peer, exposed);
        auto transfer = std::make_unique<MpiTransfer>(fmt::format("rank {} fetches from rank {}", rank_, peer));
        for_each_part(into.size(), [&](std::size_t at, int bytes) {
            check(MPI_Rget(into.data() + at, bytes, MPI_BYTE, peer, static_cast<MPI_Aint>(offset + at), bytes, MPI_BYTE,
                           window_, &transfer->add_part().request),
                  "MPI_Rget");
        });
        return transfer;
    }

    void wait(Clock::duration limit) override { std::this_thread::sleep_for(std::min(limit, poll_interval)); }

    Clock::time_point start_together() override {
        barrier("the start of a pass");
        // Nobody begins before it has rank 0's instant, so no operation lies before it.
        std::int64_t start = Clock::now().time_since_epoch().count();
        check(MPI_Bcast(&start, 1, MPI_INT64_T, 0, comm_), "MPI_Bcast");
        return Clock::time_point(Clock::duration(start)) - ahead_;
    }

    double clock_uncertainty() const override { return std::chrono::duration<double>(uncertainty_).count(); }

    /// Waits for a transfer, with the time-out.
    void finish(MpiTransfer& transfer, int peer, const char* what) {
        poll_until([&] { return transfer.ended().has_value(); },
                   [&] { return fmt::format("{} with rank {}", what, peer); }, timeout_);
    }

    void barrier(const char* what) {
        // Longer than any other wait: a rank that is stuck in an operation knows more, and is to speak first.
        constexpr int patience = 2;
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
        poll_until(
            [&] {
                int flag = 0;
                check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
                return flag != 0;
            },
            [&] { return fmt::format("the others at a barrier, at {}", what); }, patience * timeout_);
    }

private:
    void check_peer(int peer) const {
        require(0 <= peer && peer < size_, "rank {} has no peer {}; ranks are 0..{}", rank_, peer, size_ - 1);
    }

    template <class Done, class What>
    void poll_until(Done done, What what, Clock::duration limit) {
        const auto deadline = Clock::now() + limit;
        while (!done()) {
            require(Clock::now() < deadline, "rank {} waited {} s for {}", rank_,
                    std::chrono::duration<double>(limit).count(), what());
            std::this_thread::sleep_for(poll_interval);
        }
    }

    /// Rank 0's clock is ahead of this one's by its answer minus the middle of the round trip; the quickest of several
    /// round trips says most.
    void align_clock() {
        const auto now = [] { return Clock::now().time_since_epoch().count(); };
        if (rank_ == 0) {
            for (int peer = 1; peer < size_; ++peer)
                for (int i = 0; i < clock_round_trips; ++i) {
                    std::int64_t time = 0;
                    check(MPI_Recv(&time, 1, MPI_INT64_T, peer, clock_tag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
                    time = now();
                    check(MPI_Send(&time, 1, MPI_INT64_T, peer, clock_tag, comm_), "MPI_Send");
                }
            return;
        }
        auto quickest = std::numeric_limits<std::int64_t>::max();
        for (int i = 0; i < clock_round_trips; ++i) {
            const std::int64_t asked = now();
            check(MPI_Send(&asked, 1, MPI_INT64_T, 0, clock_tag, comm_), "MPI_Send");
            std::int64_t theirs = 0;
            check(MPI_Recv(&theirs, 1, MPI_INT64_T, 0, clock_tag, comm_, MPI_STATUS_IGNORE), "MPI_Recv");
            const auto answered = now();
            if (answered - asked >= quickest) continue;
            quickest = answered - asked;
            ahead_ = Clock::duration(theirs - (asked + quickest / 2));
        }
        uncertainty_ = Clock::duration(quickest / 2);
    }

    MPI_Comm comm_;
    Clock::duration timeout_;
    int rank_ = 0;
    int size_ = 1;
    MPI_Win window_ = MPI_WIN_NULL;
    std::vector<std::size_t> exposed_bytes_;
    Clock::duration ahead_{0};
    Clock::duration uncertainty_{0};
};

[[noreturn]] void abort_all(MPI_Comm comm, const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::fflush(stderr);
    MPI_Abort(comm, 1);
    std::terminate();  // MPI_Abort does not return; the compiler cannot know
}

class MpiWorld : public World {
public:
    explicit MpiWorld(const layouts::RingGroup& group) : World(group) {
        int initialized = 0;
        MPI_Initialized(&initialized);
        require(initialized != 0, "MPI ranks are asked for before MPI was started; main() must hold an MpiSession");
        check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
        check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
        int size = 0;
        check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
        check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
        require(size == group.world(), "{} rings of {} ranks need {} MPI processes (mpirun -np {}); there are {}",
                group.replicas, group.ring, group.world(), group.world(), size);
    }
    ~MpiWorld() override { MPI_Comm_free(&comm_); }

    bool is_root() const override { return rank_ == 0; }

    std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) override {
        try {
            MpiTransport transport(comm_, timeout);
            return collect(transport, body(transport));
        } catch (const std::exception& error) {
            abort_all(comm_, fmt::format("process {} ends the run: {}", rank_, error.what()));
        }
    }

private:
    std::vector<Bytes> collect(MpiTransport& transport, Bytes mine) {
        const auto size_bytes = [](auto& size) { return std::as_writable_bytes(std::span(&size, 1)); };
        if (!is_root()) {
            std::uint64_t size = mine.size();
            transport.finish(*transport.start_send(size_bytes(size), 0, result_tag), 0, "the transfer of results");
            transport.finish(*transport.start_send(mine, 0, result_tag), 0, "the transfer of results");
            return {};
        }
        std::vector<Bytes> results(static_cast<std::size_t>(transport.size()));
        results[0] = std::move(mine);
        for (int peer = 1; peer < transport.size(); ++peer) {
            std::uint64_t size = 0;
            transport.finish(*transport.start_receive(size_bytes(size), peer, result_tag), peer,
                             "the transfer of results");
            auto& theirs = results[static_cast<std::size_t>(peer)];
            theirs.resize(size);
            transport.finish(*transport.start_receive(theirs, peer, result_tag), peer, "the transfer of results");
        }
        return results;
    }

    MPI_Comm comm_ = MPI_COMM_NULL;
    int rank_ = 0;
};

}  // namespace

bool built_with_mpi() { return true; }

MpiSession::MpiSession(int& argc, char**& argv) {
    int provided = 0;
    check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    // Errors of MPI_COMM_WORLD itself are returned too, and so become messages of ours.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiSession::~MpiSession() { MPI_Finalize(); }

int MpiSession::rank() const {
    int rank = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
}

int MpiSession::size() const {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
}

void MpiSession::barrier() const { check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }

void MpiSession::abort(const std::string& message) const { abort_all(MPI_COMM_WORLD, message); }

std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group) { return std::make_unique<MpiWorld>(group); }

}  // namespace ringlab::reference
