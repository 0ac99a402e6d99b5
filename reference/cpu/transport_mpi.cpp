#include "reference/cpu/transport_mpi.hpp"

#include "processes/mpi_calls.hpp"

#include <limits>
#include <optional>

namespace ringlab::reference {
namespace {

using processes::blocking;
using processes::check;
using processes::for_each_part;
using processes::once;
using processes::patiently;
using processes::Session;

constexpr Clock::duration poll_interval = std::chrono::microseconds(20);
constexpr int clock_round_trips = 20;

// Channels are tags; these must differ from them.
enum Tag : int { clock_tag = 100, result_tag = 101 };

class MpiTransfer : public Transfer {
public:
    struct Part {
        MPI_Request request = MPI_REQUEST_NULL;
        int expected = -1;  // bytes, of a receive
    };

    MpiTransfer(Session& session, std::string what) : session_(session), what_(std::move(what)) {}

    Part& add_part(int expected = -1) { return parts_.emplace_back(Part{MPI_REQUEST_NULL, expected}); }

    std::optional<Clock::time_point> ended() override {
        for (; done_ < parts_.size(); ++done_) {
            auto& part = parts_[done_];
            int flag = 0, received = 0;
            MPI_Status status;
            const std::lock_guard lock(processes::mpi_mutex(session_));
            const int code = MPI_Test(&part.request, &flag, &status);
            if (code != MPI_SUCCESS) fail("{}: {}", what_, reason(code, part));
            if (!flag) return {};
            if (part.expected >= 0) {
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

    Session& session_;
    std::string what_;
    std::vector<Part> parts_;
    std::size_t done_ = 0;
    std::optional<Clock::time_point> end_;
};

/// By how much rank 0's clock is ahead of this process's, and how wrong that may be.
struct ClockOffset {
    Clock::duration ahead{0}, uncertainty{0};
};

class MpiTransport : public Transport {
public:
    /// Waits for all, however long one is busy with what came before, as long as it lives. Aligns the clocks unless it
    /// is given how they are.
    MpiTransport(Session& session, Clock::duration timeout, std::optional<ClockOffset>& clock)
        : session_(session), timeout_(timeout) {
        finish("the others to come to a run", patiently, "MPI_Ibarrier",
               [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
        if (!clock) clock = align_clock();
        clock_ = *clock;
    }

    int rank() const override { return rank_; }

    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        return start_send(from, peer, channel);
    }

    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        return start_receive(into, peer, channel);
    }

    std::unique_ptr<MpiTransfer> start_send(std::span<const std::byte> from, int peer, int tag) {
        check_peer(peer);
        auto transfer = std::make_unique<MpiTransfer>(session_, fmt::format("rank {} sends to rank {}", rank_, peer));
        for_each_part(from.size(), [&](std::size_t offset, int bytes) {
            auto& part = transfer->add_part();
            once(session_, "MPI_Isend",
                 [&] { return MPI_Isend(from.data() + offset, bytes, MPI_BYTE, peer, tag, comm_, &part.request); });
        });
        return transfer;
    }

    std::unique_ptr<MpiTransfer> start_receive(std::span<std::byte> into, int peer, int tag) {
        check_peer(peer);
        auto transfer =
            std::make_unique<MpiTransfer>(session_, fmt::format("rank {} receives from rank {}", rank_, peer));
        for_each_part(into.size(), [&](std::size_t offset, int bytes) {
            auto& part = transfer->add_part(bytes);
            once(session_, "MPI_Irecv",
                 [&] { return MPI_Irecv(into.data() + offset, bytes, MPI_BYTE, peer, tag, comm_, &part.request); });
        });
        return transfer;
    }

    void expose(std::span<const std::byte> bytes) override {
        barrier("the preparation of a pass");
        exposed_bytes_.assign(static_cast<std::size_t>(size_), 0);
        // Nobody else is there to fetch, and Open MPI 4 has no window for a process alone.
        if (size_ == 1) return;
        // MPI asks for a pointer to non-const memory even where all only read.
        auto* base = const_cast<std::byte*>(bytes.data());
        blocking(session_, "MPI_Win_create", [&] {
            return MPI_Win_create(base, static_cast<MPI_Aint>(bytes.size()), 1, MPI_INFO_NULL, comm_, &window_);
        });
        once(session_, "MPI_Win_set_errhandler", [&] { return MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN); });
        once(session_, "MPI_Win_lock_all", [&] { return MPI_Win_lock_all(MPI_MODE_NOCHECK, window_); });
        const std::uint64_t mine = bytes.size();
        collective("the sizes of what the others expose", "MPI_Iallgather", [&](MPI_Request* request) {
            return MPI_Iallgather(&mine, 1, MPI_UINT64_T, exposed_bytes_.data(), 1, MPI_UINT64_T, comm_, request);
        });
    }

    void withdraw() override {
        barrier("the end of a pass");
        if (size_ == 1) return;
        blocking(session_, "MPI_Win_unlock_all", [&] { return MPI_Win_unlock_all(window_); });
        blocking(session_, "MPI_Win_free", [&] { return MPI_Win_free(&window_); });
    }

    std::unique_ptr<Transfer> fetch(std::span<std::byte> into, int peer, std::size_t offset) override {
        check_peer(peer);
        const auto exposed = exposed_bytes_[static_cast<std::size_t>(peer)];
        require(offset <= exposed && into.size() <= exposed - offset,
                "rank {} fetches bytes [{}, {}) of rank {}, which exposes {}", rank_, offset, offset + into.size(),
                peer, exposed);
        auto transfer =
            std::make_unique<MpiTransfer>(session_, fmt::format("rank {} fetches from rank {}", rank_, peer));
        for_each_part(into.size(), [&](std::size_t at, int bytes) {
            auto& part = transfer->add_part();
            once(session_, "MPI_Rget", [&] {
                return MPI_Rget(into.data() + at, bytes, MPI_BYTE, peer, static_cast<MPI_Aint>(offset + at), bytes,
                                MPI_BYTE, window_, &part.request);
            });
        });
        return transfer;
    }

    void wait(Clock::duration limit) override { std::this_thread::sleep_for(std::min(limit, poll_interval)); }

    Clock::time_point start_together() override {
        barrier("the start of a pass");
        // Nobody begins before it has rank 0's instant, so no operation lies before it.
        std::int64_t start = Clock::now().time_since_epoch().count();
        collective("the start of a pass", "MPI_Ibcast",
                   [&](MPI_Request* request) { return MPI_Ibcast(&start, 1, MPI_INT64_T, 0, comm_, request); });
        return Clock::time_point(Clock::duration(start)) - clock_.ahead;
    }

    double clock_uncertainty() const override { return std::chrono::duration<double>(clock_.uncertainty).count(); }

    /// Sends to or receives from one peer, and waits until that has ended.
    void send_now(std::span<const std::byte> from, int peer, int tag, Clock::duration limit) {
        for_each_part(from.size(), [&](std::size_t offset, int bytes) {
            finish(fmt::format("its message to rank {} to be taken", peer), limit, "MPI_Isend", [&](MPI_Request* r) {
                return MPI_Isend(from.data() + offset, bytes, MPI_BYTE, peer, tag, comm_, r);
            });
        });
    }
    void receive_now(std::span<std::byte> into, int peer, int tag, Clock::duration limit) {
        for_each_part(into.size(), [&](std::size_t offset, int bytes) {
            finish(fmt::format("a message from rank {}", peer), limit, "MPI_Irecv", [&](MPI_Request* r) {
                return MPI_Irecv(into.data() + offset, bytes, MPI_BYTE, peer, tag, comm_, r);
            });
        });
    }

private:
    void check_peer(int peer) const {
        require(0 <= peer && peer < size_, "rank {} has no peer {}; ranks are 0..{}", rank_, peer, size_ - 1);
    }

    template <class Start>
    void finish(const std::string& what, Clock::duration limit, const char* call, Start start) {
        MPI_Request request = MPI_REQUEST_NULL;
        once(session_, call, [&] { return start(&request); });
        processes::wait(session_, request, limit, [&] { return what; });
    }

    /// Longer than any other wait: a rank that is stuck in an operation knows more, and is to speak first.
    template <class Start>
    void collective(const char* what, const char* call, Start start) {
        finish(fmt::format("the others, at {}", what), 2 * timeout_, call, start);
    }

    void barrier(const char* what) {
        collective(what, "MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
    }

    /// Rank 0's clock is ahead of this one's by its answer minus the middle of the round trip; the quickest of several
    /// round trips says most.
    ClockOffset align_clock() {
        const auto now = [] { return Clock::now().time_since_epoch().count(); };
        const auto bytes = [](auto& time) { return std::as_writable_bytes(std::span(&time, 1)); };
        ClockOffset offset;
        if (rank_ == 0) {
            for (int peer = 1; peer < size_; ++peer)
                for (int i = 0; i < clock_round_trips; ++i) {
                    std::int64_t time = 0;
                    receive_now(bytes(time), peer, clock_tag, timeout_);
                    time = now();
                    send_now(bytes(time), peer, clock_tag, timeout_);
                }
            return offset;
        }
        auto quickest = std::numeric_limits<std::int64_t>::max();
        for (int i = 0; i < clock_round_trips; ++i) {
            std::int64_t asked = now(), theirs = 0;
            send_now(bytes(asked), 0, clock_tag, patiently);
            receive_now(bytes(theirs), 0, clock_tag, patiently);
            const auto answered = now();
            if (answered - asked >= quickest) continue;
            quickest = answered - asked;
            offset = {Clock::duration(theirs - (asked + quickest / 2)), Clock::duration(quickest / 2)};
        }
        return offset;
    }

    Session& session_;
    const Clock::duration timeout_;
    const MPI_Comm comm_ = processes::communicator(session_);
    const int rank_ = session_.rank();
    const int size_ = session_.size();
    MPI_Win window_ = MPI_WIN_NULL;
    std::vector<std::uint64_t> exposed_bytes_;
    ClockOffset clock_;
};

class MpiWorld : public World {
public:
    explicit MpiWorld(const layouts::RingGroup& group) : World(group), session_(Session::current()) {
        const int size = session_.size();
        require(size == group.world(), "{} rings of {} ranks need {} MPI processes (mpirun -np {}); there are {}",
                group.replicas, group.ring, group.world(), group.world(), size);
    }

    bool is_root() const override { return session_.rank() == 0; }

    bool agree(bool root_says) override {
        int says = root_says;
        MPI_Request request = MPI_REQUEST_NULL;
        once(session_, "MPI_Ibcast",
             [&] { return MPI_Ibcast(&says, 1, MPI_INT, 0, processes::communicator(session_), &request); });
        processes::wait(session_, request, patiently, [] { return "rank 0 to say how to go on"; });
        return says != 0;
    }

    std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) override {
        try {
            MpiTransport transport(session_, timeout, clock_);
            return collect(transport, body(transport), timeout);
        } catch (const std::exception& error) {
            session_.end(fmt::format("process {} ends the run: {}", session_.rank(), error.what()));
        }
    }

private:
    std::vector<Bytes> collect(MpiTransport& transport, Bytes mine, Clock::duration timeout) const {
        const auto size_bytes = [](auto& size) { return std::as_writable_bytes(std::span(&size, 1)); };
        // All have come to the end of the last pass.
        if (!is_root()) {
            std::uint64_t size = mine.size();
            transport.send_now(size_bytes(size), 0, result_tag, timeout);
            transport.send_now(mine, 0, result_tag, timeout);
            return {};
        }
        std::vector<Bytes> results(static_cast<std::size_t>(session_.size()));
        results[0] = std::move(mine);
        for (int peer = 1; peer < session_.size(); ++peer) {
            std::uint64_t size = 0;
            transport.receive_now(size_bytes(size), peer, result_tag, timeout);
            auto& theirs = results[static_cast<std::size_t>(peer)];
            theirs.resize(size);
            transport.receive_now(theirs, peer, result_tag, timeout);
        }
        return results;
    }

    Session& session_;
    std::optional<ClockOffset> clock_;  // from the first run on
};

}  // namespace

std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group) { return std::make_unique<MpiWorld>(group); }

}  // namespace ringlab::reference
