#pragma once

#include "experiments/options/config.hpp"
#include "experiments/record/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A machine file that --machines names.
struct DescribedMachine {
    std::string name;   ///< without folder and ending
    std::string file;   ///< its path
    std::string given;  ///< as --machines names it
    sim::Machine machine;
};

/// Loads what --machines names. Notes for the user go to stderr; under MPI the first process prints them. Throws Error
/// as sim::load_machine() does, if two files have one name, or if a machine has fewer GPUs than one of --ranks.
std::vector<DescribedMachine> described_machines(const Config& config);

/// Path, digest and text of a machine's file, and the figures that were derived.
void add_provenance(Provenance& provenance, const DescribedMachine& described);

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
