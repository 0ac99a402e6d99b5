#pragma once

#include "layouts/planned/planned_pricer.hpp"

#include <limits>
#include <vector>

namespace ringlab::layouts {

/// What a plan is made of and for.
struct PlanTask {
    /// Mask and prices must outlive the task.
    PlanTask(const Mask& mask, int ranks, const LayoutPrices& prices);
    PlanTask(const PlanTask&) = delete;
    PlanTask& operator=(const PlanTask&) = delete;

    std::int64_t length(std::size_t part) const { return parts[part].tokens.size(); }

    /// Whether there are so many ranks that there is time for a few drafts only.
    bool is_large() const { return ranks > 128; }

    const Mask& mask;
    const LayoutPrices& prices;
    std::size_t ranks;
    std::int64_t share;  ///< tokens of a rank
    std::int64_t grain;  ///< parts are cut at multiples of it, if possible
    std::vector<PackedDocument> parts;
    LayoutPricer pricer;
    std::vector<double> whole;  ///< by part: seconds of both passes, if one rank owns all of it
    double mean = 0;            ///< of a rank's part of these seconds
};

/// A part, or an interval of a part that is cut, which one rank gets.
struct Item {
    static constexpr auto nowhere = std::numeric_limits<std::size_t>::max();

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

    void give(Item& item, std::size_t to) {
        item.rank = to;
        room[to] -= item.tokens.size();
        seconds[to] += item.seconds;
    }

    /// Fills the room of the ranks with the chain: calls visit(rank, place in the chain, tokens) in order.
    template <class Visit>
    void lay_chain(const PlanTask& task, Visit visit) const {
        std::size_t place = 0;
        std::int64_t laid = 0;  // tokens of the part at `place`
        for (std::size_t rank = 0; rank < room.size(); ++rank)
            for (auto left = room[rank]; left > 0;) {
                const auto here = std::min(left, task.length(chain[place]) - laid);
                visit(rank, place, here);
                left -= here;
                laid += here;
                if (laid == task.length(chain[place])) ++place, laid = 0;
            }
    }
};

/// The parts that are spread over ranks, if each rank works for so long, and for how many.
struct LongParts {
    std::vector<std::size_t> parts;
    std::vector<double> ranks;  ///< by part: the ranks that it takes up, as a fraction; 0 for short parts
};
LongParts long_parts(const PlanTask& task, double most);

/// The smallest limit of a rank's work with which all long parts find room, if the other parts could be divided at
/// will.
double least_work_that_fits(const PlanTask& task);

/// A draft in which a rank has about `most` seconds of work. With `everywhere`, the chain takes up all ranks.
Draft make_draft(const PlanTask& task, double most, bool everywhere);

}  // namespace ringlab::layouts
