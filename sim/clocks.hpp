#pragma once

#include "sim/simulate.hpp"
#include "sim/topology.hpp"

#include <functional>
#include <span>
#include <vector>

namespace ringlab::sim {

/// Clocks of ranks, against that of the calibration, that power allows when a pass is repeated without end.
///
/// The energy of a FLOP goes as the square of the voltage, and that about as the clock: so power bounds rate x clock^2,
/// and attends that keep more of a multiprocessor busy run at a lower clock. Averaged over repeated passes with their
/// pauses, rank by rank: whoever waits for others has power to spare, and a pass is as long as that of the rank that
/// takes longest. From what was predicted at the clocks `before`, where a rank that computes for longer is taken to
/// last longer by as much. `flop`: of all pairs of the tiles that are computed, which take power whether they are seen
/// or not; `powers`: FLOP/s that each rank's GPU could do at the clock of the calibration; both by rank.
std::vector<double> sustained_clocks(const Prediction& prediction, std::span<const double> before,
                                     std::span<const double> flop, std::span<const double> powers,
                                     const SimOptions& options);

/// FLOP/s that the GPU of each of the first `ranks` ranks could do without end at the clock of the calibration.
std::vector<double> rank_powers(const layouts::Schedule& schedule, const Machine& machine, const Topology& topology,
                                int ranks);

/// A pass played at given clocks; FLOP and power as in sustained_clocks(), by rank.
struct PlayedPass {
    Prediction prediction;
    std::vector<double> flop, powers;
};

/// Whether clocks are to be found: they are asked for, and power has an end.
bool power_sets_clocks(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options);

/// Clocks of `ranks` ranks that leave as much power as there is, found by playing the pass at some: they depend on how
/// busy ranks are, and that on them, though little. Plays at full clock first; where power bounds no rank, no more.
std::vector<double> settled_clocks(std::size_t ranks, const SimOptions& options,
                                   const std::function<PlayedPass(const std::vector<double>&)>& play);

}  // namespace ringlab::sim
