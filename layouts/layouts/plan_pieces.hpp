#pragma once

#include "layouts/layouts/plan.hpp"
#include "layouts/layouts/visible_pairs.hpp"

#include <span>
#include <vector>

namespace ringlab::layouts {

/// What one rank owns of a part.
struct PlanPiece {
    Interval tokens;
    int rank = 0;
};

/// Prices plans of one mask.
class PlanPricer {
public:
    /// All three must outlive the pricer.
    PlanPricer(const Mask& mask, std::span<const PlanPart> parts, const PlanPrices& prices);

    /// `pieces` of each part, in the order of their positions.
    PlanCost cost(std::span<const std::vector<PlanPiece>> pieces, int ranks) const;

    double pairs(Interval rows) const;

    /// Both passes of a whole part.
    double whole(const PlanPart& part) const;

private:
    Interval keys_of(Interval rows) const;

    const Mask& mask_;
    std::span<const PlanPart> parts_;
    const PlanPrices& prices_;
    Run everything_;
    KeyCounter keys_;
};

}  // namespace ringlab::layouts
