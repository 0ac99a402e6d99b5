// Exchanges of items that even out the work of a draft's ranks.

#include "layouts/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {

std::vector<double> Planner::work_of(const Draft& d) const {
    auto work = d.seconds;
    lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
        work[rank] += d.density[place] * static_cast<double>(tokens);
    });
    return work;
}

void Planner::even_out(Draft& d) const {
    std::vector<std::vector<std::size_t>> of_rank(ranks_);
    for (std::size_t i = 0; i < d.items.size(); ++i) of_rank[d.items[i].rank].push_back(i);
    const auto tokens = [&](std::size_t i) { return i == nowhere ? 0 : d.items[i].tokens.size(); };
    const auto seconds = [&](std::size_t i) { return i == nowhere ? 0 : d.items[i].seconds; };
    const auto move = [&](std::size_t i, std::size_t to) {
        if (i == nowhere) return;
        auto& item = d.items[i];
        d.room[item.rank] += item.tokens.size();
        d.seconds[item.rank] -= item.seconds;
        std::erase(of_rank[item.rank], i);
        of_rank[to].push_back(i);
        give(d, item, to);
    };
    struct Exchange {
        std::size_t given, taken, to;
    };
    std::vector<double> work, left(ranks_), right(ranks_);  // seconds per token at both ends of the rank's room
    for (std::size_t step = 0; step < most_steps(); ++step) {
        work = work_of(d);
        std::ranges::fill(left, 0);
        std::ranges::fill(right, 0);
        lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t) {
            if (left[rank] == 0) left[rank] = d.density[place];
            right[rank] = d.density[place];
        });
        std::vector<std::size_t> borders;  // ranks with several parts of the chain
        for (std::size_t rank = 0; rank < ranks_; ++rank)
            if (left[rank] != right[rank]) borders.push_back(rank);
        const auto busiest = static_cast<std::size_t>(std::ranges::max_element(work) - work.begin());
        auto least = work[busiest] * 0.999;
        std::vector<Exchange> found;  // each better than those before it
        auto given_ones = of_rank[busiest];
        given_ones.push_back(nowhere);
        for (std::size_t to = 0; to < ranks_; ++to) {
            if (to == busiest || work[to] >= least) continue;
            const bool above = to > busiest;
            const auto here = above ? right[busiest] : left[busiest];
            const auto there = above ? left[to] : right[to];
            auto taken_ones = of_rank[to];
            taken_ones.push_back(nowhere);
            for (const auto taken : taken_ones)
                for (const auto given : given_ones) {
                    const auto more = tokens(taken) - tokens(given);  // that the busiest rank takes
                    if (more > d.room[busiest] || -more > d.room[to]) continue;
                    const auto moved = seconds(taken) - seconds(given), shift = static_cast<double>(more);
                    auto after = std::max(work[busiest] + moved - here * shift, work[to] - moved + there * shift);
                    if (after >= least) continue;
                    for (const auto rank : borders)
                        if (rank > std::min(busiest, to) && rank < std::max(busiest, to))
                            after = std::max(after, work[rank] + shift * (left[rank] - right[rank]) * (above ? 1 : -1));
                    if (after >= least) continue;
                    least = after;
                    found.push_back({given, taken, to});
                }
        }
        bool helped = false;
        constexpr std::size_t tries = 4;
        for (std::size_t i = 0; i < std::min(tries, found.size()) && !helped; ++i) {
            const auto& [given, taken, to] = found[found.size() - 1 - i];
            move(taken, busiest);
            move(given, to);
            helped = std::ranges::max(work_of(d)) < work[busiest];
            if (helped) break;
            move(taken, to);
            move(given, busiest);
        }
        if (!helped) return;
    }
}

}  // namespace ringlab::layouts
