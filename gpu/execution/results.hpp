#pragma once

#include "gpu/device/nvml.hpp"
#include "gpu/execution/executor.hpp"
#include "gpu/execution/issuer.hpp"
#include "gpu/ranks/rank_memory.hpp"
#include "gpu/team/device_clock.hpp"
#include "layouts/program/program.hpp"
#include "layouts/program/timeline.hpp"

#include <array>
#include <span>
#include <vector>

namespace ringlab::gpu {

/// A rank and where it runs.
struct Seat {
    int global_rank = 0;
    int member = 0;
    int device = -1;  // as its own process numbers it; -1 in others
};

/// Everything that is known of a run before it touches a device.
struct Job {
    Team& team;
    const layouts::Schedule& forward;
    const layouts::Schedule* backward;
    std::span<const HostInputs> inputs;
    const GpuOptions& options;
    std::vector<layouts::Program> programs;  // by pass
    std::vector<Seat> seats;                 // by global rank
    const Nvml& nvml;
    RankHosts hosts;  // reach_of_copies()

    int passes() const { return backward ? 2 : 1; }
};

/// How long a member waits for the others where all meet. It is longer than any other time-out, because a member that
/// is stuck in an operation knows more about the cause and should report first.
inline Clock::duration patience_of(const GpuOptions& options) { return 2 * options.timeout; }

/// Spans of a rank's operations in a pass with a timeline, on the common clock. Begins are the moments at which
/// operations were posted. Attends of one launch are not timed one by one: the launch's time is divided among them by
/// their work, as far as this agrees with what they waited for and what waited for them.
std::vector<layouts::Span> spans_of(const Rank& rank, layouts::Pass pass, int ring_rank, const PassEvents& events,
                                    const DeviceClock& clock);

/// Times of one rank in one pass, on the common clock.
struct PassTimes {
    std::vector<layouts::Picoseconds> start, finish;   // by repeat
    std::vector<double> issue;                         // by repeat, seconds
    std::vector<double> rotation;                      // by repeat, seconds; see PassRun
    std::vector<layouts::Picoseconds> timeline_start;  // by timeline
    std::vector<layouts::Span> spans;                  // timeline after timeline
};

/// The results and times of one rank in a run; they travel to the root process.
struct RankResult {
    int global_rank = 0;
    RankOutputs outputs;
    MemoryUse memory;
    std::array<PassTimes, 2> passes;
    layouts::Picoseconds clock_uncertainty = 0;
    std::vector<ClockSample> clocks;
    std::array<char, 256> device_name{};
};

/// All ranks' results by global rank, on the root process; nothing on others.
std::vector<RankResult> gather(Team& team, std::vector<RankResult> local, int world, Clock::duration timeout);

/// The result of one ring, from the results of its ranks.
GpuRun assemble(const Job& job, std::span<RankResult* const> ranks);

}  // namespace ringlab::gpu
