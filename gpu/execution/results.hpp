#pragma once

#include "gpu/execution/job.hpp"
#include "gpu/ranks/rank_memory.hpp"

#include <array>
#include <span>
#include <vector>

namespace ringlab::gpu {

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
