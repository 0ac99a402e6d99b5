#pragma once

#include "layouts/layouts/plan.hpp"
#include "layouts/problem/problem.hpp"
#include "sim/machine/machine.hpp"

namespace ringlab::sim {

/// What the layout `planned` is made for: prices of attention on a machine as the schedule `seen` has them, from its
/// prices of tiles, at the clock that power allows without end. `ranks` are those of one ring, rank r on GPU r.
layouts::PlanPrices plan_prices(const Machine& machine, const layouts::Problem& problem, int ranks,
                                layouts::DType gradient_dtype = layouts::DType::fp32);

}  // namespace ringlab::sim
