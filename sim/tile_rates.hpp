#pragma once

#include "sim/machine.hpp"

#include <string>

namespace ringlab::sim {

/// How the prices of tiles and the rate that a cost gives contradict each other: "618.2 TFLOP/s by full_tile_us, 300 by
/// teraflops". Empty where they differ by 20 % or less, where one of them is missing, and for tiles of one row, whose
/// time is that of memory.
std::string disagreement_of_rates(const AttentionCost& cost, layouts::Pass pass, double multiprocessors);

/// Gives prices of tiles to costs that have a rate alone: a tile, full or partial, takes what its FLOP take at
/// `teraflops`. Notes in the machine which those are, and where prices and rates contradict each other.
void settle_tiles_and_rates(Machine& machine);

}  // namespace ringlab::sim
