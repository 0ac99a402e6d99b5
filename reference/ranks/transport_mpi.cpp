#include "reference/ranks/transport.hpp"

#include "processes/mpi_calls.hpp"
#include "processes/peers.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace ringlab::reference {
namespace {

using processes::blocking;
using processes::check;
using processes::ClockOffset;
using processes::for_each_part;
using processes::once;
using processes::patiently;
using processes::Peers;
using processes::Session;

constexpr Clock::duration poll_interval = std::chrono::microseconds(20);
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

class MpiTransport : public Transport {
public:
    /// Waits for all processes, as long as they live, however long one is still busy. Aligns the clocks unless `clock`
    /// is given.
    MpiTransport(Session& session, Clock::duration timeout, std::optional<ClockOffset>& clock)
        : session_(session), timeout_(timeout) {
        peers_.barrier("the others to come to a run", patiently);
        if (!clock) clock = peers_.align_clock();
        clock_ = *clock;
    }

    int rank() const override { return rank_; }

    // The channel is the MPI tag.
    std::unique_ptr<Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        check_peer(peer);
        auto transfer = std::make_unique<MpiTransfer>(session_, fmt::format("rank {} sends to rank {}", rank_, peer));
        for_each_part(from.size(), [&](std::size_t offset, int bytes) {
            auto& part = transfer->add_part();
            once(session_, "MPI_Isend",
                 [&] { return MPI_Isend(from.data() + offset, bytes, MPI_BYTE, peer, channel, comm_, &part.request); });
        });
        return transfer;
    }

    std::unique_ptr<Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        check_peer(peer);
        auto transfer =
            std::make_unique<MpiTransfer>(session_, fmt::format("rank {} receives from rank {}", rank_, peer));
        for_each_part(into.size(), [&](std::size_t offset, int bytes) {
            auto& part = transfer->add_part(bytes);
            once(session_, "MPI_Irecv",
                 [&] { return MPI_Irecv(into.data() + offset, bytes, MPI_BYTE, peer, channel, comm_, &part.request); });
        });
        return transfer;
    }

    void expose(std::span<const std::byte> bytes) override {
        exposed_bytes_ = sizes_of_all(bytes.size());
        if (!has_window()) return;
        // MPI requires a pointer to non-const memory even if all ranks only read.
        auto* base = const_cast<std::byte*>(bytes.data());
        try {
            blocking(session_, "MPI_Win_create", [&] {
                return MPI_Win_create(base, static_cast<MPI_Aint>(bytes.size()), 1, MPI_INFO_NULL, comm_, &window_);
            });
        } catch (const Error& error) {
            fail(
                "{}: with this MPI, ranks cannot read each other's memory here. With Open MPI 4 over TCP, set "
                "OMPI_MCA_osc=pt2pt in the environment; or choose a schedule whose ranks send, such as ring",
                error.what());
        }
        once(session_, "MPI_Win_set_errhandler", [&] { return MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN); });
        once(session_, "MPI_Win_lock_all", [&] { return MPI_Win_lock_all(MPI_MODE_NOCHECK, window_); });
    }

    void withdraw() override {
        peers_.barrier("the others, at the end of a pass", barrier_limit());
        if (!has_window()) return;
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

    void set_computing(bool computing) override { session_.set_computing(computing); }
    bool others_compute() const override { return session_.others_compute(); }

    Clock::time_point start_together() override {
        constexpr const char* what = "the others, at the start of a pass";
        peers_.barrier(what, barrier_limit());
        // No rank returns before it has received rank 0's instant, so no operation begins before that instant.
        const auto start = peers_.broadcast(Clock::now().time_since_epoch().count(), what, barrier_limit());
        return Clock::time_point(Clock::duration(start)) - clock_.ahead;
    }

    double clock_uncertainty() const override { return std::chrono::duration<double>(clock_.uncertainty).count(); }

private:
    void check_peer(int peer) const {
        require(0 <= peer && peer < size_, "rank {} has no peer {}; ranks are 0..{}", rank_, peer, size_ - 1);
    }

    /// Windows are made only if a rank exposes something and there is another rank to fetch it, because Open MPI 4 has
    /// no windows for a single process, nor over every network.
    bool has_window() const {
        return size_ > 1 && std::ranges::any_of(exposed_bytes_, [](auto bytes) { return bytes > 0; });
    }

    /// Longer than any other wait, so that a rank that is stuck in an operation reports first; it knows more.
    Clock::duration barrier_limit() const { return 2 * timeout_; }

    /// Returns when all ranks have called it.
    std::vector<std::uint64_t> sizes_of_all(std::uint64_t mine) {
        Bytes bytes(sizeof(mine));
        std::memcpy(bytes.data(), &mine, sizeof(mine));
        std::vector<std::uint64_t> sizes;
        for (const auto& theirs : peers_.all_gather(bytes, barrier_limit()))
            std::memcpy(&sizes.emplace_back(), theirs.data(), sizeof(mine));
        return sizes;
    }

    Session& session_;
    Peers peers_{session_};
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

    bool agree(bool root_says) override { return Peers(session_).agree(root_says); }

    std::vector<Bytes> run(Clock::duration timeout, const std::function<Bytes(Transport&)>& body) override {
        try {
            MpiTransport transport(session_, timeout, clock_);
            // All ranks have reached the end of the last pass.
            return Peers(session_).gather_to_root(body(transport), timeout);
        } catch (const std::exception& error) {
            session_.end(fmt::format("process {} ends the run: {}", session_.rank(), error.what()));
        }
    }

private:
    Session& session_;
    std::optional<ClockOffset> clock_;  // from the first run on
};

}  // namespace

std::unique_ptr<World> make_mpi_world(const layouts::RingGroup& group) { return std::make_unique<MpiWorld>(group); }

}  // namespace ringlab::reference
