#pragma once

#include "experiments/config/config.hpp"
#include "sim/machine/machine.hpp"

#include <string>

namespace ringlab::experiments {

/// The machine of a file that --machines names. What the user should know about the file goes to stderr, of processes
/// under MPI from the first one. Throws Error as sim::load_machine does.
sim::Machine described_machine(const std::string& file, const Config& config);

}  // namespace ringlab::experiments
