#pragma once

#include "gpu/transports/nccl_direction.hpp"
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

/// What a communicator is for. So lanes stay independent of each other, and a schedule that runs lane by lane runs
/// here. Communicators are of all ranks, since NCCL splits none without all of them, and are kept from run to run.
///
/// Messages that have time (has_time()) lie on communicators of their own, whose kernels take few multiprocessors: all
/// that they take, attends beside them go without for as long, which of the even turns of a backward grid costs one
/// turn more. Between hosts more channels are more connections, so there they take what NCCL chooses.
struct NcclColour {
    int channel;
    NcclDirection direction;
    bool takes_few;
    friend auto operator<=>(const NcclColour&, const NcclColour&) = default;
};

/// How long a member waits for NCCL, and who may tell it to stop.
struct Patience {
    const Team& team;
    Clock::duration timeout;
};

using NcclId = std::array<char, sizeof(ncclUniqueId)>;  // all zero: none

/// Calls what waits for other ranks, on a thread of its own; after the time-out, or when a member of the team has
/// failed, that thread is left to itself, with all that `call` owns, so a dead peer cannot hang this process.
void call_with_patience(const char* what, int rank, const Patience& patience, std::function<void()> call);

/// Owns a communicator whose calls block the host: one that never does so starts a thread for every message, which
/// costs a tenth of a millisecond. Messages between ranks that are connected do not wait for each other on the host.
class NcclCommunicator {
public:
    NcclCommunicator(const NcclId& id, int rank, int ranks, bool takes_few, const Patience& patience);
    /// One that is not kept for the next run is one that something went wrong with: no peer need answer any more.
    ~NcclCommunicator() { abort(); }
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;

    ncclComm_t handle() const { return handle_; }
    const NcclId& id() const { return id_; }

    /// Edges over which a message has gone.
    std::set<Edge>& connected() { return connected_; }

    /// Throws Error if anything has failed so far.
    void check(const char* what) const;

    /// A thread may be inside it for good: nothing can be done with it any more.
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

/// Communicators that are of use to the next run of this process: to start one takes a good part of a second, and a
/// run has up to a dozen. They stay until the process ends, which is when their threads and memory go too: NCCL's own
/// way of taking them down needs every rank to come, and races with its threads when it runs at exit.
class NcclPool {
public:
    /// A rank's end of a communicator. Which others are at its far ends, ids tell.
    struct Place {
        int rank, ranks, device;
        NcclColour colour;
        friend auto operator<=>(const Place&, const Place&) = default;
    };

    static NcclPool& of_this_process();

    /// Null if there is none. Whoever takes it owns it.
    std::unique_ptr<NcclCommunicator> take(const Place& place);

    void keep(const Place& place, std::unique_ptr<NcclCommunicator> communicator);

private:
    std::mutex mutex_;
    std::map<Place, std::unique_ptr<NcclCommunicator>> kept_;
};

}  // namespace ringlab::gpu
