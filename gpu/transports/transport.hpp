#pragma once

#include "gpu/team/team.hpp"
#include "gpu/transports/rank_hosts.hpp"
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
    std::span<const Piece> pieces;  ///< from the memory of the sender (of a fetch: the owner) to that of the receiver
    int peer = 0;                   ///< global rank
    int channel = 0;
    bool is_overlapped = false;  ///< is_overlapped() of its instruction
    /// The sender sets an arrival flag: it writes `number` at byte `flag` of the receiver's exchange memory behind the
    /// message. Only if the message's slot is free from the start and Fabric::sets_flags().
    bool has_arrival_flag = false;
    std::size_t flag = 0;
    std::uint32_t number = 0;
};

/// One rank's end of its connections. All calls enqueue on a stream of the rank's device and return at once, except
/// while other ranks start up. Only the issuing thread calls them.
///
/// A transfer begins when the receiver has posted its slot and the sender's stream has reached the send. With arrival
/// flags (Message::has_arrival_flag) the sender alone starts it. Messages between two ranks on one channel match in
/// order.
///
/// The issuer calls can_send() or can_complete_receive() before it enqueues, and does something else if the answer is
/// no. So a stream only waits for work that has been enqueued already. This is necessary because streams share hardware
/// queues: a stream that waits for later work can block the queue for that very work.
class Transport {
public:
    virtual ~Transport() = default;

    /// The two parts of a receive: the first says that the slot is free, the second makes the stream wait for the
    /// message.
    virtual void post_receive(const Message& message, cudaStream_t stream) = 0;
    virtual bool can_complete_receive(const Message& message) const = 0;
    virtual void complete_receive(const Message& message, cudaStream_t stream) = 0;

    virtual bool can_send(const Message& message) const = 0;
    virtual void send(const Message& message, cudaStream_t stream) = 0;

    /// Reads the peer's memory. The peer does nothing.
    virtual void fetch(const Message& message, cudaStream_t stream) = 0;

    /// Enqueues a meeting of all ranks that write to each other's memory, those of a host: what the stream is given
    /// afterwards begins when the stream of each of them has come to its meeting of this number. Numbers ascend from 1.
    /// `flags` is the byte in exchange memory, the same on all ranks, of four bytes for each global rank that are 0
    /// before the first meeting. Does nothing where messages alone keep the passes of different ranks apart.
    virtual void meet([[maybe_unused]] std::size_t flags, [[maybe_unused]] std::uint32_t number, cudaStream_t) {}

    /// The exchange memory of a rank (its global number), where kernels of this rank's device can read and write it;
    /// null if they cannot. All ranks must have joined.
    virtual char* memory_of([[maybe_unused]] int rank) { return nullptr; }

    /// Whether transfers are kernels. Then they should be enqueued before compute kernels that fill the device.
    virtual bool takes_multiprocessors() const { return false; }

    /// Throws Error if a transfer is known to have failed.
    virtual void check() {}

    /// After the last pass, when no rank uses another rank's memory any more: releases what belongs to peers. A rank
    /// frees its own exchange memory when all ranks have done this.
    virtual void disconnect() {}

    /// After disconnect(): whether no other rank can use this rank's exchange memory any more.
    virtual bool is_free() const { return true; }

    /// Ends all waits of this rank's streams, whatever the data. Afterwards the transport can only be aborted again,
    /// for peers that still have work enqueued.
    virtual void abort() noexcept {}
};

/// A rank that joins a fabric, and the exchange memory that its peers may access until the fabric is destroyed.
struct JoiningRank {
    int member = 0;  ///< of the team
    int rank = 0;    ///< global
    int device = 0;
    struct Region {
        void* address = nullptr;
        std::size_t bytes = 0;
    } memory;
};

/// Connects the ranks of a run.
class Fabric {
public:
    virtual ~Fabric() = default;

    /// Whether a message from global rank `from` to `to` whose slot is free needs no call of its receiver, because the
    /// sender sets an arrival flag. It is the same from `to` to `from`.
    virtual bool sets_flags([[maybe_unused]] int from, [[maybe_unused]] int to) const { return false; }

    /// Exchange memory of the current device.
    virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;

    /// Called once for each rank by the thread that issues it, by all threads at the same time. A thread may use its
    /// transports when all its ranks have joined.
    virtual std::unique_ptr<Transport> join(const JoiningRank& joining) = 0;
};

/// The ring ranks with which a rank exchanges messages that set arrival flags, see Fabric::sets_flags().
std::set<int> flagged_peers(const Fabric& fabric, const layouts::RingGroup& group, int global_rank);

struct FabricOptions {
    layouts::RingGroup group;
    Clock::duration timeout = std::chrono::minutes(1);
    RankHosts hosts;  ///< copy engines reach ranks of one host
};

/// Global rank `from` sends to global rank `to` on a channel.
struct Edge {
    int from = 0, to = 0, channel = 0;
    friend auto operator<=>(const Edge&, const Edge&) = default;
};

/// An edge, and whether its messages are overlapped (is_overlapped()).
struct Route {
    Edge edge;
    bool is_overlapped = false;
    friend auto operator<=>(const Route&, const Route&) = default;
};
using Routes = std::set<Route>;

using FabricFactory = std::function<std::unique_ptr<Fabric>(Team&, const FabricOptions&, const Routes&)>;

/// The routes of all replicas' messages in these programs, which are of all passes.
Routes routes_of(const layouts::RingGroup& group, const std::vector<layouts::Program>& programs);

/// Copy engines, between ranks of one thread, of threads, or of processes of one host (memory and events by CUDA IPC).
/// Between GPUs with peer access they use no SM.
std::unique_ptr<Fabric> make_copy_fabric(Team& team, const FabricOptions& options, const Routes& routes);

/// NCCL send/recv, one GPU per rank, also between hosts. Throws Error in a program that was built without NCCL.
std::unique_ptr<Fabric> make_nccl_fabric(Team& team, const FabricOptions& options, const Routes& routes);

/// Copy engines inside a host, and between hosts what `make_between` makes. Its communicators are those of messages
/// between hosts alone. Without such messages it is the copy fabric.
std::unique_ptr<Fabric> make_mixed_fabric(Team& team, const FabricOptions& options, const Routes& routes,
                                          const FabricFactory& make_between = make_nccl_fabric);

/// Thread blocks of NCCL's kernel for an overlapped message: the best of 2, 4, 8 and NCCL's choice on two GPUs.
constexpr int overlapped_message_thread_blocks = 4;

/// FLOP of an attend per byte of a message that it overlaps: 700 TFLOP/s, the most that attends reach, during a
/// transfer at 40 GB/s. That is the rate of so few thread blocks beside attends: 33 to 42 GB/s on four H100
/// (gpu/measurements.md).
constexpr double overlapping_flop_per_byte = 17500;

/// Whether the attend that runs while a message travels takes longer than the message would at a tenth of the rate of a
/// GPU's links. Then the message may use few SMs.
bool is_overlapped(const layouts::Instruction& instruction);

/// Version of the NCCL library that is loaded, "2.28.3"; "none" in a program built without it.
std::string nccl_version();

}  // namespace ringlab::gpu
