#pragma once

#include "experiments/options/config.hpp"

namespace ringlab::experiments {

/// Calibrates the CPU backend: processor time of single operations, of passes of one rank and of ranks that take turns,
/// and messages between ranks that compute nothing. Writes the machine file and prints a table. Returns the exit
/// status.
int calibrate_cpu(const Config& config);

}  // namespace ringlab::experiments
