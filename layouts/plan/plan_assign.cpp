// Which rank gets which item of a draft.

#include "layouts/plan/planner.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {

void Planner::assign_items(Draft& d, ChainForecast chain, double most) const {
    d.room.assign(ranks_, share_);
    d.seconds.assign(ranks_, 0);
    d.items.clear();
    const auto is_less = [](const Item& a, const Item& b) {
        return std::tuple(a.seconds, a.tokens.size(), b.tokens.begin) <
               std::tuple(b.seconds, b.tokens.size(), a.tokens.begin);
    };
    std::vector<Item> left;  // a heap
    for (std::size_t part = 0; part < parts_.size(); ++part)
        if (std::ranges::find(d.chain, part) == d.chain.end())
            left.push_back({part, parts_[part].tokens, whole_[part]});
    std::ranges::make_heap(left, is_less);
    while (!left.empty()) {
        std::ranges::pop_heap(left, is_less);
        auto item = left.back();
        left.pop_back();
        const auto [rank, tokens] = best_rank(d, chain, item, most);
        if (tokens < item.tokens.size()) {
            auto rest = item;
            rest.rank = rank;
            item.tokens.end = rest.tokens.begin = item.tokens.begin + tokens;
            item.seconds = seconds_of(item);
            rest.seconds = seconds_of(rest);
            left.push_back(rest);
            std::ranges::push_heap(left, is_less);
        }
        give(d, item, rank);
        chain.room[chain.place[rank]] -= static_cast<double>(tokens);
        d.items.push_back(item);
    }
}

std::pair<std::size_t, std::int64_t> Planner::best_rank(const Draft& d, const ChainForecast& chain, const Item& item,
                                                        double most) const {
    const auto size = item.tokens.size();
    const auto each = item.seconds / static_cast<double>(size);
    const auto above = [&](std::size_t rank) {
        return d.seconds[rank] + chain.density[rank] * static_cast<double>(d.room[rank]) - most;
    };
    // Tokens like those of the item that the rank needs instead of tokens of the chain; 0 if they do not help.
    const auto needed = [&](std::size_t rank) {
        const auto relief = chain.density[rank] - each, seconds = above(rank);
        return seconds > 0 && relief > 0 ? seconds / relief : 0;
    };
    std::size_t chosen = ranks_;
    auto least = std::pair(true, std::numeric_limits<double>::infinity());
    for (const bool anywhere : {false, true}) {
        if (chosen < ranks_) break;
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            if (d.room[rank] < size) continue;
            if (!anywhere && chain.room[chain.place[rank]] < static_cast<double>(size)) continue;
            const auto tokens = needed(rank);
            const auto key =
                tokens > 0 ? std::pair(false, static_cast<double>(size) - tokens)
                           : std::pair(true, above(rank) + (each - chain.density[rank]) * static_cast<double>(size));
            if (key >= least) continue;
            least = key;
            chosen = rank;
        }
    }
    constexpr double much = 0.03;  // of a rank's tokens
    if (chosen < ranks_ && (least.first || least.second <= much * static_cast<double>(share_))) return {chosen, size};

    // The rank that needs most takes what it needs, in whole tiles; if possible on the host of the item's begin.
    std::int64_t most_needed = 0;
    std::size_t neediest = ranks_;
    for (const bool elsewhere : {false, true}) {
        if (most_needed > 0) break;
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            if (!elsewhere && item.rank != nowhere && host(rank) != host(item.rank)) continue;
            const auto tiles =
                std::ceil(std::min(needed(rank), static_cast<double>(share_)) / static_cast<double>(grain_));
            const auto tokens = std::min(d.room[rank], grain_ * static_cast<std::int64_t>(tiles));
            if (tokens <= most_needed) continue;
            most_needed = tokens;
            neediest = rank;
        }
    }
    if (most_needed > 0 && (chosen == ranks_ || most_needed + grain_ <= size))
        return {neediest, std::min(size, most_needed)};
    if (chosen < ranks_) return {chosen, size};
    const auto roomiest = static_cast<std::size_t>(std::ranges::max_element(d.room) - d.room.begin());
    return {roomiest, std::min(size, d.room[roomiest])};
}

double Planner::seconds_of(const Item& item) const {
    const auto tokens = static_cast<double>(item.tokens.size());
    const auto whole = whole_[item.part] / static_cast<double>(length(item.part));
    auto seconds = (token_seconds(item.part, 2) - whole) * tokens;
    for (const auto& pass : prices_.passes)
        seconds += pass.pair * pricer_.pairs(item.tokens) + pass.row * tokens + pass.piece;
    return seconds;
}

void Planner::give(Draft& d, Item& item, std::size_t rank) const {
    item.rank = rank;
    d.room[rank] -= item.tokens.size();
    d.seconds[rank] += item.seconds;
}

}  // namespace ringlab::layouts
