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

/// Whether a forward attend runs on the machine's split-KV kernel, which is for few query rows, or a batch of sequences
/// with few each, as in decoding.
bool uses_split_kv(const layouts::Schedule& schedule, const layouts::Op& attend, const Machine& machine);

/// Whether the split-KV kernel does a rank's whole pass in one launch, see Schedule::is_one_launch(): if copy engines
/// connect the GPUs, because then a GPU can also store in a peer's memory. To be used for ranks of one host.
bool passes_are_one_launch(const layouts::Schedule& schedule, const Machine& machine);

/// Seconds of that kernel: its launch, and the longer of two times: reading all K and V, and what the busiest thread
/// block reads of them. A work tile is up to `rows` rows of the query heads of one kv head. Thread blocks may share a
/// work tile; the number of them is chosen so that (waves) x (share of a work tile) is least.
double split_kv_seconds(const layouts::Schedule& schedule, const layouts::Op& attend, const Machine& machine);

}  // namespace ringlab::sim
