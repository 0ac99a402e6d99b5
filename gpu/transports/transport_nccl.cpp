#include "gpu/device/cuda_handles.hpp"
#include "gpu/transports/nccl_communicators.hpp"
#include "gpu/transports/transport.hpp"
#include "processes/peers.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace ringlab::gpu {
namespace {

/// Memory that a communicator may move to and from directly, without its own buffers in between.
class Registration {
public:
    Registration(ncclComm_t comm, void* memory, std::size_t bytes) : comm_(comm) {
        RINGLAB_NCCL(ncclCommRegister(comm, memory, bytes, &handle_));
    }
    Registration(Registration&& other) noexcept : comm_(other.comm_), handle_(std::exchange(other.handle_, nullptr)) {}
    Registration& operator=(Registration&&) = delete;
    ~Registration() {
        if (handle_) ncclCommDeregister(comm_, handle_);
    }

    void forget() { handle_ = nullptr; }  // aborted communicators take their registrations with them

private:
    ncclComm_t comm_;
    void* handle_ = nullptr;
};

class NcclTransport : public Transport {
public:
    NcclTransport(Team& team, const FabricOptions& options, const Routes& routes, const JoiningRank& joining)
        : patience_{team, options.timeout},
          rank_(joining.rank),
          ranks_(options.group.world()),
          device_(joining.device) {
        const auto host = host_name();
        const auto* const bytes = reinterpret_cast<const std::byte*>(host.data());
        hosts_ = team.all_gather(joining.member, {bytes, bytes + host.size()}, options.timeout);
        std::set<NcclColour> colours;
        for (const auto& [edge, is_overlapped] : routes)
            colours.insert(colour_between(edge.from, edge.to, edge.channel, is_overlapped));
        try {
            start(team, joining, std::vector(colours.begin(), colours.end()));
            register_memory(joining);
            connect(routes, joining);
            team.barrier(joining.member, options.timeout);
        } catch (...) {
            abort();
            throw;
        }
    }
    /// Aborts what is left: if disconnect() was not called, something has gone wrong.
    ~NcclTransport() override { abort(); }

    // NCCL's kernels meet their counterparts by themselves, each on a queue of its own communicator.
    void post_receive(const Message&, cudaStream_t) override {}
    bool can_complete_receive(const Message&) const override { return true; }
    bool can_send(const Message&) const override { return true; }

    void complete_receive(const Message& message, cudaStream_t stream) override {
        const auto& communicator =
            *communicators_.at(colour_between(message.peer, rank_, message.channel, message.is_overlapped));
        for_each_row(message.pieces, [&](const Piece& piece, std::size_t row) {
            RINGLAB_NCCL(ncclRecv(message.local + piece.to + row * piece.to_pitch, piece.bytes, ncclUint8, message.peer,
                                  communicator.handle(), stream));
        });
    }

    void send(const Message& message, cudaStream_t stream) override {
        const auto& communicator =
            *communicators_.at(colour_between(rank_, message.peer, message.channel, message.is_overlapped));
        for_each_row(message.pieces, [&](const Piece& piece, std::size_t row) {
            RINGLAB_NCCL(ncclSend(message.local + piece.from + row * piece.from_pitch, piece.bytes, ncclUint8,
                                  message.peer, communicator.handle(), stream));
        });
    }

    void fetch(const Message& message, cudaStream_t) override {
        fail("rank {} is to read the memory of rank {}; over NCCL the owner has to send it", rank_, message.peer);
    }

    bool takes_multiprocessors() const override { return true; }

    void check() override {
        for (const auto& [colour, communicator] : communicators_) communicator->check("moving data");
    }

    void disconnect() override {
        check();
        registrations_.clear();
        for (auto& [colour, communicator] : communicators_)
            NcclPool::of_this_process().keep(end_of(colour), std::move(communicator));
        communicators_.clear();
    }

    /// Aborts all communicators at the same time, each on a thread. When a rank aborts a communicator, NCCL tells its
    /// kernels on that rank to quit. The last rank of a process then frees the communicator's memory of all these
    /// ranks, for which CUDA may wait for every kernel of their devices. If communicators were aborted one after
    /// another, this could wait for kernels that have not been told to quit.
    void abort() noexcept override {
        for (auto& registration : registrations_) registration.forget();
        std::vector<std::jthread> threads;
        for (auto& [colour, communicator] : communicators_) {
            if (!communicator) continue;
            try {
                threads.emplace_back([&one = *communicator] { one.abort(); });
            } catch (const std::exception&) {
                communicator->abort();
            }
        }
    }

private:
    /// Pieces that are not adjacent are separate NCCL calls, in one launch.
    template <class Visit>
    static void for_each_row(std::span<const Piece> pieces, Visit visit) {
        const bool several = pieces.size() > 1 || (pieces.size() == 1 && pieces.front().rows > 1);
        if (several) RINGLAB_NCCL(ncclGroupStart());
        for (const auto& piece : pieces)
            for (std::size_t row = 0; row < piece.rows; ++row) visit(piece, row);
        if (several) RINGLAB_NCCL(ncclGroupEnd());
    }

    NcclColour colour_between(int from, int to, int channel, bool is_overlapped) const {
        const bool one_host = hosts_[static_cast<std::size_t>(from)] == hosts_[static_cast<std::size_t>(to)];
        return {channel, nccl_direction(from, to), is_overlapped && one_host};
    }

    NcclPool::End end_of(const NcclColour& colour) const { return {rank_, ranks_, device_, colour}; }

    /// Reuses communicators that an earlier run has kept, if all ranks have an end of the same one. Starts the others.
    void start(Team& team, const JoiningRank& joining, const std::vector<NcclColour>& colours) {
        std::vector<NcclId> ids(colours.size(), NcclId{});
        for (std::size_t i = 0; i < colours.size(); ++i) {
            auto& communicator = communicators_[colours[i]] = NcclPool::of_this_process().take(end_of(colours[i]));
            if (communicator) ids[i] = communicator->id();
        }
        std::vector<std::size_t> missing;
        const auto all = exchange(team, joining, ids, patience_.timeout);
        for (std::size_t i = 0; i < colours.size(); ++i)
            if (ids[i] == NcclId{} ||
                std::any_of(all.begin(), all.end(), [&](const auto& of) { return of[i] != ids[i]; }))
                missing.push_back(i);
        if (missing.empty()) return;
        for (const auto i : missing) {
            communicators_[colours[i]].reset();
            if (rank_ != 0) continue;
            ncclUniqueId unique;
            RINGLAB_NCCL(ncclGetUniqueId(&unique));
            std::memcpy(ids[i].data(), &unique, sizeof(unique));
        }
        const auto from_root = exchange(team, joining, ids, patience_.timeout)[0];
        for (const auto i : missing)
            communicators_[colours[i]] =
                std::make_unique<NcclCommunicator>(from_root[i], rank_, ranks_, colours[i].takes_few, patience_);
    }

    void register_memory(const JoiningRank& joining) {
        if (joining.memory.bytes == 0) return;
        for (const auto& [colour, communicator] : communicators_)
            registrations_.emplace_back(communicator->handle(), joining.memory.address, joining.memory.bytes);
    }

    /// The lists of all ranks, by rank.
    static std::vector<std::vector<NcclId>> exchange(Team& team, const JoiningRank& joining,
                                                     const std::vector<NcclId>& own, Clock::duration timeout) {
        Bytes bytes;
        processes::append(bytes, own);
        std::vector<std::vector<NcclId>> all;
        for (const auto& other : team.all_gather(joining.member, std::move(bytes), timeout)) {
            std::span<const std::byte> rest(other);
            processes::take(rest, all.emplace_back());
        }
        return all;
    }

    /// Sends one byte along every new edge, all at the same time. NCCL connects two ranks at their first message and
    /// waits there for the other rank. Inside a pass that could be a deadlock, if the other rank waits for a third one
    /// in the same way.
    void connect(const Routes& routes, const JoiningRank& joining) {
        struct Byte {
            bool sends;
            void* memory;
            int peer;
            ncclComm_t communicator;
        };
        std::vector<Byte> bytes;
        std::set<NcclCommunicator*> waiting;
        for (const auto& [edge, is_overlapped] : routes) {
            const auto& [from, to, channel] = edge;
            auto* const last = static_cast<char*>(joining.memory.address) + joining.memory.bytes - 1;
            auto& communicator = *communicators_.at(colour_between(from, to, channel, is_overlapped));
            if (!communicator.connected().insert(edge).second) continue;
            // This memory holds no data yet, so it may be overwritten.
            if (from == rank_) bytes.push_back({true, last, to, communicator.handle()});
            if (to == rank_) bytes.push_back({false, last, from, communicator.handle()});
            if (from == rank_ || to == rank_) waiting.insert(&communicator);
        }
        if (bytes.empty()) return;
        const auto stream = std::make_shared<const Stream>();
        try {
            call_with_patience("connecting", rank_, patience_, [=] {
                RINGLAB_NCCL(ncclGroupStart());
                for (const auto& [sends, memory, peer, communicator] : bytes)
                    if (sends)
                        RINGLAB_NCCL(ncclSend(memory, 1, ncclUint8, peer, communicator, *stream));
                    else
                        RINGLAB_NCCL(ncclRecv(memory, 1, ncclUint8, peer, communicator, *stream));
                RINGLAB_NCCL(ncclGroupEnd());
            });
        } catch (...) {
            for (auto* communicator : waiting) communicator->lose();
            throw;
        }
        wait(*stream);
    }

    void wait(const Stream& stream) const {
        const Event end(Event::Use::ordering);
        end.record(stream);
        processes::Waiting waiting;
        while (!end.done()) {
            if (patience_.team.cancelled()) throw Cancelled();
            require(waiting.so_far() < patience_.timeout,
                    "rank {}: the first messages over NCCL have not come after {} s; another rank is not there", rank_,
                    std::chrono::duration<double>(patience_.timeout).count());
            std::this_thread::yield();
        }
    }

    const Patience patience_;
    const int rank_, ranks_, device_;
    std::vector<Bytes> hosts_;  // by rank
    std::map<NcclColour, std::unique_ptr<NcclCommunicator>> communicators_;
    std::vector<Registration> registrations_;
};

class NcclFabric : public Fabric {
public:
    NcclFabric(Team& team, const FabricOptions& options, const Routes& routes)
        : team_(team), options_(options), routes_(routes) {}

    std::shared_ptr<void> allocate(std::size_t bytes) override {
        if (bytes == 0) return nullptr;
        void* memory = nullptr;
        RINGLAB_NCCL(ncclMemAlloc(&memory, bytes));
        return {memory, [](void* address) { ncclMemFree(address); }};
    }

    std::unique_ptr<Transport> join(const JoiningRank& joining) override {
        return std::make_unique<NcclTransport>(team_, options_, routes_, joining);
    }

private:
    Team& team_;
    FabricOptions options_;
    Routes routes_;
};

}  // namespace

std::unique_ptr<Fabric> make_nccl_fabric(Team& team, const FabricOptions& options, const Routes& routes) {
    return std::make_unique<NcclFabric>(team, options, routes);
}

std::string nccl_version() {
    int version = 0;
    RINGLAB_NCCL(ncclGetVersion(&version));
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace ringlab::gpu
