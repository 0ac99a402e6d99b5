#pragma once

#include "experiments/memory/memory.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/prediction/machines.hpp"
#include "layouts/schedules/schedule.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Memory of one device, bytes.
struct Capacity {
    std::int64_t device = 0;
    std::int64_t reserved = 0;  ///< for everything that is not a tensor
    std::int64_t resident = 0;  ///< weights and everything else that is always in use
};

/// As the options say, or else the machine file. Throws Error if neither does.
Capacity capacity_of(const DescribedMachine& described, const MemoryConfig& config);

/// A described machine, and the memory of one of its devices.
struct Device : DescribedMachine {
    Capacity capacity;
};

/// Those that --machines names. Throws Error if that is none, and as described_machines() and capacity_of() do.
std::vector<Device> devices_of(const Config& config);

/// What a policy keeps of a layer until its backward pass.
struct Keeping {
    std::string policy;
    std::int64_t token_bytes = 0;  ///< kept for each token and layer
    /// Part of token_bytes that the layer being computed does not have in its own inputs and results already.
    std::int64_t apart_bytes = 0;
    bool with_backward = true;
    std::string again;  ///< what is computed again, for people: "projections, attention"
};

/// "everything", "output", "kv", "checkpoint" or "cache"; see --keep.
Keeping keeping(const std::string& policy, const layouts::Problem& problem, const MemoryConfig& config);

/// All that the fullest rank holds while the first layer's backward pass runs, the others' activations still there.
struct Footprint {
    MemoryNeed pass;        ///< attention of one layer
    std::int64_t kept = 0;  ///< of all layers except the one being computed
    std::int64_t resident = 0;
    std::int64_t reserved = 0;

    std::int64_t total() const { return pass.total() + kept + resident + reserved; }
    /// The largest part, in words: "kept activations 61 %".
    std::string largest_part() const;
};

/// `backward` may be null: that of a policy without one is not looked at.
Footprint footprint(const layouts::Schedule& forward, const layouts::Schedule* backward, const Keeping& keeping,
                    int layers, const Capacity& capacity);

/// The longest sequence that fits.
struct Longest {
    std::int64_t tokens = 0;  ///< of the whole sequence; 0 if not even one granule of the layout fits
    Footprint footprint;      ///< of these tokens, or of the granule that does not fit
    std::string limit;        ///< in words: what keeps it from being longer
};

/// The longest of the lengths `granularity`, 2 * `granularity` and so on below `most` whose footprint `fits`, if every
/// length above one that does not fit does not fit either. Tries some 2 log2(most / granularity) lengths.
std::int64_t longest_that(std::int64_t granularity, std::int64_t most, const std::function<bool(std::int64_t)>& fits);

/// `which` without its tokens. Throws Error if the mask, layout or schedule cannot be made for any length.
Longest longest_context(Case setup, const layouts::Problem& problem, const MemoryConfig& config, const Keeping& keeping,
                        const Capacity& capacity);

}  // namespace ringlab::experiments
