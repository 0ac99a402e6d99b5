#pragma once

#include "layouts/plan/plan_pieces.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace ringlab::layouts {

/// Number of tokens that a rank owns of a part.
struct Share {
    int rank = 0;
    std::int64_t tokens = 0;
};

constexpr auto nowhere = std::numeric_limits<std::size_t>::max();

/// A part, or an interval of a part that is cut, which one rank gets.
struct Item {
    std::size_t part = 0;
    Interval tokens;
    double seconds = 0;
    std::size_t rank = nowhere;
};

/// A candidate for the plan. Ranks get items. The long parts form a chain, which fills the room that items leave: one
/// part after the other, rank by rank. So every rank has the same number of tokens wherever the items go.
struct Draft {
    std::vector<std::size_t> chain;  // parts
    std::vector<double> density;     // by place in the chain: seconds per token
    std::vector<Item> items;
    std::vector<std::int64_t> room;  // by rank: tokens that are not of items
    std::vector<double> seconds;     // by rank: of items, and what the last price of the rank was above the model's
};

/// What is expected of the chain on each rank.
struct ChainForecast {
    std::vector<double> density;     // by rank: seconds per token
    std::vector<std::size_t> place;  // by rank: in the chain, of the part that has most of the rank
    std::vector<double> room;        // by place: tokens of items that its ranks have room for
};

/// Makes a plan: planned_layout().
class Planner {
public:
    Planner(const Mask& mask, int ranks, const PlanPrices& prices)
        : mask_(mask),
          prices_(prices),
          ranks_(static_cast<std::size_t>(ranks)),
          share_(mask.tokens() / ranks),
          grain_(share_ >= 4 * prices.tile ? prices.tile : 1),
          parts_(plan_parts(mask)),
          pricer_(mask, parts_, prices, ranks) {
        for (const auto& part : parts_) {
            whole_.push_back(pricer_.whole(part));
            mean_ += whole_.back() / ranks;
        }
    }

    Pieces plan() const;

    std::vector<std::vector<Run>> shards(Pieces pieces) const;

private:
    /// Whether there are so many ranks that there is time for a few drafts only.
    bool is_large() const { return ranks_ > 128; }

    /// Rounds of evening out and pricing for each draft. 16 gain 0.3 % and take twice as long.
    static constexpr int rounds = 8;

    std::size_t most_steps() const { return is_large() ? 128 : 4 * ranks_; }

    static constexpr int most_bands = 16;

    std::int64_t length(std::size_t part) const { return parts_[part].tokens.size(); }

    std::size_t host(std::size_t rank) const { return rank / static_cast<std::size_t>(prices_.ranks_per_host); }

    PlanCost price_of(Pieces& pieces) const;

    /// The best plan in which no part is cut, and its price, found by trying all of them. Nothing, at an infinite
    /// price, if there are too many to try.
    std::pair<Pieces, double> best_of_wholes() const;

    /// Drafts of a few parts in every order, one part after the other, without items.
    std::vector<Draft> all_orders() const;

    // plan_drafts.cpp

    bool is_long(std::size_t part, double most) const;

    bool spreads(double most) const;

    /// The smallest limit of a rank's work with which all long parts find room, if the other parts could be divided at
    /// will.
    double least_that_fits() const;

    /// Mean seconds per token of the parts that are not spread.
    double filler_density(double most) const;

    /// A draft in which a rank has about `most` seconds of work. With `everywhere`, the chain takes up all ranks.
    Draft draft(double most, bool everywhere) const;

    /// If each part of the chain takes up so many ranks, one after the other. On ranks behind the chain, which items
    /// fill, a token of the chain counts as much as the most expensive one.
    ChainForecast forecast(const Draft& d, const std::vector<double>& ranks, double most) const;

    /// Seconds of both passes for one token of a part, if `ranks` ranks have pieces of the part.
    double token_seconds(std::size_t part, double ranks) const;

    /// Number of ranks that the part takes up, as a fraction, if each rank works for `most` seconds and the rest of its
    /// room is filled with tokens that take `filler` seconds each.
    double ranks_wanted(std::size_t part, double most, double filler) const;

    // plan_assign.cpp

    /// Gives the items to ranks, the most expensive first. If the chain filled all the room of a rank, the rank would
    /// work for more than `most` seconds; an item goes where most tokens of the chain have to be replaced. If it is
    /// more than any rank needs, it is cut.
    void assign_items(Draft& d, ChainForecast chain, double most) const;

    /// The rank to which an item goes, and how many of its tokens.
    std::pair<std::size_t, std::int64_t> best_rank(const Draft& d, const ChainForecast& chain, const Item& item,
                                                   double most) const;

    /// Seconds of both passes of an item of a part that is cut.
    double seconds_of(const Item& item) const;

    void give(Draft& d, Item& item, std::size_t rank) const;

    // plan_even_out.cpp

    std::vector<double> work_of(const Draft& d) const;

    /// Evens out the work of the ranks. The busiest rank exchanges an item with another rank, or takes one or gives one
    /// away. The chain makes up for the tokens, so that it shifts on the ranks in between. This is repeated until it no
    /// longer helps.
    void even_out(Draft& d) const;

    // plan_cut.cpp

    /// The pieces of all parts. A part of the chain is cut into at most so many bands.
    Pieces cut(const Draft& d, int bands) const;

    /// Cuts the part into as many bands as are needed to give every rank about the same number of pairs per token: one
    /// if all rows see equally many keys, two if later rows see more.
    std::vector<PlanPiece> in_even_bands(std::size_t part, const std::vector<Share>& shares, int limit) const;

    /// Cuts the part into `bands` bands. A rank has the same number of tiles in each band, and the rest of its tokens
    /// in the last one. The order of the ranks is reversed from one band to the next.
    std::vector<PlanPiece> in_bands(std::size_t part, const std::vector<Share>& shares, int bands) const;

    /// Fills the room of the ranks with the chain: calls visit(rank, place in the chain, tokens) in order.
    template <class Visit>
    void lay_chain(const Draft& d, Visit visit) const {
        std::size_t place = 0;
        std::int64_t laid = 0;  // tokens of the part at `place`
        for (std::size_t rank = 0; rank < ranks_; ++rank)
            for (auto room = d.room[rank]; room > 0;) {
                const auto here = std::min(room, length(d.chain[place]) - laid);
                visit(rank, place, here);
                room -= here;
                laid += here;
                if (laid == length(d.chain[place])) ++place, laid = 0;
            }
    }
    const Mask& mask_;
    const PlanPrices& prices_;
    std::size_t ranks_;
    std::int64_t share_, grain_;
    std::vector<PlanPart> parts_;
    PlanPricer pricer_;
    std::vector<double> whole_;  // seconds of both passes of each part, if one rank owns all of it
    double mean_ = 0;
};

}  // namespace ringlab::layouts
