#include "layouts/layouts/plan_pieces.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace ringlab::layouts {
namespace {

using Pieces = std::vector<std::vector<PlanPiece>>;  // by part

/// Number of tokens that a rank owns of a part.
struct Share {
    int rank = 0;
    std::int64_t tokens = 0;
};

/// A candidate for the plan, before its parts are cut into pieces.
struct Draft {
    std::vector<std::vector<Share>> shares;  // by part; a whole part has one
    std::vector<bool> is_long;               // by part: spread for balance, and not only cut to fill room
    std::vector<std::int64_t> room;          // by rank: tokens that it can still take
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
        const auto try_draft = [&](Draft d) {
            for (int round = 0; round < (is_large() ? 1 : rounds); ++round) {
                auto pieces = cut(d);
                auto cost = pricer_.cost(pieces, static_cast<int>(ranks_));
                const bool fits = prices_.most_gathered == 0 || cost.most_gathered <= prices_.most_gathered;
                const auto price = cost.total() + (fits ? 0 : too_much);
                if (price < least) {
                    least = price;
                    best = std::move(pieces);
                }
                if (!even_out(d, std::move(cost.work))) break;
            }
        };
        // The limit of a rank's work, relative to the least that is possible. A higher limit lets long parts stay on
        // fewer ranks, which saves traffic.
        const auto least_work = least_that_fits();
        for (const double over : is_large()
                                     ? std::vector{1.0, 1.1, 1.3}
                                     : std::vector{1.0, 1.03, 1.06, 1.1, 1.15, 1.2, 1.3, 1.45, 1.7, 2.0, 2.5, 3.2}) {
            if (over > 1 && !spreads(over * least_work)) break;  // a higher limit changes nothing
            try_draft(draft(over * least_work, false));
        }
        try_draft(draft(mean_, true));
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

    static constexpr int rounds = 2;  // of even_out() for each draft
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

    /// A draft in which a rank has at most `most` seconds of work. With `spreads_all`, every part that has a tile for
    /// each rank is instead spread over all ranks.
    Draft draft(double most, bool spreads_all) const {
        Draft d;
        d.shares.resize(parts_.size());
        d.is_long.resize(parts_.size());
        d.room.assign(ranks_, share_);
        std::vector<double> work(ranks_, most);  // that a rank can still take
        std::vector<std::size_t> longs, shorts, blanks;
        for (std::size_t part = 0; part < parts_.size(); ++part) {
            const bool has_tiles = length(part) >= static_cast<std::int64_t>(ranks_) * grain_;
            d.is_long[part] = spreads_all ? parts_[part].pairs > 0 && has_tiles : is_long(part, most);
            (d.is_long[part] ? longs : parts_[part].pairs > 0 ? shorts : blanks).push_back(part);
        }
        const auto dearest_first = [&](std::size_t a, std::size_t b) { return whole_[a] > whole_[b]; };
        std::ranges::stable_sort(longs, dearest_first);
        std::ranges::stable_sort(shorts, dearest_first);

        const auto filler = filler_density(most);
        std::vector<double> free(ranks_, 1);  // share of a rank that long parts can still take
        for (const auto part : longs) {
            if (spreads_all) std::ranges::fill(free, 1.0);
            const auto wanted = spreads_all ? static_cast<double>(ranks_) : ranks_wanted(part, most, filler);
            spread(d, part, wanted, free, work);
        }
        // A short part that finds no room waits until gather_room() has collected small leftovers of room.
        auto left = place(d, shorts, work, 4 * grain_);
        gather_room(d);
        left = place(d, left, work, share_);
        left = place(d, left, work, 0);
        left.insert(left.end(), blanks.begin(), blanks.end());
        for (const auto part : left) fill_up(d, part);
        return d;
    }

    /// Seconds of both passes for one token of a part, if `ranks` ranks have pieces of the part.
    double token_seconds(std::size_t part, double ranks) const {
        const auto tokens = static_cast<double>(length(part)), others = std::max(0.0, ranks - 1);
        auto seconds = whole_[part] / tokens;
        if (others == 0) return seconds;
        for (const auto& pass : prices_.passes)
            seconds += others * (pass.visit + pass.sum_key + pass.key) +
                       (others * (pass.owner + pass.sum) + pass.again * static_cast<double>(share_)) * ranks / tokens;
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

    /// Spreads the part over ranks of few hosts. While no host has room for the rest of the part, it takes the host
    /// with the most room; then the one with the least room that suffices.
    void spread(Draft& d, std::size_t part, double wanted, std::vector<double>& free, std::vector<double>& work) const {
        constexpr double crumb = 1e-6;
        const auto per_host = static_cast<std::size_t>(prices_.ranks_per_host);
        const auto hosts = (ranks_ + per_host - 1) / per_host;
        std::vector<double> taken(ranks_, 0);
        for (auto need = wanted; need > crumb;) {
            std::size_t chosen = hosts;
            double chosen_free = 0;
            for (std::size_t candidate = 0; candidate < hosts; ++candidate) {
                const auto begin = candidate * per_host, end = std::min(ranks_, begin + per_host);
                double all = 0;
                for (auto rank = begin; rank < end; ++rank)
                    if (taken[rank] == 0) all += free[rank];
                if (all < crumb) continue;
                const bool fits = all >= need - crumb, fitted = chosen_free >= need - crumb;
                if (chosen == hosts || (fits != fitted ? fits : fits ? all < chosen_free : all > chosen_free)) {
                    chosen = candidate;
                    chosen_free = all;
                }
            }
            if (chosen == hosts) break;
            const auto begin = chosen * per_host, end = std::min(ranks_, begin + per_host);
            for (auto rank = begin; rank < end && need > crumb; ++rank) {
                if (taken[rank] > 0 || free[rank] < crumb) continue;
                taken[rank] = std::min(need, free[rank]);
                free[rank] -= taken[rank];
                need -= taken[rank];
            }
        }
        give(d, part, taken, work);
    }

    /// Assigns the part's tokens to ranks in proportion to `taken`, in whole tiles. Tokens that do not fit there go to
    /// any rank that has room.
    void give(Draft& d, std::size_t part, const std::vector<double>& taken, std::vector<double>& work) const {
        const auto all = std::accumulate(taken.begin(), taken.end(), 0.0);
        const auto tokens = length(part);
        const auto seconds = token_seconds(part, d.is_long[part] ? all : 1);
        std::vector<std::int64_t> given(ranks_, 0);
        double upto = 0;
        std::int64_t dealt = 0;
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            if (taken[rank] == 0) continue;
            upto += taken[rank];
            const auto target = upto / all * static_cast<double>(tokens);
            const auto tiles = std::llround((target - static_cast<double>(dealt)) / static_cast<double>(grain_));
            const auto most = std::max<std::int64_t>(0, std::min(d.room[rank], tokens - dealt));
            given[rank] = std::clamp<std::int64_t>(tiles * grain_, 0, most);
            dealt += given[rank];
        }
        for (const bool anywhere : {false, true})
            for (std::size_t rank = 0; rank < ranks_ && dealt < tokens; ++rank) {
                if (!anywhere && taken[rank] == 0) continue;
                const auto more = std::clamp<std::int64_t>(d.room[rank] - given[rank], 0, tokens - dealt);
                given[rank] += more;
                dealt += more;
            }
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            if (given[rank] == 0) continue;
            d.shares[part].push_back({static_cast<int>(rank), given[rank]});
            d.room[rank] -= given[rank];
            work[rank] -= seconds * static_cast<double>(given[rank]);
        }
    }

    /// Assigns `parts`, the most expensive first. A part goes whole to the rank that can still take the most work for
    /// each token of its room. If no rank has room and the part is longer than `longest_whole`, it goes to the fewest
    /// neighbours in a host that have room together. Returns the parts that find no room in this way.
    std::vector<std::size_t> place(Draft& d, const std::vector<std::size_t>& parts, std::vector<double>& work,
                                   std::int64_t longest_whole) const {
        std::vector<std::size_t> left;
        for (const auto part : parts) {
            const auto [begin, end] = window(d, length(part), work);
            if (begin == end || (end - begin > 1 && length(part) <= longest_whole)) {
                left.push_back(part);
                continue;
            }
            std::vector<double> taken(ranks_, 0);
            double room = 0;
            for (auto rank = begin; rank < end; ++rank) room += static_cast<double>(d.room[rank]);
            for (auto rank = begin; rank < end; ++rank)
                taken[rank] = static_cast<double>(end - begin) * static_cast<double>(d.room[rank]) / room;
            d.is_long[part] = end - begin > 1;
            give(d, part, taken, work);
        }
        return left;
    }

    /// The fewest neighbouring ranks of one host, [first, end), that have room for so many tokens. Of several such
    /// ranges it is the one that can still take the most work per token. Empty if there is none.
    std::pair<std::size_t, std::size_t> window(const Draft& d, std::int64_t tokens,
                                               const std::vector<double>& work) const {
        std::pair<std::size_t, std::size_t> best{0, 0};
        double most = 0;
        std::size_t fewest = static_cast<std::size_t>(prices_.ranks_per_host) + 1;
        for (std::size_t begin = 0; begin < ranks_; ++begin) {
            std::int64_t room = 0;
            double seconds = 0;
            for (auto end = begin; end < std::min(ranks_, begin + fewest) && host(end) == host(begin);) {
                room += d.room[end];
                seconds += work[end];
                ++end;
                if (room < tokens) continue;
                const auto density = seconds / static_cast<double>(room);
                if (end - begin < fewest || density > most) {
                    best = {begin, end};
                    fewest = end - begin;
                    most = density;
                }
                break;
            }
        }
        return best;
    }

    /// Collects small leftovers of room on one rank. Among the ranks of a spread part, the one with the most room hands
    /// tokens of the part to the others, which have room for them. The room moves on through ranks that have pieces of
    /// several parts.
    void gather_room(Draft& d) const {
        for (const bool again : {false, true})
            for (std::size_t part = 0; part < parts_.size(); ++part) {
                auto& shares = d.shares[again ? parts_.size() - 1 - part : part];
                if (shares.size() < 2) continue;
                const auto room = [&](const Share& share) -> std::int64_t& {
                    return d.room[static_cast<std::size_t>(share.rank)];
                };
                auto& to = *std::ranges::max_element(shares, {}, room);
                for (auto& share : shares) {
                    if (&share == &to) continue;
                    const auto moved = std::min({room(share), to.tokens - 1, 2 * grain_});
                    share.tokens += moved;
                    to.tokens -= moved;
                    room(to) += moved;
                    room(share) -= moved;
                }
            }
    }

    /// Cuts the part into pieces that fill the room that is left, starting with the host that has the most.
    void fill_up(Draft& d, std::size_t part) const {
        auto tokens = length(part);
        auto& shares = d.shares[part];
        while (tokens > 0) {
            std::vector<std::int64_t> rooms(host(ranks_ - 1) + 1, 0);
            for (std::size_t rank = 0; rank < ranks_; ++rank) rooms[host(rank)] += d.room[rank];
            const auto chosen = static_cast<std::size_t>(std::max_element(rooms.begin(), rooms.end()) - rooms.begin());
            std::vector<std::size_t> order;
            for (std::size_t rank = 0; rank < ranks_; ++rank)
                if (host(rank) == chosen && d.room[rank] > 0) order.push_back(rank);
            std::ranges::stable_sort(order, std::greater{}, [&](std::size_t rank) { return d.room[rank]; });
            for (const auto rank : order) {
                const auto here = std::min(tokens, d.room[rank]);
                if (here == 0) break;
                shares.push_back({static_cast<int>(rank), here});
                d.room[rank] -= here;
                tokens -= here;
            }
        }
        std::ranges::sort(shares, {}, &Share::rank);
    }

    /// Evens out the work of the ranks. The busiest rank gives tokens of a spread part to another rank of that part. In
    /// return it takes a whole part that is less work, or exchanges one of its own whole parts for it. This is repeated
    /// until it no longer helps. `work` is the work of each rank in seconds. Returns whether anything was improved.
    bool even_out(Draft& d, std::vector<double> work) const {
        std::vector<std::vector<std::size_t>> wholes(ranks_), spreads(ranks_);
        for (std::size_t part = 0; part < parts_.size(); ++part)
            for (const auto& share : d.shares[part])
                (d.shares[part].size() > 1 ? spreads : wholes)[static_cast<std::size_t>(share.rank)].push_back(part);
        constexpr auto none = std::numeric_limits<std::size_t>::max();
        const auto tokens = [&](std::size_t part) { return part == none ? 0 : length(part); };
        const auto seconds = [&](std::size_t part) { return part == none ? 0 : whole_[part]; };
        struct Move {
            std::size_t part, to, given, taken;
            std::int64_t tokens;
            double eased;
        };
        bool helped = false;
        for (std::size_t step = 0; step < std::min<std::size_t>(2 * ranks_, 128); ++step) {
            const auto busiest = static_cast<std::size_t>(std::ranges::max_element(work) - work.begin());
            auto least = work[busiest] * 0.999;
            std::optional<Move> best;
            auto given_ones = wholes[busiest];
            given_ones.push_back(none);
            for (const auto part : spreads[busiest]) {
                const auto& shares = d.shares[part];
                const auto mine = std::ranges::find(shares, static_cast<int>(busiest), &Share::rank)->tokens;
                const auto each = token_seconds(part, static_cast<double>(shares.size()));
                for (const auto& share : shares) {
                    const auto to = static_cast<std::size_t>(share.rank);
                    if (work[to] >= least) continue;
                    for (const auto taken : wholes[to])
                        for (const auto given : given_ones) {
                            const auto more = tokens(taken) - tokens(given);
                            if (more <= 0 || more >= mine) continue;
                            const auto eased = each * static_cast<double>(more) - seconds(taken) + seconds(given);
                            const auto after = std::max(work[busiest] - eased, work[to] + eased);
                            if (after >= least) continue;
                            least = after;
                            best = {part, to, given, taken, more, eased};
                        }
                }
            }
            if (!best) return helped;
            helped = true;
            for (auto& share : d.shares[best->part]) {
                if (share.rank == static_cast<int>(busiest)) share.tokens -= best->tokens;
                if (share.rank == static_cast<int>(best->to)) share.tokens += best->tokens;
            }
            const auto hand_over = [&](std::size_t part, std::size_t from, std::size_t to) {
                if (part == none) return;
                std::erase(wholes[from], part);
                wholes[to].push_back(part);
                d.shares[part].front().rank = static_cast<int>(to);
            };
            hand_over(best->taken, best->to, busiest);
            hand_over(best->given, busiest, best->to);
            work[busiest] -= best->eased;
            work[best->to] += best->eased;
        }
        return helped;
    }

    Pieces cut(const Draft& d) const {
        Pieces pieces(parts_.size());
        for (std::size_t part = 0; part < parts_.size(); ++part) {
            const auto& shares = d.shares[part];
            if (shares.size() == 1)
                pieces[part] = {{parts_[part].tokens, shares.front().rank}};
            else
                pieces[part] = d.is_long[part] ? in_even_bands(part, shares) : in_bands(part, shares, 1);
        }
        return pieces;
    }

    /// Cuts the part into as many bands as are needed to give every rank about the same number of pairs per token: one
    /// if all rows see equally many keys, two if later rows see more.
    std::vector<PlanPiece> in_even_bands(std::size_t part, const std::vector<Share>& shares) const {
        constexpr double even = 1.03;
        std::vector<PlanPiece> best;
        auto least = std::numeric_limits<double>::infinity();
        const auto mean = parts_[part].pairs / static_cast<double>(length(part));
        for (const int bands : {1, 2, 4, 8, 16}) {
            auto pieces = in_bands(part, shares, bands);
            std::vector<double> pairs(ranks_, 0);
            for (const auto& piece : pieces) pairs[static_cast<std::size_t>(piece.rank)] += pricer_.pairs(piece.tokens);
            double most = 0;
            for (const auto& share : shares)
                most = std::max(most, pairs[static_cast<std::size_t>(share.rank)] / static_cast<double>(share.tokens));
            if (most / mean >= least * 0.99) continue;  // because more bands mean more messages
            least = most / mean;
            best = std::move(pieces);
            if (least <= even) break;
        }
        return best;
    }

    /// Cuts the part into `bands` bands. Each band has about the same share of every rank's tokens. The order of the
    /// ranks is reversed from one band to the next. Pieces are whole tiles, except for a rank's remainder in the last
    /// band.
    std::vector<PlanPiece> in_bands(std::size_t part, const std::vector<Share>& shares, int bands) const {
        const auto count = static_cast<std::size_t>(bands);
        std::vector<std::vector<std::int64_t>> sizes(count);  // by band and index in `shares`
        std::vector<std::int64_t> dealt(count, 0);
        std::int64_t upto = 0;
        for (const auto& share : shares) {
            upto += share.tokens;
            auto left = share.tokens;
            for (std::size_t band = 0; band < count; ++band) {
                auto size = left;
                if (band + 1 < count) {
                    const auto target = static_cast<double>(upto) / bands - static_cast<double>(dealt[band]);
                    const auto tiles = std::llround(target / static_cast<double>(grain_));
                    size = std::clamp<std::int64_t>(tiles * grain_, 0, left);
                }
                sizes[band].push_back(size);
                dealt[band] += size;
                left -= size;
            }
        }
        std::vector<PlanPiece> pieces;
        auto at = parts_[part].tokens.begin;
        for (std::size_t band = 0; band < count; ++band)
            for (std::size_t k = 0; k < shares.size(); ++k) {
                const auto place = band % 2 == 0 ? k : shares.size() - 1 - k;
                const auto size = sizes[band][place];
                if (size == 0) continue;
                if (!pieces.empty() && pieces.back().rank == shares[place].rank)
                    pieces.back().tokens.end += size;
                else
                    pieces.push_back({{at, at + size}, shares[place].rank});
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
