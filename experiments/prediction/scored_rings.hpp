#pragma once

#include "layouts/masks/mask.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// One pass of a ring: measured, and predicted by today's model.
struct ScoredPass {
    double measured = 0;    ///< seconds: median of the slowest rank
    double predicted = 0;   ///< seconds
    double overlapped = 0;  ///< relative error of the naive guess that transfers hide behind compute
    double serial = 0;      ///< relative error of the naive guess that nothing hides
    double recorded = 0;    ///< relative error that the record keeps, by the model of its day; NaN: it keeps none

    double error() const { return predicted / measured - 1; }
};

/// A ring of a record, scored on a machine file.
struct ScoredRing {
    std::string run;      ///< its name in the record of scores
    std::string record;   ///< where it was measured, without folder and ending
    std::string machine;  ///< the machine file, without folder and ending
    std::string transport, shape, layout, schedule;
    std::int64_t tokens_per_rank = 0;
    double density = 0;                  ///< see density()
    std::array<ScoredPass, 2> passes{};  ///< forward, backward

    /// |measured / predicted - 1| of a forward and a backward pass together.
    double deviation() const;
};

/// What `validate --measured all` has found, and the machine files that it used.
struct Scores {
    std::vector<ScoredRing> rings;
    std::vector<ScoredRing> warm;  ///< during which a GPU was slowed down because of its temperature; in no margin
    std::map<std::string, std::string> machine_digests;  ///< SHA-256 of a machine file by its name, see ScoredRing
};

/// Throws Error if the file is not a record of `validate --measured all`.
Scores load_scores(const std::string& file);

/// Visible pairs of the mask over those of a causal mask of as many tokens.
double density(const layouts::Mask& mask);

/// Rings are scored together by their tokens per rank: from `least` up to the least of the bin before.
struct LengthBin {
    std::int64_t least;
    const char* name;
};
inline constexpr std::array<LengthBin, 3> length_bins{{{8192, "from 8Ki"}, {2048, "2Ki to 8Ki"}, {0, "below 2Ki"}}};
const LengthBin& length_bin(std::int64_t tokens_per_rank);

}  // namespace ringlab::experiments
