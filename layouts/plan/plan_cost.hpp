#pragma once

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/plan/plan.hpp"

namespace ringlab::layouts {

/// An interval of a part that one rank owns.
struct PlanPiece {
    Interval tokens;
    int rank = 0;
    std::int64_t place = 0;  ///< of its first token in the rank's shard
};

/// The pieces of each part, in the order of their positions.
using Pieces = std::vector<std::vector<PlanPiece>>;

/// The pieces of a layout whose runs have stride 1. Throws Error if they have not.
Pieces pieces_of(const Layout& layout, std::span<const PlanPart> parts);

/// Sets the places of all pieces and returns them by rank, in this order: first the pieces of parts that are cut, if
/// they are whole tiles, then all others by position. So few tiles hold rows of several parts.
std::vector<std::vector<PlanPiece*>> place_pieces(Pieces& pieces, int ranks, std::int64_t tile);

/// The price of a plan, which is out of all proportion if there is not the memory for it.
double price_within_memory(const PlanCost& cost, const PlanPrices& prices);

/// Prices plans of one mask.
class PlanPricer {
public:
    /// Mask, parts and prices must outlive the pricer.
    PlanPricer(const Mask& mask, std::span<const PlanPart> parts, const PlanPrices& prices, int ranks)
        : mask_(mask), parts_(parts), prices_(prices), ranks_(ranks), keys_(std::vector{Run{0, 1, mask.tokens()}}) {}

    /// The places of the pieces must be set.
    PlanCost cost(const Pieces& pieces) const;

    /// Both passes of these rows, if one rank owns them and all keys that they see.
    double seconds(Interval rows) const;

    /// Pairs that these rows see.
    double pairs(Interval rows) const;

private:
    struct Loads;

    void add_own_rows(const PlanPart& part, std::span<const PlanPiece> pieces, Loads& loads) const;
    void add_keys_of_others(std::span<const PlanPiece> pieces, Loads& loads) const;

    const Mask& mask_;
    std::span<const PlanPart> parts_;
    const PlanPrices& prices_;
    int ranks_;
    KeyCounter keys_;
};

}  // namespace ringlab::layouts
