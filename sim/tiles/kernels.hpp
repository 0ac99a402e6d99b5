#pragma once

#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"

#include <string>
#include <vector>

namespace ringlab::sim {

/// Prices of a problem's attends on a machine, and how well they fit the problem.
struct KernelPrice {
    const AttentionCost* cost = nullptr;
    bool fits_dims = false;    ///< the kernel has the problem's dims, or larger ones to which the problem is padded
    bool fits_scores = false;  ///< the kernel treats scores as the problem wants: soft cap or none
};

/// Chooses among the kernels of a machine file: the smallest that holds the problem's dims, with capped scores if the
/// problem caps them. If none fits in both, one that holds the dims; otherwise the machine's main kernel.
KernelPrice kernel_price(const Machine& machine, layouts::Pass pass, const layouts::Problem& problem);

/// The prices that kernel_price() chooses for a schedule's pass and problem.
const AttentionCost& attention_cost(const Machine& machine, const layouts::Schedule& schedule);

/// Factor on the tile times of the chosen kernel: the ratio of FLOP per tile. It is 1 if the file has several kernels
/// and one holds the problem's dims, because smaller dims are then padded to the kernel's.
double tile_time_factor(const Machine& machine, layouts::Pass pass, const layouts::Problem& problem);
double tile_time_factor(const Machine& machine, const layouts::Schedule& schedule);

/// One sentence, for users, for each thing of a problem that the machine file has no price for, or two prices that
/// contradict each other.
std::vector<std::string> notes_of_kernel(const Machine& machine, const layouts::Schedule& schedule);

}  // namespace ringlab::sim
