#include "layouts/layouts/plan_pieces.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

namespace ringlab::layouts {
namespace {

using Pieces = std::vector<std::vector<PlanPiece>>;  // by part

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

class Planner {
public:
    Planner(const Mask& mask, int ranks, const PlanPrices& prices)
        : mask_(mask),
          prices_(prices),
          ranks_(static_cast<std::size_t>(ranks)),
          share_(mask.tokens() / ranks),
          grain_(share_ >= 4 * prices.tile ? prices.tile : 1),
          parts_(plan_parts(mask)),
          pricer_(mask, parts_, prices) {
        for (const auto& part : parts_) {
            whole_.push_back(pricer_.whole(part));
            mean_ += whole_.back() / ranks;
        }
    }

    Pieces plan() const {
        auto [best, least] = best_of_wholes();
        const auto take = [&](Pieces pieces) {
            auto cost = pricer_.cost(pieces, static_cast<int>(ranks_));
            const bool fits = prices_.most_gathered == 0 || cost.most_gathered <= prices_.most_gathered;
            if (const auto price = cost.total() + (fits ? 0 : too_much); price < least) {
                least = price;
                best = std::move(pieces);
            }
            return cost;
        };
        if (!is_large())
            for (const auto& d : all_orders()) take(cut(d, 1));
        // The limit of a rank's work, relative to the least that is possible. A higher limit lets long parts stay on
        // fewer ranks, which saves traffic.
        const auto least_work = least_that_fits();
        for (const double over :
             is_large() ? std::vector{1.0, 1.15} : std::vector{1.0, 1.06, 1.12, 1.2, 1.3, 1.5, 2.0, 3.0}) {
            if (over > 1 && !spreads(over * least_work)) break;  // a higher limit changes nothing
            auto d = draft(over * least_work, over == 1);
            for (int round = 0; round < (is_large() ? 1 : rounds); ++round) {
                even_out(d);
                // In one band the first rank of a causal part sees no keys of others. That is cheaper if launches cost
                // more than pairs.
                if (round == 0 && !is_large()) take(cut(d, 1));
                const auto cost = take(cut(d, most_bands));
                // What the model does not see: launches for keys of other ranks, sums of gradients.
                const auto model = work_of(d);
                for (std::size_t rank = 0; rank < ranks_; ++rank) d.seconds[rank] += cost.work[rank] - model[rank];
            }
        }
        return best;
    }

    std::vector<std::vector<Run>> shards(const Pieces& pieces) const {
        std::vector<std::vector<Interval>> owned(ranks_);
        // Pieces of whole tiles come first, so that no other tokens lie in the tiles of long parts.
        for (const bool whole_tiles : {true, false})
            for (const auto& of_part : pieces)
                for (const auto& piece : of_part)
                    if ((of_part.size() > 1 && piece.tokens.size() % grain_ == 0) == whole_tiles)
                        owned[static_cast<std::size_t>(piece.rank)].push_back(piece.tokens);
        std::vector<std::vector<Run>> shards(ranks_);
        for (std::size_t rank = 0; rank < ranks_; ++rank)
            for (const auto& interval : owned[rank]) {
                auto& runs = shards[rank];
                if (!runs.empty() && runs.back().last() + 1 == interval.begin)
                    runs.back().count += interval.size();
                else
                    runs.push_back({interval.begin, 1, interval.size()});
            }
        return shards;
    }

private:
    static constexpr double too_much = 1e6;  // seconds
    /// Whether there are so many ranks that there is time for a few drafts only.
    bool is_large() const { return ranks_ > 128; }

    static constexpr int rounds = 16;  // of evening out and pricing, for each draft; with 4, passes took 1 % longer
    std::size_t most_steps() const { return is_large() ? 128 : 4 * ranks_; }
    static constexpr int most_bands = 16;
    /// The best plan in which no part is cut, and its price, found by trying all of them. Nothing, at an infinite
    /// price, if there are too many to try.
    std::pair<Pieces, double> best_of_wholes() const {
        constexpr double most_plans = 100000;
        std::pair<Pieces, double> best{{}, std::numeric_limits<double>::infinity()};
        if (std::pow(static_cast<double>(ranks_), static_cast<double>(parts_.size())) > most_plans) return best;
        std::vector<std::int64_t> room(ranks_, share_);
        Pieces pieces(parts_.size());
        const auto extend = [&](auto self, std::size_t part) -> void {
            if (part == parts_.size()) {
                const auto price = pricer_.cost(pieces, static_cast<int>(ranks_)).total();
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

    /// Drafts of a few parts in every order, one part after the other, without items.
    std::vector<Draft> all_orders() const {
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

    std::int64_t length(std::size_t part) const { return parts_[part].tokens.size(); }
    bool is_long(std::size_t part, double most) const {
        if (parts_[part].pairs == 0) return false;
        const auto whole_share = whole_[part] * static_cast<double>(share_) / static_cast<double>(length(part));
        return whole_[part] > most || (length(part) > share_ && whole_share > most);
    }
    bool spreads(double most) const {
        for (std::size_t part = 0; part < parts_.size(); ++part)
            if (is_long(part, most)) return true;
        return false;
    }
    std::size_t host(std::size_t rank) const { return rank / static_cast<std::size_t>(prices_.ranks_per_host); }

    /// The smallest limit of a rank's work with which all long parts find room, if the other parts could be divided at
    /// will.
    double least_that_fits() const {
        const auto fits = [&](double most) {
            const auto filler = filler_density(most);
            double wanted = 0;
            for (std::size_t part = 0; part < parts_.size(); ++part)
                if (is_long(part, most)) wanted += ranks_wanted(part, most, filler);
            return wanted <= static_cast<double>(ranks_);
        };
        constexpr int halvings = 12;
        constexpr double far = 4;
        if (fits(mean_)) return mean_;
        auto low = mean_, high = far * mean_;
        for (int i = 0; i < halvings; ++i) {
            const auto middle = (low + high) / 2;
            (fits(middle) ? high : low) = middle;
        }
        return high;
    }

    /// Mean seconds per token of the parts that are not spread.
    double filler_density(double most) const {
        double work = 0, tokens = 0;
        for (std::size_t part = 0; part < parts_.size(); ++part) {
            if (is_long(part, most)) continue;
            work += whole_[part];
            tokens += static_cast<double>(length(part));
        }
        return tokens > 0 ? work / tokens : 0;
    }

    /// A draft in which a rank has about `most` seconds of work. With `everywhere`, the chain takes up all ranks.
    Draft draft(double most, bool everywhere) const {
        Draft d;
        const auto filler = filler_density(most);
        std::vector<std::size_t> longs;
        std::vector<double> wanted(parts_.size(), 0);
        for (std::size_t part = 0; part < parts_.size(); ++part) {
            if (!is_long(part, most)) continue;
            longs.push_back(part);
            wanted[part] = ranks_wanted(part, most, filler);
        }
        std::ranges::stable_sort(longs, std::greater{}, [&](std::size_t part) { return wanted[part]; });

        // After each part of the chain comes the longest one that still fits on the host, if there is one.
        std::vector<double> ranks;  // that each part of the chain takes up
        for (double at = 0; !longs.empty(); at += ranks.back()) {
            constexpr double crumb = 0.05;
            const auto per_host = static_cast<double>(prices_.ranks_per_host);
            const auto rest = per_host - std::fmod(at, per_host) + crumb;
            auto next = std::ranges::find_if(longs, [&](std::size_t part) { return wanted[part] <= rest; });
            if (next == longs.end()) next = longs.begin();
            d.chain.push_back(*next);
            d.density.push_back(token_seconds(*next, wanted[*next]));
            ranks.push_back(wanted[*next]);
            longs.erase(next);
        }
        const auto taken = std::accumulate(ranks.begin(), ranks.end(), 0.0);
        const auto all_taken = everywhere ? static_cast<double>(ranks_) : taken;
        for (auto& n : ranks) n *= all_taken / taken;
        deal(d, forecast(d, ranks, most), most);
        // Parts whose ranks work longer than others get more ranks.
        const auto place = forecast(d, ranks, most).place;
        std::vector<double> seconds(d.chain.size() + 1, 0);
        for (std::size_t rank = 0; rank < ranks_; ++rank) seconds[place[rank]] += d.seconds[rank];
        for (std::size_t i = 0; i < d.chain.size(); ++i)
            seconds[i] += d.density[i] * static_cast<double>(length(d.chain[i]));
        const auto all = std::accumulate(seconds.begin(), seconds.end() - 1, 0.0);
        for (std::size_t i = 0; i < d.chain.size(); ++i) ranks[i] = seconds[i] / all * all_taken;
        deal(d, forecast(d, ranks, most), most);
        return d;
    }

    /// If each part of the chain takes up so many ranks, one after the other. On ranks behind the chain, which items
    /// fill, a token of the chain counts as much as the most expensive one.
    ChainForecast forecast(const Draft& d, const std::vector<double>& ranks, double most) const {
        const auto behind = d.chain.empty() ? most / static_cast<double>(share_) : std::ranges::max(d.density);
        ChainForecast chain{std::vector(ranks_, behind), std::vector(ranks_, d.chain.size()),
                            std::vector(d.chain.size() + 1, 0.0)};
        std::vector<double> tokens(ranks_, 0), seconds(ranks_, 0), largest(ranks_, 0);
        double begin = 0;
        for (std::size_t place = 0; place < d.chain.size(); ++place) {
            const auto end = std::min(begin + ranks[place], static_cast<double>(ranks_));
            for (auto rank = static_cast<std::size_t>(begin); static_cast<double>(rank) < end; ++rank) {
                const auto first = static_cast<double>(rank);
                const auto overlap = std::min(end, first + 1) - std::max(begin, first);
                const auto here = static_cast<double>(length(d.chain[place])) * overlap / ranks[place];
                tokens[rank] += here;
                seconds[rank] += here * d.density[place];
                if (overlap > largest[rank]) {
                    largest[rank] = overlap;
                    chain.place[rank] = place;
                }
            }
            begin = end;
        }
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            if (tokens[rank] > 0) chain.density[rank] = seconds[rank] / tokens[rank];
            chain.room[chain.place[rank]] += static_cast<double>(share_) - tokens[rank];
        }
        return chain;
    }

    /// Gives the items to ranks, the most expensive first. If the chain filled all the room of a rank, the rank would
    /// work for more than `most` seconds; an item goes where most tokens of the chain have to be replaced. If it is
    /// more than any rank needs, it is cut.
    void deal(Draft& d, ChainForecast chain, double most) const {
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

    /// The rank to which an item goes, and how many of its tokens.
    std::pair<std::size_t, std::int64_t> best_rank(const Draft& d, const ChainForecast& chain, const Item& item,
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
                    tokens > 0
                        ? std::pair(false, static_cast<double>(size) - tokens)
                        : std::pair(true, above(rank) + (each - chain.density[rank]) * static_cast<double>(size));
                if (key >= least) continue;
                least = key;
                chosen = rank;
            }
        }
        constexpr double much = 0.03;  // of a rank's tokens
        if (chosen < ranks_ && (least.first || least.second <= much * static_cast<double>(share_)))
            return {chosen, size};

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

    /// Seconds of both passes of an item of a part that is cut.
    double seconds_of(const Item& item) const {
        const auto tokens = static_cast<double>(item.tokens.size());
        const auto whole = whole_[item.part] / static_cast<double>(length(item.part));
        auto seconds = (token_seconds(item.part, 2) - whole) * tokens;
        for (const auto& pass : prices_.passes)
            seconds += pass.pair * pricer_.pairs(item.tokens) + pass.row * tokens + pass.piece;
        return seconds;
    }

    void give(Draft& d, Item& item, std::size_t rank) const {
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
                const auto here = std::min(room, length(d.chain[place]) - laid);
                visit(rank, place, here);
                room -= here;
                laid += here;
                if (laid == length(d.chain[place])) ++place, laid = 0;
            }
    }

    std::vector<double> work_of(const Draft& d) const {
        auto work = d.seconds;
        lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
            work[rank] += d.density[place] * static_cast<double>(tokens);
        });
        return work;
    }
    /// Evens out the work of the ranks. The busiest rank exchanges an item with another rank, or takes one or gives one
    /// away. The chain makes up for the tokens, so that it shifts on the ranks in between. This is repeated until it no
    /// longer helps.
    void even_out(Draft& d) const {
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
                                after =
                                    std::max(after, work[rank] + shift * (left[rank] - right[rank]) * (above ? 1 : -1));
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

    /// Seconds of both passes for one token of a part, if `ranks` ranks have pieces of the part.
    double token_seconds(std::size_t part, double ranks) const {
        const auto tokens = static_cast<double>(length(part)), others = std::max(0.0, ranks - 1);
        auto seconds = whole_[part] / tokens;
        if (others == 0) return seconds;
        // Launches for keys of other ranks: one for each host, or one for each rank.
        const auto launches = prices_.crosses_once ? std::ceil(ranks / prices_.ranks_per_host) : others;
        for (const auto& pass : prices_.passes)
            seconds +=
                launches * pass.visit + others * (pass.sum_key + pass.key) +
                (launches * pass.owner + others * pass.sum + pass.again * static_cast<double>(share_)) * ranks / tokens;
        return seconds;
    }

    /// Number of ranks that the part takes up, as a fraction, if each rank works for `most` seconds and the rest of its
    /// room is filled with tokens that take `filler` seconds each.
    double ranks_wanted(std::size_t part, double most, double filler) const {
        const auto tokens = static_cast<double>(length(part)), share = static_cast<double>(share_);
        double wanted = tokens / share;
        for (int i = 0; i < 3; ++i) {
            const auto seconds = token_seconds(part, wanted);
            auto each = share;
            if (seconds > filler) each = std::clamp((most - share * filler) / (seconds - filler), 1.0, share);
            wanted = tokens / each;
        }
        // A little more than a whole number is not worth one more rank.
        constexpr double little = 0.1;
        const auto whole = std::max(1.0, std::floor(wanted));
        if (wanted - whole < little * whole / (whole + 2)) wanted = std::max(whole, tokens / share);
        return std::min(wanted, static_cast<double>(ranks_));
    }

    /// The pieces of all parts. A part of the chain is cut into at most so many bands.
    Pieces cut(const Draft& d, int bands) const {
        Pieces pieces(parts_.size());
        for (const auto& item : d.items) pieces[item.part].push_back({item.tokens, static_cast<int>(item.rank)});
        for (auto& of_part : pieces) {
            std::ranges::sort(of_part, {}, [](const PlanPiece& piece) { return piece.tokens.begin; });
            std::vector<PlanPiece> joined;
            for (const auto& piece : of_part)
                if (!joined.empty() && joined.back().rank == piece.rank)
                    joined.back().tokens.end = piece.tokens.end;
                else
                    joined.push_back(piece);
            of_part = std::move(joined);
        }
        std::vector<std::vector<Share>> shares(d.chain.size());
        lay_chain(d, [&](std::size_t rank, std::size_t place, std::int64_t tokens) {
            shares[place].push_back({static_cast<int>(rank), tokens});
        });
        for (std::size_t place = 0; place < d.chain.size(); ++place)
            pieces[d.chain[place]] = in_even_bands(d.chain[place], shares[place], bands);
        return pieces;
    }

    /// Cuts the part into as many bands as are needed to give every rank about the same number of pairs per token: one
    /// if all rows see equally many keys, two if later rows see more.
    std::vector<PlanPiece> in_even_bands(std::size_t part, const std::vector<Share>& shares, int limit) const {
        constexpr double even = 1.03;
        std::vector<PlanPiece> best;
        auto least = std::numeric_limits<double>::infinity();
        const auto mean = parts_[part].pairs / static_cast<double>(length(part));
        for (const int bands : {1, 2, 4, 8, 16}) {
            if (bands > limit) break;
            auto pieces = in_bands(part, shares, bands);
            std::vector<double> pairs(ranks_, 0);
            for (const auto& piece : pieces) pairs[static_cast<std::size_t>(piece.rank)] += pricer_.pairs(piece.tokens);
            double most = 1;
            for (const auto& share : shares)
                most = std::max(
                    most, 1 + (pairs[static_cast<std::size_t>(share.rank)] / mean - static_cast<double>(share.tokens)) *
                                  static_cast<double>(shares.size()) / static_cast<double>(length(part)));
            if (most >= least * 0.99) continue;  // because more bands mean more messages
            least = most;
            best = std::move(pieces);
            if (least <= even) break;
        }
        return best;
    }

    /// Cuts the part into `bands` bands. A rank has the same number of tiles in each band, and the rest of its tokens
    /// in the last one. The order of the ranks is reversed from one band to the next.
    std::vector<PlanPiece> in_bands(std::size_t part, const std::vector<Share>& shares, int bands) const {
        std::vector<PlanPiece> pieces;
        auto at = parts_[part].tokens.begin;
        const auto add = [&](int rank, std::int64_t size) {
            if (size == 0) return;
            if (!pieces.empty() && pieces.back().rank == rank)
                pieces.back().tokens.end += size;
            else
                pieces.push_back({{at, at + size}, rank});
            at += size;
        };
        const auto in_band = [&](const Share& share, int band) {
            const auto whole_tiles = share.tokens / (bands * grain_) * grain_;
            return band + 1 < bands ? whole_tiles : share.tokens - (bands - 1) * whole_tiles;
        };
        for (int band = 0; band < bands; ++band)
            for (std::size_t k = 0; k < shares.size(); ++k) {
                const auto& share = shares[band % 2 == 0 ? k : shares.size() - 1 - k];
                add(share.rank, in_band(share, band));
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
    double mean_ = 0;
};

}  // namespace

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
