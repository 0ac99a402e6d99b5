#pragma once

#include "sim/machine/machine.hpp"

#include <string>

namespace ringlab::sim {

/// How tile prices and `teraflops` of a cost contradict each other, for example "618.2 TFLOP/s by full_tile_us, 300 by
/// teraflops". Empty if they differ by at most 20 %, if one of them is missing, and for tiles of one row, whose time is
/// that of memory.
std::string contradiction_of_rates(const AttentionCost& cost, layouts::Pass pass, double sms);

/// Computes tile prices for costs that have only a rate: a tile, full or partial, takes its FLOP at `teraflops`. Adds
/// notes to the machine on which these are, and where prices and rates contradict each other.
void complete_tile_prices(Machine& machine);

}  // namespace ringlab::sim
