#pragma once

#include "gpu/execution/executor.hpp"
#include "gpu/execution/issuer.hpp"
#include "gpu/execution/member_run.hpp"
#include "gpu/ranks/caller_tensors.hpp"
#include "layouts/program/program.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace ringlab::gpu {

/// One rank of a ring, ready for passes on tensors in its caller's device memory: memory for what peers read and write,
/// work lists, streams and connections are made once. The ring's ranks are the members of a team of processes, or the
/// ring is of one rank.
///
/// K and V are copied into the rank's own memory, from where peers read them. Q, dO and results are used where the
/// caller has them, except by schedules whose messages carry rows, which copy these as well.
class ReadyRank {
public:
    struct Options {
        TransportKind transport = TransportKind::copy;  ///< copy or nccl
        int device = 0;
        bool deterministic = false;
        Clock::duration timeout = std::chrono::minutes(2);  ///< of a pass that has begun, and of waiting for others
    };

    /// A forward and a backward schedule of one problem (bf16 or fp16), mask and layout. All members of the team call
    /// it at the same time, with equal schedules. Throws Error on all of them if one of them cannot.
    ReadyRank(Team& team, std::unique_ptr<const layouts::Schedule> forward,
              std::unique_ptr<const layouts::Schedule> backward, const Options& options);
    ~ReadyRank();
    ReadyRank(const ReadyRank&) = delete;
    ReadyRank& operator=(const ReadyRank&) = delete;

    /// Enqueues a pass behind what the stream `caller` of the same device was given before, and what `caller` is given
    /// afterwards behind the pass. All ranks make the same calls in the same order. A backward pass takes the o_exact
    /// and lse of any earlier forward pass with the same inputs.
    ///
    /// Waits for the device only where it is many operations behind. Throws Error if the pass cannot be enqueued, or an
    /// earlier one failed or did not end within the time-out; then the rank can be used no more.
    void run(layouts::Pass pass, const CallerTensors& tensors, std::uint64_t dropout_seed, cudaStream_t caller);

    /// All members together, before their ranks are destroyed: lets go of peers' memory when no pass is under way any
    /// more. Throws Error if a pass has failed: then peers may be using this rank's memory for as long as they live.
    void disconnect();

    const layouts::Schedule& schedule(layouts::Pass pass) const { return *schedules_[index(pass)]; }
    const MemoryUse& memory_use() const { return work_->memory_use(); }

private:
    /// A pass that was enqueued and may not have ended. `begun` is recorded on the caller's stream before the pass,
    /// `ended` on the compute stream behind it.
    struct Flight {
        layouts::Pass pass = layouts::Pass::forward;
        Event begun{Event::Use::ordering}, ended{Event::Use::ordering};
    };

    static std::size_t index(layouts::Pass pass) { return static_cast<std::size_t>(pass); }
    cudaStream_t compute() const { return lane_streams_[layouts::compute_lane]; }
    /// Runs a step that needs no other rank, and then exchanges how it went: if it failed on one rank, all ranks throw.
    void together(const std::function<void()>& body);
    /// Makes the rank's memory, work lists, streams and events.
    void make_rank(const MapOptions& memory, LaunchStart start);
    /// Joins the fabric and makes the issuer.
    void connect();
    /// Makes the compute stream wait at a barrier of all ranks' streams.
    void meet();
    /// Finds whether any rank's process has not launched the kernels of a pass yet. If so, all ranks call rehearse().
    void agree_on_rehearsals();
    /// Warm-up: launches all kernels of a pass once, without messages, on whatever is in memory. CUDA loads a kernel at
    /// its first launch, and may wait for an idle device to do so. In a real pass this could be a deadlock, because the
    /// device may be waiting for a peer whose host waits in the same way.
    void rehearse(layouts::Pass pass, const CallerTensors& tensors);
    /// A Flight for the next pass. Takes the events of a pass that has ended, if there is one.
    Flight take_flight(layouts::Pass pass);
    /// Forgets passes that have ended, and notes a failure that shows only at the end of a pass.
    void land_flights();
    /// Ends all waits for peers after a failure, so that streams go on. Their results are of no use.
    void release() noexcept;
    /// Ends passes that exceed the time-out. Otherwise a pass that waits for a dead peer would hold the caller's stream
    /// for ever.
    void watch(const std::stop_token& stop) noexcept;

    Team& team_;
    const Options options_;
    const int rank_;
    std::array<std::unique_ptr<const layouts::Schedule>, 2> schedules_;  // by pass
    std::vector<layouts::Program> programs_;                             // by pass
    bool fetches_ = false;
    std::unique_ptr<Fabric> fabric_;
    std::unique_ptr<Rank> work_;
    std::unique_ptr<Transport> transport_;
    std::vector<std::unique_ptr<Stream>> lanes_;
    std::vector<cudaStream_t> lane_streams_;
    std::vector<PassEvents> events_;  // by pass
    std::unique_ptr<Issuer> issuer_;
    std::array<std::string, 2> kernels_;  // by pass: text of all that its choice of kernels depends on
    std::array<bool, 2> rehearses_{};     // by pass: whether its next run begins with rehearse()
    std::size_t meeting_flags_ = 0;
    std::uint32_t meetings_ = 0;

    std::mutex mutex_;  // guards all members below, and passes against the watcher thread
    std::deque<Flight> flights_;
    std::vector<Flight> landed_;  // of passes that have ended; their events are used again
    std::string failure_;
    std::condition_variable_any stopped_;
    std::jthread watcher_;  // the last member: it uses all others
};

}  // namespace ringlab::gpu
