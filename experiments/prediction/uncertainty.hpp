#pragma once

#include "experiments/prediction/scored_rings.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"

#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// From this density() on a mask is dense.
inline constexpr double dense_from = 0.5;

/// How many rings it takes to say what nine of ten of them keep to: with fewer, the quantile of margin() is beyond the
/// largest of their deviations.
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
/// Margins by all rings of the same machine file, the ring itself among them.
Coverage coverage(const std::vector<ScoredRing>& rings);
/// Margins by rings of other records of the same machine file; rings for which there are too few are left out.
Coverage coverage_of_held_out_records(const std::vector<ScoredRing>& rings);

/// How far predicted times of rings on a machine were from measured ones.
struct Uncertainty {
    std::vector<ScoredRing> rings;  ///< that were scored on the machine file as it is; empty: none
    std::string source;             ///< what they were, or why there are none

    bool known() const { return !rings.empty(); }

    /// Of deviations of rings; 0 where there are none.
    double mean() const, largest() const;

    /// See margin(). Nothing on one rank, where there is no ring.
    std::optional<double> margin_of(int ranks, std::int64_t tokens, double density) const;
};

/// By results/scores.h5, if rings were scored there on a machine file of the same contents and at this clock. `name` of
/// the machine file, without folder and ending, is for the message if they differ.
Uncertainty uncertainty_of(const sim::Machine& machine, const std::string& name,
                           sim::Clock clock = sim::Clock::sustained);

}  // namespace ringlab::experiments
