#pragma once

#include "layouts/layouts/plan.hpp"
#include "layouts/layouts/visible_pairs.hpp"

#include <span>
#include <vector>

namespace ringlab::layouts {

/// The interval of a part that one rank owns.
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
    struct Load;
    struct Loads;

    Interval keys_of(Interval rows) const;
    int host_of(int rank) const { return rank / prices_.ranks_per_host; }
    /// Other ranks of a group are attended to in one launch.
    int group_of(int rank) const { return prices_.crosses_once ? host_of(rank) : rank; }
    void add_own_rows(const PlanPart& part, std::span<const PlanPiece> pieces, std::span<Load> loads) const;
    std::int64_t add_keys_of_others(std::span<const PlanPiece> pieces, Loads& loads) const;
    static double seconds_of(const LinkPrices& link, double received, double given);
    static double work_of(const Load& load, const PassPrices& prices);

    const Mask& mask_;
    std::span<const PlanPart> parts_;
    const PlanPrices& prices_;
    Run everything_;
    KeyCounter keys_;
};

}  // namespace ringlab::layouts
