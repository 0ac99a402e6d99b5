#include "layouts/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {

Pieces Planner::plan() const {
    auto [best, least] = best_of_wholes();
    const auto take = [&](Pieces pieces) {
        auto cost = price_of(pieces);
        const bool fits = prices_.most_gathered == 0 || cost.most_gathered <= prices_.most_gathered;
        if (const auto price = cost.total() + (fits ? 0 : too_much); price < least) {
            least = price;
            best = std::move(pieces);
        }
        return cost;
    };
    if (!is_large())
        for (const auto& d : all_orders()) take(cut(d, 1));
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
        improve(draft(over * least_work, over == 1, false));
        if (over == 1 && !spreads(least_work)) improve(draft(least_work, true, true));
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
    Planner planner(mask, ranks, prices);
    return {std::move(name), mask.tokens(), planner.shards(planner.plan())};
}

}  // namespace ringlab::layouts
