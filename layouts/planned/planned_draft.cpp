// Drafts of plans: which parts form the chain, how many ranks each of them takes up, and which rank gets which item.

#include "layouts/planned/planned_draft.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

namespace ringlab::layouts {
namespace {

/// What is expected of the chain on each rank.
struct ChainForecast {
    std::vector<double> density;     // by rank: seconds per token
    std::vector<std::size_t> place;  // by rank: in the chain, of the part that has most of the rank
    std::vector<double> room;        // by place: tokens of items that its ranks have room for
};

/// Seconds of both passes for one token of a part, if `ranks` ranks have pieces of the part.
double token_seconds(const PlanTask& task, std::size_t part, double ranks) {
    const auto& prices = task.prices;
    const auto tokens = static_cast<double>(task.length(part)), others = std::max(0.0, ranks - 1);
    auto seconds = task.whole[part] / tokens;
    if (others == 0) return seconds;
    // For keys of other ranks.
    const auto launches = prices.crosses_once ? std::ceil(ranks / prices.ranks_per_host) : others;
    for (const auto& pass : prices.passes)
        seconds +=
            launches * pass.visit + others * (pass.sum_key + pass.key) +
            (launches * pass.owner + others * pass.sum + pass.again * static_cast<double>(task.share)) * ranks / tokens;
    return seconds;
}

/// Number of ranks that the part takes up, as a fraction, if each rank works for `most` seconds and the rest of its
/// room is filled with tokens that take `filler` seconds each.
double ranks_wanted(const PlanTask& task, std::size_t part, double most, double filler) {
    const auto tokens = static_cast<double>(task.length(part)), share = static_cast<double>(task.share);
    double wanted = tokens / share;
    for (int i = 0; i < 3; ++i) {
        const auto seconds = token_seconds(task, part, wanted);
        auto each = share;
        if (seconds > filler) each = std::clamp((most - share * filler) / (seconds - filler), 1.0, share);
        wanted = tokens / each;
    }
    // A little more than a whole number is not worth one more rank.
    constexpr double little = 0.1;
    const auto whole = std::max(1.0, std::floor(wanted));
    if (wanted - whole < little * whole / (whole + 2)) wanted = std::max(whole, tokens / share);
    return std::min(wanted, static_cast<double>(task.ranks));
}

/// If each part of the chain takes up so many ranks, one after the other. On ranks behind the chain, which items fill,
/// a token of the chain counts as much as the most expensive one.
ChainForecast forecast(const PlanTask& task, const Draft& d, const std::vector<double>& ranks, double most) {
    const auto behind = d.chain.empty() ? most / static_cast<double>(task.share) : std::ranges::max(d.density);
    ChainForecast chain{std::vector(task.ranks, behind), std::vector(task.ranks, d.chain.size()),
                        std::vector(d.chain.size() + 1, 0.0)};
    std::vector<double> tokens(task.ranks, 0), seconds(task.ranks, 0), largest(task.ranks, 0);
    double begin = 0;
    for (std::size_t place = 0; place < d.chain.size(); ++place) {
        const auto end = std::min(begin + ranks[place], static_cast<double>(task.ranks));
        for (auto rank = static_cast<std::size_t>(begin); static_cast<double>(rank) < end; ++rank) {
            const auto first = static_cast<double>(rank);
            const auto overlap = std::min(end, first + 1) - std::max(begin, first);
            const auto here = static_cast<double>(task.length(d.chain[place])) * overlap / ranks[place];
            tokens[rank] += here;
            seconds[rank] += here * d.density[place];
            if (overlap > largest[rank]) {
                largest[rank] = overlap;
                chain.place[rank] = place;
            }
        }
        begin = end;
    }
    for (std::size_t rank = 0; rank < task.ranks; ++rank) {
        if (tokens[rank] > 0) chain.density[rank] = seconds[rank] / tokens[rank];
        chain.room[chain.place[rank]] += static_cast<double>(task.share) - tokens[rank];
    }
    return chain;
}

/// Seconds of both passes of an item of a part that is cut.
double seconds_of(const PlanTask& task, const Item& item) {
    const auto tokens = static_cast<double>(item.tokens.size());
    const auto whole = task.whole[item.part] / static_cast<double>(task.length(item.part));
    auto seconds = (token_seconds(task, item.part, 2) - whole) * tokens;
    for (const auto& pass : task.prices.passes)
        seconds += pass.pair * task.pricer.pairs(item.tokens) + pass.row * tokens + pass.piece;
    return seconds;
}

/// The rank to which an item goes, and how many of its tokens.
std::pair<std::size_t, std::int64_t> best_rank(const PlanTask& task, const Draft& d, const ChainForecast& chain,
                                               const Item& item, double most) {
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
    std::size_t chosen = task.ranks;
    auto least = std::pair(true, std::numeric_limits<double>::infinity());
    for (const bool anywhere : {false, true}) {
        if (chosen < task.ranks) break;
        for (std::size_t rank = 0; rank < task.ranks; ++rank) {
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
    if (chosen < task.ranks && (least.first || least.second <= much * static_cast<double>(task.share)))
        return {chosen, size};

    // The rank that needs most takes what it needs, in whole tiles; if possible on the host of the item's begin.
    const auto host = [&](std::size_t rank) { return rank / static_cast<std::size_t>(task.prices.ranks_per_host); };
    std::int64_t most_needed = 0;
    std::size_t neediest = task.ranks;
    for (const bool elsewhere : {false, true}) {
        if (most_needed > 0) break;
        for (std::size_t rank = 0; rank < task.ranks; ++rank) {
            if (!elsewhere && item.rank != Item::nowhere && host(rank) != host(item.rank)) continue;
            const auto tiles =
                std::ceil(std::min(needed(rank), static_cast<double>(task.share)) / static_cast<double>(task.grain));
            const auto tokens = std::min(d.room[rank], task.grain * static_cast<std::int64_t>(tiles));
            if (tokens <= most_needed) continue;
            most_needed = tokens;
            neediest = rank;
        }
    }
    if (most_needed > 0 && (chosen == task.ranks || most_needed + task.grain <= size))
        return {neediest, std::min(size, most_needed)};
    if (chosen < task.ranks) return {chosen, size};
    const auto roomiest = static_cast<std::size_t>(std::ranges::max_element(d.room) - d.room.begin());
    return {roomiest, std::min(size, d.room[roomiest])};
}

/// Gives the items to ranks, the most expensive first. If the chain filled all the room of a rank, the rank would work
/// for more than `most` seconds; an item goes where most tokens of the chain have to be replaced. If it is more than
/// any rank needs, it is cut.
void assign_items(const PlanTask& task, Draft& d, ChainForecast chain, double most) {
    d.room.assign(task.ranks, task.share);
    d.seconds.assign(task.ranks, 0);
    d.items.clear();
    const auto is_less = [](const Item& a, const Item& b) {
        return std::tuple(a.seconds, a.tokens.size(), b.tokens.begin) <
               std::tuple(b.seconds, b.tokens.size(), a.tokens.begin);
    };
    std::vector<Item> left;  // a heap
    for (std::size_t part = 0; part < task.parts.size(); ++part)
        if (std::ranges::find(d.chain, part) == d.chain.end())
            left.push_back({part, task.parts[part].tokens, task.whole[part]});
    std::ranges::make_heap(left, is_less);
    while (!left.empty()) {
        std::ranges::pop_heap(left, is_less);
        auto item = left.back();
        left.pop_back();
        const auto [rank, tokens] = best_rank(task, d, chain, item, most);
        if (tokens < item.tokens.size()) {
            auto rest = item;
            rest.rank = rank;
            item.tokens.end = rest.tokens.begin = item.tokens.begin + tokens;
            item.seconds = seconds_of(task, item);
            rest.seconds = seconds_of(task, rest);
            left.push_back(rest);
            std::ranges::push_heap(left, is_less);
        }
        d.give(item, rank);
        chain.room[chain.place[rank]] -= static_cast<double>(tokens);
        d.items.push_back(item);
    }
}

}  // namespace

PlanTask::PlanTask(const Mask& of_mask, int of_ranks, const LayoutPrices& of_prices)
    : mask(of_mask),
      prices(of_prices),
      ranks(static_cast<std::size_t>(of_ranks)),
      share(mask.tokens() / of_ranks),
      grain(share >= 4 * prices.tile ? prices.tile : 1),
      parts(packed_documents(mask)),
      pricer(mask, parts, prices, of_ranks) {
    for (const auto& part : parts) {
        whole.push_back(pricer.whole(part));
        mean += whole.back() / of_ranks;
    }
}

LongParts long_parts(const PlanTask& task, double most) {
    LongParts found{{}, std::vector<double>(task.parts.size(), 0)};
    double work = 0, tokens = 0;  // of the other parts
    for (std::size_t part = 0; part < task.parts.size(); ++part) {
        const auto length = static_cast<double>(task.length(part));
        constexpr double dense = 0.6;  // others can be cut into items, which even out what denser parts leave
        if (task.parts[part].pairs > 0 && task.whole[part] > most &&
            task.whole[part] * static_cast<double>(task.share) / length > dense * most) {
            found.parts.push_back(part);
            continue;
        }
        work += task.whole[part];
        tokens += length;
    }
    const auto filler = tokens > 0 ? work / tokens : 0;
    for (const auto part : found.parts) found.ranks[part] = ranks_wanted(task, part, most, filler);
    return found;
}

double least_work_that_fits(const PlanTask& task) {
    const auto fits = [&](double most) {
        const auto wanted = long_parts(task, most).ranks;
        return std::accumulate(wanted.begin(), wanted.end(), 0.0) <= static_cast<double>(task.ranks);
    };
    constexpr int halvings = 12;
    constexpr double far = 4;
    if (fits(task.mean)) return task.mean;
    auto low = task.mean, high = far * task.mean;
    for (int i = 0; i < halvings; ++i) {
        const auto middle = (low + high) / 2;
        (fits(middle) ? high : low) = middle;
    }
    return high;
}

Draft make_draft(const PlanTask& task, double most, bool everywhere) {
    Draft d;
    auto [longs, wanted] = long_parts(task, most);
    std::ranges::stable_sort(longs, std::greater{}, [&](std::size_t part) { return wanted[part]; });

    // After each part of the chain comes the longest one that still fits on the host, if there is one.
    std::vector<double> ranks;  // that each part of the chain takes up
    for (double at = 0; !longs.empty(); at += ranks.back()) {
        constexpr double crumb = 0.05;
        const auto per_host = static_cast<double>(task.prices.ranks_per_host);
        const auto rest = per_host - std::fmod(at, per_host) + crumb;
        auto next = std::ranges::find_if(longs, [&](std::size_t part) { return wanted[part] <= rest; });
        if (next == longs.end()) next = longs.begin();
        d.chain.push_back(*next);
        d.density.push_back(token_seconds(task, *next, wanted[*next]));
        ranks.push_back(wanted[*next]);
        longs.erase(next);
    }
    const auto taken = std::accumulate(ranks.begin(), ranks.end(), 0.0);
    const auto all_taken = everywhere ? static_cast<double>(task.ranks) : taken;
    for (auto& n : ranks) n *= all_taken / taken;
    const auto chain = forecast(task, d, ranks, most);
    assign_items(task, d, chain, most);
    // Parts whose ranks work longer than others get more ranks.
    std::vector<double> seconds(d.chain.size() + 1, 0);
    for (std::size_t rank = 0; rank < task.ranks; ++rank) seconds[chain.place[rank]] += d.seconds[rank];
    for (std::size_t i = 0; i < d.chain.size(); ++i)
        seconds[i] += d.density[i] * static_cast<double>(task.length(d.chain[i]));
    const auto all = std::accumulate(seconds.begin(), seconds.end() - 1, 0.0);
    for (std::size_t i = 0; i < d.chain.size(); ++i) ranks[i] = seconds[i] / all * all_taken;
    assign_items(task, d, forecast(task, d, ranks, most), most);
    return d;
}

}  // namespace ringlab::layouts
