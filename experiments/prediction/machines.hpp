#pragma once

#include "experiments/options/config.hpp"
#include "experiments/record/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <cstdint>
#include <string>

namespace ringlab::experiments {

/// Loads a machine file that --machines names. Notes for the user go to stderr; under MPI the first process prints
/// them. Throws Error as sim::load_machine does.
sim::Machine described_machine(const std::string& file, const ExecutionConfig& config);

/// Path, digest and text of a machine's file, and the figures that were derived.
void add_provenance(Provenance& provenance, const std::string& name, const std::string& file,
                    const sim::Machine& machine);

/// What a machine file describes, in one line for --list: GPUs and links, how many of its figures were measured or
/// fitted and how many assumed, and how far predictions on it were from measured rings. Throws Error if it cannot be
/// read.
std::string machine_line(const std::string& name);

/// Throws Error if `machine` has fewer than `needed` GPUs, which is what `asked` ("--ranks 16") needs. The message
/// names the machine files of Ringlab that have as many.
void require_machine_gpus(const sim::Machine& machine, std::int64_t needed, const std::string& asked);

/// "these have room: NAME (N GPUs), ...": the machine files of Ringlab with as many GPUs of as much memory.
std::string machines_with_room(std::int64_t gpus, double memory_bytes = 0);

}  // namespace ringlab::experiments
