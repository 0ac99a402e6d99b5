#pragma once

#include "sim/machine/topology.hpp"
#include "sim/play/simulate.hpp"

#include <functional>
#include <span>
#include <vector>

namespace ringlab::sim {

/// Clock of each rank, relative to the calibration, that power allows when a pass is repeated without end.
///
/// The energy of a FLOP grows with the square of the voltage, and the voltage about with the clock. So power limits
/// FLOP/s x clock^2, and attends that use the SMs better run at a lower clock. The limit holds on average over a pass
/// and the pause behind it, for each rank. A rank that waits for others has power to spare, and the period of all ranks
/// is that of the slowest one.
///
/// `prediction` was made at the clocks `before`; when a rank computes for longer, its period is assumed to grow by the
/// same time. `flop` counts all pairs of all tiles that are computed, visible or masked, because both take power.
/// `powers` are the FLOP/s that each rank's GPU could sustain at the clock of the calibration. Both are by rank.
std::vector<double> clocks_within_power(const Prediction& prediction, std::span<const double> before,
                                        std::span<const double> flop, std::span<const double> powers,
                                        const SimOptions& options);

/// FLOP/s that the GPU of each of the first `ranks` ranks could sustain at the clock of the calibration.
std::vector<double> sustained_flops_by_rank(const layouts::Schedule& schedule, const Machine& machine,
                                            const Topology& topology, int ranks);

/// A pass played at given clocks. FLOP by rank, as clocks_within_power() takes them.
struct PlayedPass {
    Prediction prediction;
    std::vector<double> flop;
};

/// Whether power determines the clocks: sustained clocks are asked for, and the machine's power is limited.
bool power_limits_clocks(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options);

/// Clocks of ranks at which they use the power that there is, sustained_flops_by_rank(). Calls `play` with clocks to
/// get the pass at these, first at full clock: clocks depend on how busy ranks are, which depends a little on the
/// clocks. Stops early if power limits no rank.
std::vector<double> find_sustained_clocks(std::span<const double> powers, const SimOptions& options,
                                          const std::function<PlayedPass(const std::vector<double>&)>& play);

}  // namespace ringlab::sim
