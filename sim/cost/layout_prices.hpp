#pragma once

#include "layouts/planned/planned.hpp"
#include "layouts/problem/problem.hpp"
#include "sim/machine/machine.hpp"

namespace ringlab::sim {

/// The prices for which the layout `planned` is made on a machine. They follow from its prices of tiles, for the
/// schedule `seen`, at the sustained clock. `ranks` is the number of ranks of one ring, rank r on GPU r.
layouts::LayoutPrices layout_prices(const Machine& machine, const layouts::Problem& problem, int ranks,
                                    layouts::DType gradient_dtype = layouts::DType::fp32);

}  // namespace ringlab::sim
