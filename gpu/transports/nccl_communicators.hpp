#pragma once

#include "gpu/transports/transport.hpp"
#include "processes/waiting.hpp"

#include <nccl.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

// The same macro style as RINGLAB_CUDA: the message carries the call.
#define RINGLAB_NCCL(call) ::ringlab::gpu::check_nccl((call), #call, __FILE__, __LINE__)

namespace ringlab::gpu {

void check_nccl(ncclResult_t status, const char* call, const char* file, int line);

/// Operations of one NCCL communicator run one after another, whatever their streams. A ring's ranks all send before
/// they receive, so a rank's sends and receives must lie on different communicators, which both ends agree on without
/// asking: the highest bit in which the two ranks differ, and the sender's value of it. A rank sends on (bit, its own
/// value) and receives on (bit, the other value). That takes 2 log2 P communicators where a ring alone could do with
/// two, and holds for messages between any ranks.
struct NcclDirection {
    int bit = 0;
    int value = 0;
    friend auto operator<=>(const NcclDirection&, const NcclDirection&) = default;
};

/// The direction of a message from rank (or device) `from` to `to`, two different ones.
constexpr NcclDirection nccl_direction(int from, int to) {
    int bit = 0;
    for (int difference = from ^ to; difference > 1; difference >>= 1) ++bit;
    return {bit, (from >> bit) & 1};
}

/// The use of a communicator. Each lane and direction has one of its own, so lanes do not wait for each other. A
/// communicator contains all ranks, because NCCL needs all of them to split one. It is kept from run to run.
///
/// Overlapped messages (is_overlapped()) have communicators of their own, whose kernels use few SMs. An SM that NCCL
/// uses is missing to the attend meanwhile, and a few missing SMs can cost a backward grid a whole wave. Between hosts
/// fewer thread blocks would be fewer connections, so there NCCL chooses.
struct NcclColour {
    int channel;
    NcclDirection direction;
    bool takes_few;
    friend auto operator<=>(const NcclColour&, const NcclColour&) = default;
};

/// How long a member waits for NCCL, and the team whose failure ends the wait.
struct Patience {
    const Team& team;
    Clock::duration timeout;
};

using NcclId = std::array<char, sizeof(ncclUniqueId)>;  // all zero: none

/// Runs `call`, which waits for other ranks, on a thread of its own. After the time-out, or when a member of the team
/// has failed, that thread is abandoned with all that `call` owns, so a dead peer cannot hang this process.
void call_with_patience(const char* what, int rank, const Patience& patience, std::function<void()> call);

/// Owns a communicator whose calls block the host. (A non-blocking communicator starts a thread for every message,
/// which costs a tenth of a millisecond.) Messages between connected ranks do not wait for each other on the host.
class NcclCommunicator {
public:
    NcclCommunicator(const NcclId& id, int rank, int ranks, bool takes_few, const Patience& patience);
    /// Aborts: a communicator that is not kept for the next run has failed, so its peers may not answer.
    ~NcclCommunicator() { abort(); }
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;

    ncclComm_t handle() const { return handle_; }
    const NcclId& id() const { return id_; }

    /// Edges over which a message has gone.
    std::set<Edge>& connected() { return connected_; }

    /// Throws Error if anything has failed so far.
    void check(const char* what) const;

    /// Gives up the handle, because a thread may hang inside the communicator.
    void lose() { handle_ = nullptr; }

    void abort() noexcept {
        if (handle_) ncclCommAbort(std::exchange(handle_, nullptr));
    }

private:
    const NcclId id_;
    const int rank_;
    ncclComm_t handle_ = nullptr;
    std::set<Edge> connected_;
};

/// Communicators for the next run of this process. Starting one takes a good part of a second, and a run has up to a
/// dozen. They are never destroyed but end with the process, because ncclCommDestroy needs every rank to call it and
/// races with NCCL's threads when it runs at exit.
class NcclPool {
public:
    /// One rank's end of a communicator. Its NcclId tells which other ends belong to it.
    struct End {
        int rank, ranks, device;
        NcclColour colour;
        friend auto operator<=>(const End&, const End&) = default;
    };

    static NcclPool& of_this_process();

    /// A kept communicator for this end, or null. The caller owns it.
    std::unique_ptr<NcclCommunicator> take(const End& end);

    void keep(const End& end, std::unique_ptr<NcclCommunicator> communicator);

private:
    std::mutex mutex_;
    std::map<End, std::unique_ptr<NcclCommunicator>> kept_;
};

}  // namespace ringlab::gpu
