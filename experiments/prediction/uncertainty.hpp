#pragma once

#include "layouts/masks/mask.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// One pass of a ring: measured, and predicted by today's model.
struct ScoredPass {
    double measured = 0;    ///< seconds: median of the slowest rank
    double spread = 0;      ///< of the measurements: distance of the quartiles over the median
    double predicted = 0;   ///< seconds
    double overlapped = 0;  ///< relative error of the naive guess that transfers hide behind compute
    double serial = 0;      ///< relative error of the naive guess that nothing hides
    double recorded = 0;    ///< relative error that the record keeps, by the model of its day; NaN: it keeps none
    /// Of the busiest rank's compute, relative, and of the balance, predicted less measured; NaN: not known.
    double compute = std::numeric_limits<double>::quiet_NaN(), balance = compute;

    double error() const { return predicted / measured - 1; }
};

/// A ring of a record, scored on a machine file.
struct ScoredRing {
    std::string run;      ///< its name in the record of scores
    std::string record;   ///< where it was measured, without folder and ending
    std::string machine;  ///< the machine file, without folder and ending
    std::string transport, shape, mask, layout, schedule;
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

/// From this density() on a mask is dense.
inline constexpr double dense_from = 0.5;

/// Least number of rings for a quantile of nine in ten. With fewer, the quantile of margin() is beyond their largest
/// deviation.
inline constexpr std::size_t enough_rings = 9;

/// The u of "predicted * (1 +- u)" within which nine of ten measured times of a forward and a backward pass are
/// expected to lie, from rings that were measured on the same machine. Rings are in bins by length_bin() and by whether
/// their mask is dense. u is the ceil(0.9 (n + 1))-th smallest deviation of the n rings of the bin (split conformal
/// prediction, Lei et al. 2018, arXiv 1604.04173, section 2). A bin with fewer than `enough_rings` has the larger of
/// two figures: the largest deviation in it, and that quantile over the next wider set with enough rings. Wider sets
/// are rings of all lengths and the same density, and then all rings. Nothing if all are too few, or none is of that
/// density.
std::optional<double> margin(const std::vector<ScoredRing>& rings, std::int64_t tokens_per_rank, double density);

/// How many of the rings lie within their margin.
struct Coverage {
    std::size_t within = 0, all = 0;
};
/// Counts by margins from all rings of the same machine file, including the ring itself; or, held out, from rings of
/// other records of the same machine file. Rings with too few others are left out.
Coverage coverage(const std::vector<ScoredRing>& rings, bool held_out);

/// How far off predictions of rings on a machine were, or are assumed to be.
struct Uncertainty {
    std::vector<ScoredRing> rings;  ///< that were scored on the machine file as it is, or see is_own; empty: none
    std::string source;             ///< what they were, or why there are none
    double assumed = 0;  ///< margin by the machine file (sim::Machine::assumed_margin), if there are no rings; 0: none

    /// Whether the rings were scored on this very file. If not, they are those of all files that `calibrate` fitted to
    /// other GPUs. The margin by the other files' rings held for 89 % of each file's own (601 of 672, November 2026).
    bool is_own = true;

    /// Whether rings are known.
    bool known() const { return !rings.empty(); }

    /// Mean and largest deviation of the rings; 0 if there are none.
    double mean() const, largest() const;

    /// See margin(). Nothing on one rank, where there is no ring. Without scored rings the assumed margin, if any,
    /// which holds for one rank too.
    std::optional<double> margin_of(int ranks, std::int64_t tokens, double density) const;
};

/// The uncertainty by results/scores.h5, if rings were scored there with a machine file of the same contents and at
/// this clock; else of a file that `calibrate` fitted to GPUs, by the rings of all such files. `name`, that of the
/// machine file without folder and ending, is for the message if they differ.
Uncertainty uncertainty_of(const sim::Machine& machine, const std::string& name,
                           sim::Clock clock = sim::Clock::sustained);

/// What to think of predictions on a machine, in one line for people: its uncertainty, and how many of its figures are
/// derived.
std::string trust_line(const std::string& name, const sim::Machine& machine, const Uncertainty& uncertainty);

}  // namespace ringlab::experiments
