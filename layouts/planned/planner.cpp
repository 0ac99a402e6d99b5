// Makes plans: drafts are evened out, cut into pieces and priced, and the cheapest one wins.

#include "layouts/planned/planned_draft.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace ringlab::layouts {
namespace {

/// Number of tokens that a rank owns of a part.
struct Share {
    int rank = 0;
    std::int64_t tokens = 0;
};

void append(std::vector<DocumentPiece>& pieces, Interval tokens, int rank) {
    if (!pieces.empty() && pieces.back().rank == rank)
        pieces.back().tokens.end = tokens.end;
    else
        pieces.push_back({tokens, rank});
}

/// Cuts the part into `bands` bands. A rank has the same number of tiles in each band, and the rest of its tokens in
/// the last one. The order of the ranks is reversed from one band to the next.
std::vector<DocumentPiece> in_bands(const PlanTask& task, std::size_t part, const std::vector<Share>& shares,
                                    int bands) {
    std::vector<DocumentPiece> pieces;
    auto at = task.parts[part].tokens.begin;
    for (int band = 0; band < bands; ++band)
        for (std::size_t k = 0; k < shares.size(); ++k) {
            const auto& [rank, tokens] = shares[band % 2 == 0 ? k : shares.size() - 1 - k];
            const auto whole_tiles = tokens / (bands * task.grain) * task.grain;
            const auto size = band + 1 < bands ? whole_tiles : tokens - (bands - 1) * whole_tiles;
            if (size > 0) append(pieces, {at, at + size}, rank);
            at += size;
        }
    return pieces;
}

/// Cuts the part into as many bands as are needed to give every rank about the same number of pairs per token: one if
/// all rows see equally many keys, two if later rows see more; but at most `limit`.
std::vector<DocumentPiece> in_even_bands(const PlanTask& task, std::size_t part, const std::vector<Share>& shares,
                                         int limit) {
    constexpr double even = 1.03;
    std::vector<DocumentPiece> best;
    auto least = std::numeric_limits<double>::infinity();
    const auto length = static_cast<double>(task.length(part)), mean = task.parts[part].pairs / length;
    for (int bands = 1; bands <= limit && least > even; bands *= 2) {
        auto pieces = in_bands(task, part, shares, bands);
        std::vector<double> pairs(task.ranks, 0);
        for (const auto& piece : pieces) pairs[static_cast<std::size_t>(piece.rank)] += task.pricer.pairs(piece.tokens);
        double most = 1;
        for (const auto& [rank, tokens] : shares)
            most = std::max(most, 1 + (pairs[static_cast<std::size_t>(rank)] / mean - static_cast<double>(tokens)) *
                                          static_cast<double>(shares.size()) / length);
        if (most >= least * 0.99) continue;  // because more bands mean more messages
        least = most;
        best = std::move(pieces);
    }
    return best;
}

/// The pieces of all parts. A part of the chain is cut into at most so many bands.
Pieces cut(const PlanTask& task, const Draft& d, int bands) {
    Pieces pieces(task.parts.size());
    auto items = d.items;
    std::ranges::sort(items, {}, [](const Item& item) { return item.tokens.begin; });
    for (const auto& item : items) append(pieces[item.part], item.tokens, static_cast<int>(item.rank));
    std::vector<std::vector<Share>> shares(d.chain.size());
    d.lay_chain(task, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
        shares[place].push_back({static_cast<int>(rank), tokens});
    });
    for (std::size_t place = 0; place < d.chain.size(); ++place)
        pieces[d.chain[place]] = in_even_bands(task, d.chain[place], shares[place], bands);
    return pieces;
}

std::vector<double> work_of(const PlanTask& task, const Draft& d) {
    auto work = d.seconds;
    d.lay_chain(task, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
        work[rank] += d.density[place] * static_cast<double>(tokens);
    });
    return work;
}

/// Evens out the work of a draft's ranks. The busiest rank exchanges an item with another rank, or takes one or gives
/// one away. The chain makes up for the tokens, so that it shifts on the ranks in between. This is repeated until it no
/// longer helps.
class EvenOut {
public:
    EvenOut(const PlanTask& task, Draft& draft) : task_(task), d_(draft), of_rank_(task.ranks) {
        for (std::size_t i = 0; i < d_.items.size(); ++i) of_rank_[d_.items[i].rank].push_back(i);
        const auto most_steps = task.is_large() ? 128 : 4 * task.ranks;
        for (std::size_t step = 0; step < most_steps && exchange_helps(); ++step) {
        }
    }

private:
    static constexpr auto none = Item::nowhere;

    /// The busiest rank gives one item to another rank and takes one of its items; either may be none.
    struct Exchange {
        std::size_t given, taken, to;
    };

    bool exchange_helps() {
        work_ = work_of(task_, d_);
        busiest_ = static_cast<std::size_t>(std::ranges::max_element(work_) - work_.begin());
        constexpr std::size_t tries = 4;
        const auto found = find_exchanges();
        for (std::size_t i = 0; i < std::min(tries, found.size()); ++i) {
            const auto& [given, taken, to] = found[found.size() - 1 - i];
            move(taken, busiest_);
            move(given, to);
            if (std::ranges::max(work_of(task_, d_)) < work_[busiest_]) return true;
            move(taken, to);
            move(given, busiest_);
        }
        return false;
    }

    /// Exchanges that help by the chain's densities at both ends of each rank's room, each better than those before it.
    std::vector<Exchange> find_exchanges() const {
        std::vector<double> left(task_.ranks, 0), right(task_.ranks, 0);
        d_.lay_chain(task_, [&](std::size_t rank, std::size_t place, std::int64_t) {
            if (left[rank] == 0) left[rank] = d_.density[place];
            right[rank] = d_.density[place];
        });
        std::vector<std::size_t> borders;  // ranks with several parts of the chain
        for (std::size_t rank = 0; rank < task_.ranks; ++rank)
            if (left[rank] != right[rank]) borders.push_back(rank);
        auto least = work_[busiest_] * 0.999;
        std::vector<Exchange> found;
        const auto given_ones = items_or_none(busiest_);
        for (std::size_t to = 0; to < task_.ranks; ++to) {
            if (to == busiest_ || work_[to] >= least) continue;
            const bool above = to > busiest_;
            const auto here = above ? right[busiest_] : left[busiest_];
            const auto there = above ? left[to] : right[to];
            for (const auto taken : items_or_none(to))
                for (const auto given : given_ones) {
                    const auto more = tokens(taken) - tokens(given);  // that the busiest rank takes
                    if (more > d_.room[busiest_] || -more > d_.room[to]) continue;
                    const auto moved = seconds(taken) - seconds(given), shift = static_cast<double>(more);
                    auto after = std::max(work_[busiest_] + moved - here * shift, work_[to] - moved + there * shift);
                    if (after >= least) continue;
                    for (const auto rank : borders)
                        if (rank > std::min(busiest_, to) && rank < std::max(busiest_, to))
                            after =
                                std::max(after, work_[rank] + shift * (left[rank] - right[rank]) * (above ? 1 : -1));
                    if (after >= least) continue;
                    least = after;
                    found.push_back({given, taken, to});
                }
        }
        return found;
    }

    std::vector<std::size_t> items_or_none(std::size_t rank) const {
        auto items = of_rank_[rank];
        items.push_back(none);
        return items;
    }
    std::int64_t tokens(std::size_t item) const { return item == none ? 0 : d_.items[item].tokens.size(); }
    double seconds(std::size_t item) const { return item == none ? 0 : d_.items[item].seconds; }

    void move(std::size_t i, std::size_t to) {
        if (i == none) return;
        auto& item = d_.items[i];
        d_.room[item.rank] += item.tokens.size();
        d_.seconds[item.rank] -= item.seconds;
        std::erase(of_rank_[item.rank], i);
        of_rank_[to].push_back(i);
        d_.give(item, to);
    }

    const PlanTask& task_;
    Draft& d_;
    std::vector<std::vector<std::size_t>> of_rank_;  // items
    std::vector<double> work_;                       // by rank
    std::size_t busiest_ = 0;
};

/// The price of a plan, which is out of all proportion if there is not the memory for it.
double price_within_memory(const LayoutCost& cost, const LayoutPrices& prices) {
    constexpr double too_much = 1e6;  // seconds
    const bool fits = prices.most_gathered == 0 || cost.most_gathered <= prices.most_gathered;
    return cost.total() + (fits ? 0 : too_much);
}

/// Those of the layouts that divide the mask's tokens.
std::vector<Layout> simple_layouts(const std::vector<std::string>& names, const Mask& mask, int ranks) {
    std::vector<Layout> layouts;
    for (const auto& name : names)
        if (mask.tokens() % layout_granularity(name, ranks) == 0) layouts.push_back(make_layout(name, mask, ranks));
    return layouts;
}

/// The cheapest plan of those that it is shown.
class Planner {
public:
    explicit Planner(const PlanTask& task) : task_(task) {}

    Pieces plan() {
        const auto ranks = task_.ranks, parts = task_.parts.size();
        constexpr double most_layouts = 100000;
        if (std::pow(static_cast<double>(ranks), static_cast<double>(parts)) <= most_layouts) take_all_wholes();
        if (!task_.is_large()) {
            take_all_orders();
            for (const auto& layout : simple_layouts({"zigzag", "contiguous"}, task_.mask, static_cast<int>(ranks)))
                take(pieces_of(layout, task_.parts));
        }
        // The limit of a rank's work, relative to the least that is possible. A higher limit lets long parts stay on
        // fewer ranks, which saves traffic.
        const auto least_work = least_work_that_fits(task_);
        for (const double over :
             task_.is_large() ? std::vector{1.0, 1.15} : std::vector{1.0, 1.06, 1.12, 1.2, 1.3, 1.5, 2.0, 3.0}) {
            // With nothing to spread, a higher limit changes nothing.
            if (over > 1 && long_parts(task_, over * least_work).parts.empty()) break;
            improve(make_draft(task_, over * least_work, over == 1));
        }
        return std::move(best_);
    }

private:
    LayoutCost take(auto&& pieces) {
        const auto ranks = static_cast<int>(task_.ranks);
        place_pieces(pieces, ranks, task_.grain);
        auto cost = task_.pricer.cost(pieces, ranks);
        if (const auto price = price_within_memory(cost, task_.prices); price < least_) {
            least_ = price;
            best_ = std::forward<decltype(pieces)>(pieces);
        }
        return cost;
    }

    /// All plans in which no part is cut.
    void take_all_wholes() {
        std::vector<std::int64_t> room(task_.ranks, task_.share);
        Pieces pieces(task_.parts.size());
        const auto extend = [&](auto self, std::size_t part) -> void {
            if (part == task_.parts.size()) {
                take(pieces);
                return;
            }
            for (std::size_t rank = 0; rank < task_.ranks; ++rank) {
                if (room[rank] < task_.length(part)) continue;
                pieces[part] = {{task_.parts[part].tokens, static_cast<int>(rank)}};
                room[rank] -= task_.length(part);
                self(self, part + 1);
                room[rank] += task_.length(part);
            }
        };
        extend(extend, 0);
    }

    /// A few parts in every order, one after the other, without items.
    void take_all_orders() {
        constexpr std::size_t most_parts = 5;
        if (task_.parts.size() > most_parts) return;
        Draft d;
        d.room.assign(task_.ranks, task_.share);
        d.chain.resize(task_.parts.size());
        std::iota(d.chain.begin(), d.chain.end(), std::size_t{0});
        do take(cut(task_, d, 1));
        while (std::ranges::next_permutation(d.chain).found);
    }

    /// Evens out and prices a draft in rounds. More than 8 gain 0.3 % and take twice as long.
    void improve(Draft d) {
        constexpr int most_bands = 16;
        for (int round = 0; round < (task_.is_large() ? 1 : 8); ++round) {
            EvenOut(task_, d);
            // In one band the first rank of a causal part sees no keys of others. That is cheaper if launches cost
            // more than pairs.
            if (round == 0 && !task_.is_large()) take(cut(task_, d, 1));
            const auto cost = take(cut(task_, d, most_bands));
            // What the model does not see: tiles, launches for keys of other ranks, sums of gradients. A third of it,
            // because an exchange changes it.
            const auto model = work_of(task_, d);
            for (std::size_t rank = 0; rank < task_.ranks; ++rank)
                d.seconds[rank] += (cost.work[rank] - model[rank]) / 3;
        }
    }

    const PlanTask& task_;
    Pieces best_;
    double least_ = std::numeric_limits<double>::infinity();
};

std::vector<std::vector<Run>> planned_shards(const Mask& mask, int ranks, const LayoutPrices& prices) {
    const PlanTask task(mask, ranks, prices);
    auto pieces = Planner(task).plan();
    std::vector<std::vector<Run>> shards;
    for (const auto& of_rank : place_pieces(pieces, ranks, task.grain)) {
        auto& runs = shards.emplace_back();
        for (const auto* piece : of_rank) append_run(runs, {piece->tokens.begin, 1, piece->tokens.size()});
    }
    return shards;
}

/// Equal chunks, because cuts cause no messages where whole blocks move. The layouts with few cuts need fewer blocks.
std::vector<std::vector<Run>> shards_of_whole_blocks(const Mask& mask, int ranks, const LayoutPrices& prices) {
    const auto layouts = simple_layouts({"balanced", "zigzag", "contiguous"}, mask, ranks);
    const auto best = std::ranges::min_element(layouts, {}, [&](const Layout& layout) {
        return price_within_memory(layout_cost(layout, mask, prices), prices);
    });
    std::vector<std::vector<Run>> shards;
    for (int rank = 0; rank < ranks; ++rank) shards.emplace_back(best->shard(rank).begin(), best->shard(rank).end());
    return shards;
}

}  // namespace

Layout planned_layout(const Mask& mask, int ranks, const LayoutPrices& prices, std::string name) {
    require(ranks > 0 && mask.tokens() % ranks == 0,
            "{} tokens do not divide into layout {} over {} ranks: every rank owns as many", mask.tokens(), name,
            ranks);
    require(prices.ranks_per_host > 0 && prices.tile > 0,
            "prices of layout {} are of {} ranks per host and tiles of {}", name, prices.ranks_per_host, prices.tile);
    return {std::move(name), mask.tokens(),
            prices.whole_blocks ? shards_of_whole_blocks(mask, ranks, prices) : planned_shards(mask, ranks, prices)};
}

}  // namespace ringlab::layouts
