#pragma once

#include "gpu/ranks/rank_memory.hpp"
#include "gpu/ring/ring_plan.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace ringlab::gpu {

/// One rank of a ring, ready for passes on tensors in its caller's device memory. It holds what all plans of the ring
/// share: exchange memory and connections, streams, events, and the thread that watches passes. So a new plan, for
/// example of another packing of documents, takes work on the host and one copy. The ring's ranks are the members of a
/// team of processes, or the ring is of one rank.
///
/// K and V are copied into exchange memory, from where peers read them. Q, dO and results are used where the caller has
/// them, except by schedules whose messages carry rows, which copy these as well.
///
/// Passes of all plans follow each other on one compute stream, on all ranks in the same order. They may use the same
/// exchange memory, for these reasons. What a pass does on this rank, and what it receives, has ended when the compute
/// stream comes to its end. Before messages of the next pass all ranks' streams meet, so no message overwrites what a
/// slower rank still uses. What peers fetch is read without this rank's knowledge. After a pass that fetches, the
/// streams therefore meet once more before anything of the next pass is written.
///
/// Passes of several rings of one process on one device follow each other too, in the order of the calls: a kernel that
/// waits for a peer may hold all SMs, and two of them could wait for each other. Ranks that share several rings
/// therefore call them in the same order.
class ReadyRing {
public:
    using Options = RingExchange::Options;

    /// The device must be current; `memory`, of work lists, outlives the ring. All members of the team call it at the
    /// same time.
    ReadyRing(Team& team, StreamMemory& memory, const Options& options);
    ~ReadyRing();
    ReadyRing(const ReadyRing&) = delete;
    ReadyRing& operator=(const ReadyRing&) = delete;

    /// All members of the team, with equal schedules; throws Error on all of them if one of them cannot. The plan must
    /// go before the ring does, on a thread that uses the ring; its passes may still be under way.
    std::shared_ptr<RingPlan> make_plan(std::unique_ptr<const layouts::Schedule> forward,
                                        std::unique_ptr<const layouts::Schedule> backward, bool deterministic);

    /// Enqueues a pass behind what the stream `caller` of the same device was given before, and what `caller` is given
    /// afterwards behind the pass. All ranks make the same calls in the same order. A backward pass takes the o_exact
    /// and lse of any earlier forward pass with the same inputs.
    ///
    /// Waits for the device only where it is many operations behind, and before kernels that the ring has not launched
    /// yet. Throws Error if the pass cannot be enqueued, or an earlier one failed or did not end within the time-out;
    /// then the ring can be used no more. What such a pass computed with blocks that did not arrive is NaN.
    void run(const std::shared_ptr<RingPlan>& plan, layouts::Pass pass, const CallerTensors& tensors,
             std::uint64_t dropout_seed, cudaStream_t caller);

    /// Any member at any time, after its last pass: lets go of peers' memory. Returns whether the ring may be
    /// destroyed: none of its passes is under way, and all peers have let go of this rank's memory or have ended. Waits
    /// for nothing.
    bool let_go() noexcept;

    /// Whether the ring can be used no more.
    bool is_broken() const;

    /// Bytes that the ring holds, beside what it has from StreamMemory.
    struct Held {
        std::int64_t device = 0;  ///< exchange memory
        std::int64_t host = 0;    ///< pinned
    };
    Held held() const;

private:
    /// A pass that was enqueued and may not have ended. `begun` is recorded on the caller's stream before the pass,
    /// `ended` on the compute stream behind it.
    struct Flight {
        layouts::Pass pass = layouts::Pass::forward;
        std::shared_ptr<RingPlan> plan;
        Event begun{Event::Use::ordering}, ended{Event::Use::ordering};
    };

    cudaStream_t compute() const { return lanes_.front(); }
    std::vector<cudaStream_t> lanes_of(const RingPlan& plan) const;
    /// Makes the streams and events that a plan needs.
    void make_lanes_and_events(const RingPlan& plan);
    /// Finds out whether kernels of a plan have not been launched by all ranks' processes.
    void agree_on_rehearsals(RingPlan& plan);
    /// Warm-up: launches all kernels of a pass once, without messages, on whatever is in memory. CUDA loads a kernel at
    /// its first launch, and may wait for an idle device to do so. In a real pass this could be a deadlock, because the
    /// device may be waiting for a peer whose host waits in the same way. No pass may be under way on any rank.
    void rehearse(RingPlan& plan, layouts::Pass pass, const CallerTensors& tensors);
    /// A Flight for the next pass. Takes the events of a pass that has ended, if there is one.
    Flight take_flight(const std::shared_ptr<RingPlan>& plan, layouts::Pass pass);
    /// Forgets passes that have ended, and notes a failure that shows only at the end of a pass.
    void land_flights();
    /// On the caller's thread, which alone lets go of plans: lands flights. Throws Error if a pass has failed.
    void begin_call();
    /// Waits until this rank's passes have ended. Gives the mutex away meanwhile, because watch() needs it to end a
    /// pass that is stuck. Throws Error if one has failed.
    void wait_for_flights(std::unique_lock<std::mutex>& lock);
    void require_intact() const { require(failure_.empty(), "{}", failure_); }
    /// Ends all waits for peers after a failure, so that streams go on. They then read NaN where peers should have
    /// written.
    void release() noexcept;
    void fill_with_nan() noexcept;
    /// Ends passes that exceed the time-out. Otherwise a pass that waits for a dead peer would hold the caller's stream
    /// for ever.
    void watch(const std::stop_token& stop) noexcept;

    Team& team_;
    const Options options_;
    const int rank_;
    std::vector<Stream> lanes_;  // the compute lane first
    Stream give_up_stream_;
    PassEvents events_{0, PassEvents::Use::ordering};
    TableStore tables_;
    RingExchange exchange_;
    const RingPlan::Ring of_plans_;
    TableStore::Staging nan_;      // bytes 0xff
    bool peers_may_read_ = false;  // exchange memory, by fetches of the latest pass

    mutable std::mutex mutex_;  // guards all members below, and passes against the watcher thread
    std::deque<Flight> flights_;
    std::vector<Flight> landed_;  // of passes that have ended; their events are used again
    std::uint64_t landings_ = 0;
    std::string failure_;
    std::condition_variable_any stopped_;
    std::jthread watcher_;  // the last member: it uses all others
};

}  // namespace ringlab::gpu
