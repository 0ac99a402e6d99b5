#pragma once

#include "experiments/config/config.hpp"
#include "experiments/memory/memory.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Memory of one device, bytes.
struct Capacity {
    std::int64_t device = 0;
    std::int64_t reserved = 0;  ///< for what is no tensor
    std::int64_t resident = 0;  ///< weights and what else lies there all the time
};

/// As the options say, or else the machine file. Throws Error if neither does.
Capacity capacity_of(const sim::Machine& machine, const std::string& machine_name, const Config& config);

/// What a policy keeps of a layer until its backward pass.
struct Keeping {
    std::string policy;
    std::int64_t token_bytes = 0;  ///< of each token and layer
    /// Of which the layer at work has all but this in its own inputs and results already.
    std::int64_t apart_bytes = 0;
    bool with_backward = true;
    std::string again;  ///< what is computed again, for people: "projections, attention"
};

/// "everything", "output", "kv", "checkpoint" or "cache"; see --keep.
Keeping keeping(const std::string& policy, const layouts::Problem& problem, const Config& config);

/// All that the fullest rank holds while the first layer's backward pass runs, the others' activations still there.
struct Footprint {
    MemoryNeed pass;        ///< attention of one layer
    std::int64_t kept = 0;  ///< of all layers, beside the one at work
    std::int64_t resident = 0;
    std::int64_t reserved = 0;

    std::int64_t total() const { return pass.total() + kept + resident + reserved; }
    /// The largest part, in words: "kept activations 61 %".
    std::string largest_part() const;
};

/// `backward` may be null: that of a policy without one is not looked at.
Footprint footprint(const layouts::Schedule& forward, const layouts::Schedule* backward, const Keeping& keeping,
                    int layers, const Capacity& capacity);

}  // namespace ringlab::experiments
