#include "gpu/cuda_handles.hpp"
#include "gpu/transport.hpp"

#include <nccl.h>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <thread>

// The same macro style as RINGLAB_CUDA: the message carries the call.
#define RINGLAB_NCCL(call) check_nccl((call), #call, __FILE__, __LINE__)

namespace ringlab::gpu {
namespace {

using layouts::Payload;

void check_nccl(ncclResult_t status, const char* call, const char* file, int line) {
    if (status == ncclSuccess || status == ncclInProgress) return;
    int device = -1;
    cudaGetDevice(&device);
    fail("NCCL error '{}' from {} at {}:{}, device {}; {}", ncclGetErrorString(status), call, file, line, device,
         ncclGetLastError(nullptr));
}

/// Operations of one communicator run one after another, whatever their streams. A ring's ranks all send before they
/// receive, so a rank's sends and receives must lie on different communicators, which both ends agree on without
/// asking: the highest bit in which the two ranks differ, and the sender's value of it. A rank sends on (bit, its own
/// value) and receives on (bit, the other value). So lanes stay independent of each other, and a schedule that runs
/// lane by lane runs here.
struct Colour {
    Payload payload;
    int bit;
    int value;
    friend auto operator<=>(const Colour&, const Colour&) = default;
};

Colour colour_of(int from, int to, Payload payload) {
    int bit = 0;
    for (int difference = from ^ to; difference > 1; difference >>= 1) ++bit;
    return {payload, bit, (from >> bit) & 1};
}

/// Owns a communicator that never blocks the host: every call returns at once and is waited for with a time-out, so a
/// dead peer cannot hang this process.
class Communicator {
public:
    Communicator(const ncclUniqueId& id, int rank, int ranks, const Team& team, Clock::duration timeout)
        : team_(team), timeout_(timeout), rank_(rank) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        RINGLAB_NCCL(ncclCommInitRankConfig(&handle_, ranks, id, rank, &config));
        settle("starting up");
    }
    ~Communicator() {
        if (!handle_) return;
        if (ncclCommFinalize(handle_) == ncclInProgress) {
            auto status = ncclInProgress;
            const auto begin = Clock::now();
            while (status == ncclInProgress && Clock::now() - begin < timeout_)
                if (ncclCommGetAsyncError(handle_, &status) != ncclSuccess) break;
        }
        ncclCommDestroy(handle_);
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    ncclComm_t handle() const { return handle_; }

    /// Waits until NCCL has taken in what it was asked for (not until it has ended on the device).
    void settle(const char* what) const {
        const auto begin = Clock::now();
        while (!settled(what)) {
            if (team_.cancelled()) throw Cancelled();
            require(Clock::now() - begin < timeout_, "rank {}: NCCL has spent {} s on {}; another rank is not there",
                    rank_, std::chrono::duration<double>(timeout_).count(), what);
            std::this_thread::yield();
        }
    }

    bool settled(const char* what) const {
        ncclResult_t status = ncclSuccess;
        RINGLAB_NCCL(ncclCommGetAsyncError(handle_, &status));
        require(status == ncclSuccess || status == ncclInProgress, "rank {}: NCCL failed while {}: {}; {}", rank_, what,
                ncclGetErrorString(status), ncclGetLastError(handle_));
        return status == ncclSuccess;
    }

    void abort() noexcept {
        if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
    }

private:
    const Team& team_;
    Clock::duration timeout_;
    int rank_;
    ncclComm_t handle_ = nullptr;
};

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
    NcclTransport(Team& team, const FabricOptions& options, const std::set<Edge>& edges, const Member& member)
        : rank_(member.rank) {
        std::set<Colour> colours;
        for (const auto& edge : edges) colours.insert(colour_of(edge.from, edge.to, edge.payload));
        const auto ids = exchange_ids(team, options, member, colours.size());
        std::size_t next = 0;
        for (const auto& colour : colours)
            communicators_.try_emplace(colour, ids[next++], rank_, options.group.world(), team, options.timeout);
        for (const auto& [colour, communicator] : communicators_) {
            const bool kv = colour.payload == Payload::kv;
            const auto bytes = kv ? member.kv_bytes : member.gradient_bytes;
            if (bytes > 0) registrations_.emplace_back(communicator.handle(), kv ? member.kv : member.gradients, bytes);
        }
        meet(edges, member);
        team.barrier(member.member, options.timeout);
    }

    // NCCL's kernels meet their counterparts by themselves, each on a queue of its own communicator.
    void post_receive(const Message&, cudaStream_t) override {}
    bool can_complete_receive(const Message&) const override { return true; }
    bool can_send(const Message&) const override { return true; }

    void complete_receive(const Message& message, cudaStream_t stream) override {
        const auto& communicator = communicators_.at(colour_of(message.peer, rank_, message.payload));
        RINGLAB_NCCL(ncclRecv(message.local, message.bytes, ncclUint8, message.peer, communicator.handle(), stream));
        communicator.settle("receiving");
    }

    void send(const Message& message, cudaStream_t stream) override {
        const auto& communicator = communicators_.at(colour_of(rank_, message.peer, message.payload));
        RINGLAB_NCCL(ncclSend(message.local, message.bytes, ncclUint8, message.peer, communicator.handle(), stream));
        communicator.settle("sending");
    }

    void fetch(const Message& message, cudaStream_t) override {
        fail("rank {} is to read the memory of rank {}; over NCCL the owner has to send it", rank_, message.peer);
    }

    bool takes_multiprocessors() const override { return true; }

    void check() override {
        for (const auto& [colour, communicator] : communicators_) communicator.settled("moving data");
    }

    void abort() noexcept override {
        for (auto& registration : registrations_) registration.forget();
        for (auto& [colour, communicator] : communicators_) communicator.abort();
    }

private:
    static std::vector<ncclUniqueId> exchange_ids(Team& team, const FabricOptions& options, const Member& member,
                                                  std::size_t count) {
        std::vector<ncclUniqueId> ids(count);
        if (member.rank == 0)
            for (auto& id : ids) RINGLAB_NCCL(ncclGetUniqueId(&id));
        Bytes bytes(sizeof(member.rank) + count * sizeof(ncclUniqueId));
        std::memcpy(bytes.data(), &member.rank, sizeof(member.rank));
        std::memcpy(bytes.data() + sizeof(member.rank), ids.data(), count * sizeof(ncclUniqueId));
        for (const auto& other : team.all_gather(member.member, std::move(bytes), options.timeout)) {
            int rank = -1;
            std::memcpy(&rank, other.data(), sizeof(rank));
            if (rank == 0) std::memcpy(ids.data(), other.data() + sizeof(rank), count * sizeof(ncclUniqueId));
        }
        return ids;
    }

    /// A byte along every edge, all at once: NCCL connects two ranks at their first message, and waits there for the
    /// other one, which inside a pass could be waiting likewise for a third.
    void meet(const std::set<Edge>& edges, const Member& member) {
        const Stream stream;
        RINGLAB_NCCL(ncclGroupStart());
        for (const auto& [from, to, payload] : edges) {
            auto* memory = static_cast<char*>(payload == Payload::kv ? member.kv : member.gradients);
            const auto bytes = payload == Payload::kv ? member.kv_bytes : member.gradient_bytes;
            const auto& communicator = communicators_.at(colour_of(from, to, payload));
            // Nothing is in this memory yet.
            if (from == rank_)
                RINGLAB_NCCL(ncclSend(memory + bytes - 1, 1, ncclUint8, to, communicator.handle(), stream));
            if (to == rank_)
                RINGLAB_NCCL(ncclRecv(memory + bytes - 1, 1, ncclUint8, from, communicator.handle(), stream));
        }
        RINGLAB_NCCL(ncclGroupEnd());
        for (const auto& [colour, communicator] : communicators_) communicator.settle("connecting");
        stream.synchronize();
    }

    int rank_;
    std::map<Colour, Communicator> communicators_;
    std::vector<Registration> registrations_;
};

class NcclFabric : public Fabric {
public:
    NcclFabric(Team& team, const FabricOptions& options, std::set<Edge> edges)
        : team_(team), options_(options), edges_(std::move(edges)) {}

    bool fetches() const override { return false; }

    std::shared_ptr<void> allocate(std::size_t bytes) override {
        if (bytes == 0) return nullptr;
        void* memory = nullptr;
        RINGLAB_NCCL(ncclMemAlloc(&memory, bytes));
        return {memory, [](void* address) { ncclMemFree(address); }};
    }

    std::unique_ptr<Transport> join(const Member& member) override {
        return std::make_unique<NcclTransport>(team_, options_, edges_, member);
    }

private:
    Team& team_;
    FabricOptions options_;
    std::set<Edge> edges_;
};

}  // namespace

std::unique_ptr<Fabric> make_nccl_fabric(Team& team, const FabricOptions& options, const PassPrograms& programs) {
    return std::make_unique<NcclFabric>(team, options, edges_of(options.group, programs));
}

std::string nccl_version() {
    int version = 0;
    RINGLAB_NCCL(ncclGetVersion(&version));
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace ringlab::gpu
