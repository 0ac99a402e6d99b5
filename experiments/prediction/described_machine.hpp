#pragma once

#include "experiments/options/config.hpp"
#include "experiments/record/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <string>

namespace ringlab::experiments {

/// Loads a machine file that --machines names. Notes for the user go to stderr; under MPI the first process prints
/// them. Throws Error as sim::load_machine does.
sim::Machine described_machine(const std::string& file, const ExecutionConfig& config);

/// Path, digest and text of a machine's file, and the figures that were derived.
void add_provenance(Provenance& provenance, const std::string& name, const std::string& file,
                    const sim::Machine& machine);

}  // namespace ringlab::experiments
