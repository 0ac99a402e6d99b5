#pragma once

#include "experiments/config/case.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <array>
#include <string>

namespace ringlab::experiments {

/// Whether the mask packs documents, so that a layout can be better or worse than what is usual.
bool packs_documents(const std::string& mask);

/// Seconds of each pass below which no layout of the packing comes: its work, evenly shared by the ranks, if no
/// document is cut and messages take no time. Simulates contiguous shards under `seen` without links.
std::array<double, 2> least_seconds(Case which, const layouts::Problem& problem, const sim::Machine& machine,
                                    sim::SimOptions options);

}  // namespace ringlab::experiments
