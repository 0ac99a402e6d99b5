#pragma once

#include "gpu/team/team.hpp"
#include "gpu/transports/slot_map.hpp"
#include "layouts/basics/ring_group.hpp"

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// A message, seen from one of its ends.
struct Message {
    char* local = nullptr;          ///< this end's exchange memory
    std::span<const Piece> pieces;  ///< from the sender's (a fetch: the owner's) memory to the receiver's
    int peer = 0;                   ///< global rank
    int channel = 0;
    bool has_time = false;  ///< see has_time()
    /// Of a message whose slot is free already, where the fabric tells arrivals: at `flag` in the receiver's exchange
    /// memory is `number` once it is there.
    bool is_told = false;
    std::size_t flag = 0;
    std::uint32_t number = 0;
};

/// What one rank can do with others. All calls enqueue on a stream of the rank's device and return at once, except
/// where they wait for others to start up; the issuing thread alone calls them.
///
/// A transfer begins when the receiver has posted its slot and the sender's stream has reached the send. With arrival
/// flags (Message::is_told) the sender alone starts it. Messages between two ranks on one channel match in order.
///
/// The issuer asks before it enqueues a send or the second part of a receive, and does something else meanwhile if the
/// answer is no: a stream then only ever waits for what has been enqueued already. It must not wait for anything else,
/// since streams share hardware queues: one that waits for work to come can stand in front of that very work.
class Transport {
public:
    virtual ~Transport() = default;

    /// The two parts of a receive: says that the slot is free; holds the stream back until the message is there.
    virtual void post_receive(const Message& message, cudaStream_t stream) = 0;
    virtual bool can_complete_receive(const Message& message) const = 0;
    virtual void complete_receive(const Message& message, cudaStream_t stream) = 0;

    virtual bool can_send(const Message& message) const = 0;
    virtual void send(const Message& message, cudaStream_t stream) = 0;

    /// Reads the peer's memory; the peer takes no part in it.
    virtual void fetch(const Message& message, cudaStream_t stream) = 0;

    /// Whether transfers are kernels: these want to be enqueued before computing that fills the device.
    virtual bool takes_multiprocessors() const { return false; }

    /// Throws Error if a transfer has failed as far as is known by now.
    virtual void check() {}

    /// After the last pass, when no rank uses another's memory any more: lets go of what belongs to peers. A rank frees
    /// its own exchange memory when all have done this.
    virtual void leave() {}

    /// Ends all waits of this rank's streams, with whatever data. The transport is of no use afterwards, but for
    /// calling this again while peers still have work under way.
    virtual void abort() noexcept {}
};

/// A rank that joins a fabric, and the exchange memory that it lays open to its peers until the fabric is gone.
struct Member {
    int member = 0;  ///< of the team
    int rank = 0;    ///< global
    int device = 0;
    struct Region {
        void* address = nullptr;
        std::size_t bytes = 0;
    } memory;
};

/// What connects the ranks of a run.
class Fabric {
public:
    virtual ~Fabric() = default;

    /// Whether it can read a peer's memory; otherwise the owner of a fetched block sends it.
    virtual bool fetches() const = 0;

    /// Whether a message whose slot is free can go without its receiver's part, and tell when it is there by a flag.
    virtual bool tells_arrivals() const { return false; }

    /// Exchange memory of the current device.
    virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;

    /// Called once for each rank by the thread that issues it; all threads do so at the same time. Transports of one
    /// thread may be used once all its ranks have joined.
    virtual std::unique_ptr<Transport> join(const Member& member) = 0;
};

/// What a fabric is made for.
struct FabricOptions {
    layouts::RingGroup group;
    Clock::duration timeout = std::chrono::minutes(1);
};

/// Programs of all ranks, pass by pass: who talks to whom.
using PassPrograms = std::vector<const layouts::Program*>;

/// Copy engines, between any number of ranks of one thread, threads, or processes of one host (memory and events by
/// CUDA IPC); no multiprocessor takes part between GPUs that have peer access to each other.
std::unique_ptr<Fabric> make_copy_fabric(Team& team, const FabricOptions& options, const PassPrograms& programs);

/// NCCL send/recv, one GPU per rank, across hosts too. Throws Error in a program built without NCCL.
std::unique_ptr<Fabric> make_nccl_fabric(Team& team, const FabricOptions& options, const PassPrograms& programs);

/// Thread blocks of a kernel of NCCL whose message has time: of 2, 4, 8 and NCCL's choice the best on two GPUs.
constexpr int few_blocks = 4;

/// FLOP of an attend for each byte of a message that has time beside it: 700 TFLOP/s, the most that attends do, in the
/// time of 80 GB/s.
constexpr double flop_of_time = 9000;

/// Whether the attend that a message travels beside takes longer than the message over a tenth of a GPU's links, so
/// that it may take few multiprocessors for as long.
bool has_time(const layouts::Instruction& instruction);

/// A pair of global ranks of which one sends to the other on a channel.
struct Edge {
    int from = 0, to = 0, channel = 0;
    friend auto operator<=>(const Edge&, const Edge&) = default;
};

/// All edges of all replicas; or those of some messages.
using Messages = std::function<bool(const layouts::Instruction&)>;
std::set<Edge> edges_of(
    const layouts::RingGroup& group, const PassPrograms& programs,
    const Messages& counts = [](const auto&) { return true; });

/// Version of the NCCL library that is loaded, "2.28.3"; "none" in a program built without it.
std::string nccl_version();

}  // namespace ringlab::gpu
