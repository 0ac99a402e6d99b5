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

/// Everything that is known of a run before it touches a device.
struct Job {
    Team& team;
    const layouts::Schedule& forward;
    const layouts::Schedule* backward;
    std::span<const HostInputs> inputs;
    const GpuOptions& options;
    const Nvml& nvml;
    RankHosts hosts;                              // reach_of_copies()
    std::vector<layouts::Program> programs = {};  // by pass
};

/// Spans of a rank's operations in a pass with a timeline, on the common clock. Begins are the moments at which
/// operations were posted. Attends of one launch are not timed one by one: the launch's time is divided among them by
/// their work, as far as this agrees with what they waited for and what waited for them.
std::vector<layouts::Span> spans_of(const Rank& rank, layouts::Pass pass, int ring_rank, const PassEvents& events,
                                    const DeviceClock& clock);

/// Times of one rank in one pass, on the common clock.
struct PassTimes {
    std::vector<layouts::Picoseconds> start, finish;   // by repeat
    std::vector<double> issue;                         // by repeat, seconds
    std::vector<double> rotation;                      // by repeat, seconds; see layouts::PassRun
    std::vector<layouts::Picoseconds> timeline_start;  // by timeline
    std::vector<layouts::Span> spans;                  // timeline after timeline
};

/// What is known of one rank after a run, in numbers.
struct RankFacts {
    int global_rank = 0;
    MemoryUse memory;
    std::size_t free_bytes = 0;  ///< of its device, at the end
    layouts::Picoseconds clock_uncertainty = 0;
    std::array<char, 256> device_name{};
};

/// The results and times of one rank in a run; they travel to the root process.
struct RankResult : RankFacts {
    PassTimes& of(layouts::Pass pass) { return passes[static_cast<std::size_t>(pass)]; }
    const PassTimes& of(layouts::Pass pass) const { return passes[static_cast<std::size_t>(pass)]; }

    RankOutputs outputs;
    std::array<PassTimes, 2> passes;
    std::vector<ClockSample> clocks;
};

/// All ranks' results by global rank, on the root process; nothing on others.
std::vector<RankResult> gather(Team& team, std::vector<RankResult> local, int world, Clock::duration timeout);

/// The result of one ring, from the results of its ranks.
GpuRun assemble(const Job& job, std::span<RankResult* const> ranks);

}  // namespace ringlab::gpu
