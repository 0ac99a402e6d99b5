#include "layouts/plan/plan_cost.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace ringlab::layouts {
namespace {

constexpr auto nowhere = std::numeric_limits<std::size_t>::max();

/// Number of tokens that a rank owns of a part.
struct Share {
    int rank = 0;
    std::int64_t tokens = 0;
};

/// A part, or an interval of a part, which one rank gets.
struct Item {
    std::size_t part = 0;
    Interval tokens;
    double seconds = 0;
    std::size_t rank = nowhere;
};

/// A part that is spread over several ranks.
struct SpreadPart {
    std::size_t part = 0;
    double ranks = 0;    // that it takes up
    double density = 0;  // seconds per token
};

/// A candidate for the plan. Ranks get items. The parts that are spread form a chain, which fills the room that items
/// leave: one part after the other, rank by rank. So every rank has the same number of tokens wherever the items go.
struct Draft {
    std::vector<SpreadPart> chain;
    std::vector<Item> items;
    std::vector<std::int64_t> room;  // by rank: tokens that are not of items
    std::vector<double> seconds;     // by rank: of items, and what the last price of the rank was above the model's
};

/// Those of the layouts that divide the mask's tokens.
std::vector<Layout> simple_layouts(const std::vector<std::string>& names, const Mask& mask, int ranks) {
    std::vector<Layout> layouts;
    for (const auto& name : names)
        if (mask.tokens() % layout_granularity(name, ranks) == 0) layouts.push_back(make_layout(name, mask, ranks));
    return layouts;
}

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
        for (const auto& part : parts_) whole_.push_back(pricer_.seconds(part.tokens));
    }

    Pieces plan() const {
        Pieces best;
        auto least = std::numeric_limits<double>::infinity();
        const auto take = [&](Pieces pieces) {
            place_pieces(pieces, static_cast<int>(ranks_), grain_);
            auto cost = pricer_.cost(pieces);
            if (const auto price = price_within_memory(cost, prices_); price < least) {
                least = price;
                best = std::move(pieces);
            }
            return cost;
        };
        if (auto wholes = all_whole(); !wholes.empty()) take(std::move(wholes));
        if (!is_large())
            for (const auto& layout : simple_layouts({"zigzag", "contiguous"}, mask_, static_cast<int>(ranks_)))
                take(pieces_of(layout, parts_));
        // The limit of a rank's work, relative to the least that is possible. A higher limit lets long parts stay on
        // fewer ranks, which saves traffic.
        const auto least_work = least_that_fits();
        const int rounds = is_large() ? 1 : 7;  // 16 gain 0.3 % and take twice as long
        for (const double over :
             is_large() ? std::vector{1.0, 1.15} : std::vector{1.0, 1.06, 1.12, 1.2, 1.3, 1.5, 2.0, 3.0}) {
            const auto most = over * least_work;
            if (over > 1 && chain(most).empty()) break;  // a higher limit changes nothing
            auto d = draft(most, over == 1);
            for (int round = 0; round < rounds; ++round) {
                even_out(d);
                const auto cost = take(cut(d));
                // What the model does not see: tiles, launches for keys of other ranks, sums of gradients. A third of
                // it, because an exchange changes it.
                const auto model = work_of(d);
                for (std::size_t rank = 0; rank < ranks_; ++rank)
                    d.seconds[rank] += (cost.work[rank] - model[rank]) / 3;
            }
        }
        return best;
    }

    std::vector<std::vector<Run>> shards(Pieces pieces) const {
        std::vector<std::vector<Run>> shards;
        for (const auto& of_rank : place_pieces(pieces, static_cast<int>(ranks_), grain_)) {
            auto& runs = shards.emplace_back();
            for (const auto* piece : of_rank) append_run(runs, {piece->tokens.begin, 1, piece->tokens.size()});
        }
        return shards;
    }

private:
    /// Whether there are so many ranks that there is time for a few drafts only.
    bool is_large() const { return ranks_ > 128; }

    std::int64_t length(std::size_t part) const { return parts_[part].tokens.size(); }

    /// Every part on one rank, the longest first, each where it leaves least room; nothing if one has no room.
    Pieces all_whole() const {
        std::vector<std::size_t> order(parts_.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::stable_sort(order, std::greater{}, [&](std::size_t part) { return length(part); });
        std::vector<std::int64_t> room(ranks_, share_);
        Pieces pieces(parts_.size());
        for (const auto part : order) {
            // A rank that has no room for it comes last.
            const auto rank =
                std::ranges::min_element(room, {}, [&](auto n) { return std::pair(n < length(part), n); });
            if (*rank < length(part)) return {};
            *rank -= length(part);
            pieces[part] = {{parts_[part].tokens, static_cast<int>(rank - room.begin())}};
        }
        return pieces;
    }

    /// The parts that are spread if a rank works for about `most` seconds: those that take longer, but for parts of so
    /// few pairs that they serve to even out what denser parts leave. The parts that take up most ranks come first.
    std::vector<SpreadPart> chain(double most) const {
        constexpr double dense = 0.6;
        const auto share = static_cast<double>(share_);
        std::vector<SpreadPart> chain;
        double filler = 0, filler_tokens = 0;  // of the other parts, which fill the rest of a rank's room
        for (std::size_t part = 0; part < parts_.size(); ++part) {
            const auto tokens = static_cast<double>(length(part));
            if (parts_[part].pairs > 0 && whole_[part] > most && whole_[part] / tokens * share > dense * most)
                chain.push_back({part, tokens / share});
            else
                filler += whole_[part], filler_tokens += tokens;
        }
        if (filler_tokens > 0) filler /= filler_tokens;
        for (auto& [part, ranks, density] : chain) {
            const auto tokens = static_cast<double>(length(part));
            for (int i = 0; i < 3; ++i) {  // because the price of a token depends on the number of ranks
                const auto seconds = token_seconds(part, ranks);
                const auto each =
                    seconds > filler ? std::clamp((most - share * filler) / (seconds - filler), 1.0, share) : share;
                ranks = tokens / each;
            }
            ranks = std::min(ranks, static_cast<double>(ranks_));
            density = token_seconds(part, ranks);
        }
        std::ranges::stable_sort(chain, std::greater{}, &SpreadPart::ranks);
        return chain;
    }

    static double ranks_of(const std::vector<SpreadPart>& chain) {
        return std::accumulate(chain.begin(), chain.end(), 0.0,
                               [](double sum, const SpreadPart& spread) { return sum + spread.ranks; });
    }

    /// The smallest limit of a rank's work with which all long parts find room.
    double least_that_fits() const {
        const auto fits = [&](double most) { return ranks_of(chain(most)) <= static_cast<double>(ranks_); };
        const auto mean = std::accumulate(whole_.begin(), whole_.end(), 0.0) / static_cast<double>(ranks_);
        if (fits(mean)) return mean;
        auto low = mean, high = 4 * mean;
        for (int halvings = 0; halvings < 12; ++halvings) {
            const auto middle = (low + high) / 2;
            (fits(middle) ? high : low) = middle;
        }
        return high;
    }

    /// Seconds of both passes for one token of a part, if `ranks` ranks have pieces of the part.
    double token_seconds(std::size_t part, double ranks) const {
        const auto tokens = static_cast<double>(length(part)), others = std::max(0.0, ranks - 1);
        auto seconds = whole_[part] / tokens;
        if (others == 0) return seconds;
        const auto launches = prices_.crosses_once ? std::ceil(ranks / prices_.ranks_per_host) : others;
        for (const auto& pass : prices_.passes)
            seconds +=
                launches * pass.visit + others * (pass.sum_key + pass.key) +
                (launches * pass.owner + others * pass.sum + pass.again * static_cast<double>(share_)) * ranks / tokens;
        return seconds;
    }

    /// A draft in which a rank has about `most` seconds of work. With `everywhere`, the chain takes up all ranks.
    Draft draft(double most, bool everywhere) const {
        Draft d;
        d.chain = chain(most);
        const auto taken = ranks_of(d.chain);
        if (everywhere)
            for (auto& spread : d.chain) spread.ranks *= static_cast<double>(ranks_) / taken;
        assign_items(d, most);
        return d;
    }

    /// By rank: seconds per token of the chain. On ranks behind the chain, which items fill, a token of the chain
    /// counts as much as the most expensive one.
    std::vector<double> expected_density(const Draft& d, double most) const {
        const auto dearest = d.chain.empty() ? most / static_cast<double>(share_)
                                             : std::ranges::max(d.chain, {}, &SpreadPart::density).density;
        std::vector<double> density(ranks_, dearest);
        double end = 0;
        std::size_t rank = 0;
        for (const auto& spread : d.chain)
            for (end += spread.ranks; rank < ranks_ && static_cast<double>(rank) + 0.5 < end; ++rank)
                density[rank] = spread.density;
        return density;
    }

    /// Gives the parts that are not in the chain to ranks, the one that takes longest first.
    void assign_items(Draft& d, double most) const {
        const auto density = expected_density(d, most);
        d.room.assign(ranks_, share_);
        d.seconds.assign(ranks_, 0);
        std::vector<Item> items;
        for (std::size_t part = 0; part < parts_.size(); ++part)
            if (std::ranges::find(d.chain, part, &SpreadPart::part) == d.chain.end())
                items.push_back({part, parts_[part].tokens, whole_[part]});
        std::ranges::stable_sort(items, std::greater{},
                                 [](const Item& item) { return std::pair(item.seconds, item.tokens.size()); });
        for (const auto& whole : items)
            for (auto rest = whole.tokens; rest.size() > 0;) {
                auto item = whole;
                item.tokens = rest;
                if (rest != whole.tokens) item.seconds = pricer_.seconds(rest);
                const auto [rank, tokens] = best_rank(d, density, item, most);
                item.tokens.end = rest.begin + tokens;
                if (tokens < rest.size()) item.seconds = pricer_.seconds(item.tokens);
                rest.begin = item.tokens.end;
                give(d, item, rank);
                d.items.push_back(item);
            }
    }

    /// The rank to which an item goes, and how many of its tokens. If the chain filled all the room of a rank, the rank
    /// would work for more than `most` seconds; the item goes where most tokens of the chain have to be replaced, and
    /// is cut if they are fewer than its own. Where none have to be, it goes where there is least work then.
    std::pair<std::size_t, std::int64_t> best_rank(const Draft& d, const std::vector<double>& density, const Item& item,
                                                   double most) const {
        const auto size = item.tokens.size();
        const auto each = item.seconds / static_cast<double>(size);
        auto best = static_cast<std::size_t>(std::ranges::max_element(d.room) - d.room.begin());
        auto least_work = std::numeric_limits<double>::infinity();
        std::size_t neediest = 0;
        double most_needed = 0;
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            const auto room = static_cast<double>(d.room[rank]);
            const auto work = d.seconds[rank] + density[rank] * room, relief = density[rank] - each;
            const auto needed = relief > 0 ? std::min((work - most) / relief, room) : 0;
            if (needed > most_needed) most_needed = needed, neediest = rank;
            const auto then = work - relief * static_cast<double>(size);
            if (d.room[rank] >= size && then < least_work) least_work = then, best = rank;
        }
        if (most_needed == 0) return {best, std::min(size, d.room[best])};
        constexpr double little = 0.03;  // of a rank's tokens: not worth a cut
        if (size <= d.room[neediest] && static_cast<double>(size) - most_needed <= little * static_cast<double>(share_))
            return {neediest, size};
        const auto tiles = static_cast<std::int64_t>(std::ceil(most_needed / static_cast<double>(grain_)));
        return {neediest, std::min({size, tiles * grain_, d.room[neediest]})};
    }

    /// Gives an item to a rank, and takes it from the one that has it.
    static void give(Draft& d, Item& item, std::size_t rank) {
        if (item.rank != nowhere) {
            d.room[item.rank] += item.tokens.size();
            d.seconds[item.rank] -= item.seconds;
        }
        item.rank = rank;
        d.room[rank] -= item.tokens.size();
        d.seconds[rank] += item.seconds;
    }

    /// Fills the room of the ranks with the chain: calls visit(rank, place in the chain, tokens) in order.
    template <class Visit>
    void lay_chain(const Draft& d, Visit visit) const {
        std::size_t place = 0;
        std::int64_t laid = 0;  // tokens of the part at `place`
        for (std::size_t rank = 0; rank < ranks_; ++rank)
            for (auto room = d.room[rank]; room > 0;) {
                const auto here = std::min(room, length(d.chain[place].part) - laid);
                visit(rank, place, here);
                room -= here;
                laid += here;
                if (laid == length(d.chain[place].part)) ++place, laid = 0;
            }
    }

    std::vector<double> work_of(const Draft& d) const {
        auto work = d.seconds;
        lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
            work[rank] += d.chain[place].density * static_cast<double>(tokens);
        });
        return work;
    }

    /// The busiest rank gives an item away, or takes one, or both. `nowhere`: none.
    struct Exchange {
        std::size_t given = nowhere, taken = nowhere, to = nowhere;
    };

    /// Evens out the work of the ranks by exchanges, until none helps.
    void even_out(Draft& d) const {
        std::vector<std::vector<std::size_t>> of_rank(ranks_);
        for (std::size_t i = 0; i < d.items.size(); ++i) of_rank[d.items[i].rank].push_back(i);
        const auto move = [&](std::size_t i, std::size_t to) {
            if (i == nowhere) return;
            std::erase(of_rank[d.items[i].rank], i);
            of_rank[to].push_back(i);
            give(d, d.items[i], to);
        };
        constexpr int most_steps = 128, most_misses = 3;
        int misses = 0;  // exchanges that make another rank as busy: a few of them may lead on
        for (int step = 0; step < most_steps && misses < most_misses; ++step) {
            const auto work = work_of(d);
            const auto busiest = static_cast<std::size_t>(std::ranges::max_element(work) - work.begin());
            const auto exchange = best_exchange(d, work, busiest, of_rank);
            if (exchange.to == nowhere) return;
            move(exchange.taken, busiest);
            move(exchange.given, exchange.to);
            misses += std::ranges::max(work_of(d)) >= work[busiest];
        }
    }

    /// The exchange after which the two ranks, and those between them, have least work. The chain makes up for the
    /// tokens, so that it shifts on the ranks in between. `of_rank`: items, by rank.
    Exchange best_exchange(const Draft& d, const std::vector<double>& work, std::size_t busiest,
                           const std::vector<std::vector<std::size_t>>& of_rank) const {
        std::vector<double> left(ranks_), right(ranks_);  // seconds per token at both ends of the rank's room
        lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t) {
            if (left[rank] == 0) left[rank] = d.chain[place].density;
            right[rank] = d.chain[place].density;
        });
        const auto tokens = [&](std::size_t i) { return i == nowhere ? 0 : d.items[i].tokens.size(); };
        const auto seconds = [&](std::size_t i) { return i == nowhere ? 0 : d.items[i].seconds; };
        const auto items_and_none = [&](std::size_t rank) {
            auto items = of_rank[rank];
            items.push_back(nowhere);
            return items;
        };
        std::vector<std::size_t> borders;  // ranks with several parts of the chain: these alone change
        for (std::size_t rank = 0; rank < ranks_; ++rank)
            if (left[rank] != right[rank]) borders.push_back(rank);
        Exchange best;
        auto least = work[busiest] * 0.999;
        const auto given_ones = items_and_none(busiest);
        for (std::size_t to = 0; to < ranks_; ++to) {
            if (to == busiest || work[to] >= least) continue;
            const bool above = to > busiest;
            const auto here = above ? right[busiest] : left[busiest], there = above ? left[to] : right[to];
            for (const auto taken : items_and_none(to))
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
                    best = {given, taken, to};
                }
        }
        return best;
    }

    /// The pieces of all parts.
    Pieces cut(const Draft& d) const {
        Pieces pieces(parts_.size());
        for (const auto& item : d.items) pieces[item.part].push_back({item.tokens, static_cast<int>(item.rank)});
        for (auto& of_part : pieces) {
            std::ranges::sort(of_part, {}, [](const PlanPiece& piece) { return piece.tokens.begin; });
            std::vector<PlanPiece> joined;
            for (const auto& piece : of_part) append(joined, piece);
            of_part = std::move(joined);
        }
        std::vector<std::vector<Share>> shares(d.chain.size());
        lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
            shares[place].push_back({static_cast<int>(rank), tokens});
        });
        for (std::size_t place = 0; place < d.chain.size(); ++place)
            pieces[d.chain[place].part] = in_even_bands(d.chain[place].part, shares[place]);
        return pieces;
    }

    /// Adds the next piece of a part, to the last one if both are of one rank.
    static void append(std::vector<PlanPiece>& pieces, const PlanPiece& piece) {
        if (piece.tokens.size() == 0) return;
        if (!pieces.empty() && pieces.back().rank == piece.rank)
            pieces.back().tokens.end = piece.tokens.end;
        else
            pieces.push_back(piece);
    }

    /// Cuts the part into as many bands as are needed to give every rank about the same number of pairs per token: one
    /// if all rows see equally many keys, two if later rows see more.
    std::vector<PlanPiece> in_even_bands(std::size_t part, const std::vector<Share>& shares) const {
        constexpr double even = 0.03, worth_more_messages = 0.01;  // of the pairs of a rank
        std::vector<PlanPiece> best;
        auto least = std::numeric_limits<double>::infinity();
        const auto mean = parts_[part].pairs / static_cast<double>(length(part));
        for (const int bands : {1, 2, 4}) {
            auto pieces = in_bands(part, shares, bands);
            std::vector<double> above(ranks_, 0);  // pairs of each rank above the mean of as many tokens
            for (const auto& [tokens, rank, place] : pieces)
                above[static_cast<std::size_t>(rank)] +=
                    pricer_.pairs(tokens) - mean * static_cast<double>(tokens.size());
            const auto most =
                std::max(std::ranges::max(above) * static_cast<double>(shares.size()) / parts_[part].pairs, even);
            if (most > least - worth_more_messages) continue;
            least = most;
            best = std::move(pieces);
        }
        return best;
    }

    /// Cuts the part into `bands` bands. A rank has the same number of tiles in each band, and the rest of its tokens
    /// in the last one. The order of the ranks is reversed from one band to the next.
    std::vector<PlanPiece> in_bands(std::size_t part, const std::vector<Share>& shares, int bands) const {
        std::vector<PlanPiece> pieces;
        auto at = parts_[part].tokens.begin;
        for (int band = 0; band < bands; ++band)
            for (std::size_t k = 0; k < shares.size(); ++k) {
                const auto& share = shares[band % 2 == 0 ? k : shares.size() - 1 - k];
                const auto whole_tiles = share.tokens / (bands * grain_) * grain_;
                const auto size = band + 1 < bands ? whole_tiles : share.tokens - (bands - 1) * whole_tiles;
                append(pieces, {{at, at + size}, share.rank});
                at += size;
            }
        return pieces;
    }

    const Mask& mask_;
    const PlanPrices& prices_;
    std::size_t ranks_;
    std::int64_t share_, grain_;
    std::vector<PlanPart> parts_;
    PlanPricer pricer_;
    std::vector<double> whole_;  // seconds of both passes of each part, if one rank owns all of it
};

/// Equal chunks, because cuts cause no messages where whole blocks move. The layouts with few cuts need fewer blocks.
Layout plan_of_whole_blocks(const Mask& mask, int ranks, const PlanPrices& prices) {
    const auto layouts = simple_layouts({"balanced", "zigzag", "contiguous"}, mask, ranks);
    return *std::ranges::min_element(layouts, {}, [&](const Layout& layout) {
        return price_within_memory(plan_cost(layout, mask, prices), prices);
    });
}

Layout planned(const std::string& machine, const Mask& mask, int ranks) {
    require(
        machine.empty(),
        "layout planned:{0} is for the prices of machine {0}, which experiments read alone; planned by itself is for "
        "H200 in hosts of eight",
        machine);
    auto prices = default_plan_prices();
    prices.crosses_once = ranks > prices.ranks_per_host;  // inside one host `seen` has a launch for each rank
    return planned_layout(mask, ranks, prices);
}

const LayoutRegistration registered_planned(
    "planned", "planned[:MACHINE]",
    "documents shorter than a rank's share stay whole, longer ones are spread so that "
    "work and traffic cost least on MACHINE",
    {"planned"}, {[](const std::string&, int ranks) -> std::int64_t { return ranks; }, {}, planned});

}  // namespace

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
