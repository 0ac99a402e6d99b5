#pragma once

#include "experiments/memory/footprint.hpp"
#include "experiments/options/case.hpp"
#include "experiments/record/record.hpp"

#include <functional>
#include <string>
#include <vector>

namespace ringlab::experiments {

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
Longest longest_context(Case which, const layouts::Problem& problem, const MemoryConfig& config, const Keeping& keeping,
                        const Capacity& capacity);

/// How many of these runs were executed to confirm them and did not fit.
int refuted(const Record& record, const std::vector<std::string>& runs);

}  // namespace ringlab::experiments
