#pragma once

#include "layouts/schedule.hpp"
#include "sim/machine.hpp"

#include <string>
#include <vector>

namespace ringlab::sim {

/// What attends of a problem cost on a machine, and how well that is known.
struct KernelPrice {
    const AttentionCost* cost = nullptr;
    bool holds_dims = false;  ///< the kernel's tiles are of the problem's dims, or filled up to its own
    bool has_scores = false;  ///< it does to scores what the problem wants
};

/// Of the kernels that a machine file has prices of, the smallest that holds the problem's dims, with capped scores if
/// the problem's are; where there is none, one that does something else to scores, or else the machine's own.
KernelPrice kernel_price(const Machine& machine, layouts::Pass pass, const layouts::Problem& problem);

const AttentionCost& attention_cost(const Machine& machine, const layouts::Schedule& schedule);

/// How many times a tile takes what the price says: it goes as a tile's FLOP, but where the file tells kernels apart
/// that fill dims up.
double tile_stretch(const Machine& machine, const layouts::Schedule& schedule);

/// What of a problem the machine file has no price of, or two that contradict each other, a sentence each, for people
/// to read.
std::vector<std::string> notes_of_kernel(const Machine& machine, const layouts::Schedule& schedule);

}  // namespace ringlab::sim
