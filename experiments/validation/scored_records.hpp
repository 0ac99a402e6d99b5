#pragma once

#include "experiments/validation/recorded.hpp"
#include "sim/machine/machine.hpp"

#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// A record among the results that come with Ringlab that holds measured rings.
struct ScoredRecord {
    std::string name;     ///< without folder and ending
    std::string path;     ///< of the file
    std::string why_not;  ///< the reason why its rings are not scored; empty: they are
    /// By transport of its rings: the machine file, by name, that was calibrated on the machine they were measured on.
    /// Empty where they are not scored.
    std::map<std::string, std::string> machines;
    LeftOut left_out = {};      ///< rings that are not scored, each for a reason of its own
    std::size_t hot_rings = 0;  ///< how many of those are hot
};

/// The machines of a record's rings, by transport.
std::map<std::string, sim::Machine> load_machines(const ScoredRecord& record);

/// All of them, by name. Every record of validate and throughput is looked into; results/not_scored.toml lists those
/// that are not scored, or whose rings of a schedule are not, or its short ones, with the reason. Rings during which a
/// GPU was slowed down because of its temperature are predicted, but in no table or margin. A record's name tells its
/// machine: KIND_MACHINE_MORE is scored on MACHINE_calibrated, its rings over NCCL on MACHINE_calibrated_nccl.
///
/// Throws Error if the list names what is not there, or if there is no such machine file.
std::vector<ScoredRecord> scored_records();

}  // namespace ringlab::experiments
