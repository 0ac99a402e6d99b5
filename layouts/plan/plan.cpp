#include "layouts/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {

namespace {

/// The price of a plan, which is out of all proportion if there is not the memory for it.
double price_within_memory(const PlanCost& cost, const PlanPrices& prices) {
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

/// Equal chunks, because cuts cause no messages where whole blocks move. The layouts with few cuts need fewer blocks.
Layout plan_of_whole_blocks(const Mask& mask, int ranks, const PlanPrices& prices) {
    const auto layouts = simple_layouts({"balanced", "zigzag", "contiguous"}, mask, ranks);
    return *std::ranges::min_element(layouts, {}, [&](const Layout& layout) {
        return price_within_memory(plan_cost(layout, mask, prices), prices);
    });
}

}  // namespace

Pieces Planner::plan() const {
    auto [best, least] = best_of_wholes();
    const auto take = [&](Pieces pieces) {
        auto cost = price_of(pieces);
        if (const auto price = price_within_memory(cost, prices_); price < least) {
            least = price;
            best = std::move(pieces);
        }
        return cost;
    };
    if (!is_large()) {
        for (const auto& d : all_orders()) take(cut(d, 1));
        for (const auto& layout : simple_layouts({"zigzag", "contiguous"}, mask_, static_cast<int>(ranks_)))
            take(pieces_of(layout, parts_));
    }
    const auto improve = [&](Draft d) {
        for (int round = 0; round < (is_large() ? 1 : rounds); ++round) {
            even_out(d);
            // In one band the first rank of a causal part sees no keys of others. That is cheaper if launches cost
            // more than pairs.
            if (round == 0 && !is_large()) take(cut(d, 1));
            const auto cost = take(cut(d, most_bands));
            // What the model does not see: tiles, launches for keys of other ranks, sums of gradients. A third of it,
            // because an exchange changes it.
            const auto model = work_of(d);
            for (std::size_t rank = 0; rank < ranks_; ++rank) d.seconds[rank] += (cost.work[rank] - model[rank]) / 3;
        }
    };
    // The limit of a rank's work, relative to the least that is possible. A higher limit lets long parts stay on
    // fewer ranks, which saves traffic.
    const auto least_work = least_that_fits();
    for (const double over :
         is_large() ? std::vector{1.0, 1.15} : std::vector{1.0, 1.06, 1.12, 1.2, 1.3, 1.5, 2.0, 3.0}) {
        if (over > 1 && !spreads(over * least_work)) break;  // a higher limit changes nothing
        improve(draft(over * least_work, over == 1));
    }
    return best;
}

std::vector<std::vector<Run>> Planner::shards(Pieces pieces) const {
    std::vector<std::vector<Run>> shards;
    for (const auto& of_rank : place_pieces(pieces, static_cast<int>(ranks_), grain_)) {
        auto& runs = shards.emplace_back();
        for (const auto* piece : of_rank)
            if (!runs.empty() && runs.back().last() + 1 == piece->tokens.begin)
                runs.back().count += piece->tokens.size();
            else
                runs.push_back({piece->tokens.begin, 1, piece->tokens.size()});
    }
    return shards;
}

PlanCost Planner::price_of(Pieces& pieces) const {
    place_pieces(pieces, static_cast<int>(ranks_), grain_);
    return pricer_.cost(pieces, static_cast<int>(ranks_));
}

std::pair<Pieces, double> Planner::best_of_wholes() const {
    constexpr double most_plans = 100000;
    std::pair<Pieces, double> best{{}, std::numeric_limits<double>::infinity()};
    if (std::pow(static_cast<double>(ranks_), static_cast<double>(parts_.size())) > most_plans) return best;
    std::vector<std::int64_t> room(ranks_, share_);
    Pieces pieces(parts_.size());
    const auto extend = [&](auto self, std::size_t part) -> void {
        if (part == parts_.size()) {
            const auto price = price_of(pieces).total();
            if (price < best.second) best = {pieces, price};
            return;
        }
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            if (room[rank] < length(part)) continue;
            pieces[part] = {{parts_[part].tokens, static_cast<int>(rank)}};
            room[rank] -= length(part);
            self(self, part + 1);
            room[rank] += length(part);
        }
    };
    extend(extend, 0);
    return best;
}

std::vector<Draft> Planner::all_orders() const {
    constexpr std::size_t most_parts = 5;
    std::vector<Draft> drafts;
    if (parts_.size() > most_parts) return drafts;
    Draft d;
    d.room.assign(ranks_, share_);
    d.chain.resize(parts_.size());
    std::iota(d.chain.begin(), d.chain.end(), std::size_t{0});
    do drafts.push_back(d);
    while (std::ranges::next_permutation(d.chain).found);
    return drafts;
}

Layout planned_layout(const Mask& mask, int ranks, const PlanPrices& prices, std::string name) {
    require(ranks > 0 && mask.tokens() % ranks == 0,
            "{} tokens do not divide into layout {} over {} ranks: every rank owns as many", mask.tokens(), name,
            ranks);
    require(prices.ranks_per_host > 0 && prices.tile > 0,
            "prices of layout {} are of {} ranks per host and tiles of {}", name, prices.ranks_per_host, prices.tile);
    std::vector<std::vector<Run>> shards;
    if (prices.whole_blocks) {
        const auto layout = plan_of_whole_blocks(mask, ranks, prices);
        for (int rank = 0; rank < ranks; ++rank)
            shards.emplace_back(layout.shard(rank).begin(), layout.shard(rank).end());
    } else {
        const Planner planner(mask, ranks, prices);
        shards = planner.shards(planner.plan());
    }
    return {std::move(name), mask.tokens(), std::move(shards)};
}

}  // namespace ringlab::layouts
