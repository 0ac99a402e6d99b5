#pragma once

#include "experiments/config/config.hpp"

namespace ringlab::experiments {

/// What one figure of a machine file for the CPU backend is found from: processor time of single operations, of passes
/// of one rank and of ranks that take turns, and messages that travel while nothing is computed. Writes the machine
/// file and prints a table. Returns the exit status.
int calibrate_cpu(const Config& config);

}  // namespace ringlab::experiments
