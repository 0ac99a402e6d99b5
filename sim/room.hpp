#pragma once

#include "sim/cost.hpp"

#include <deque>
#include <vector>

namespace ringlab::sim {

/// Where kernels of transfers find room beside attends. Both want whole multiprocessors: a transfer that comes while an
/// attend runs waits until blocks of it end, and an attend that lacks some takes more turns over the others.
class Room {
public:
    using Lanes = std::uint32_t;  ///< a bit for each

    Room(CostModel& cost, const Machine& machine, layouts::Pass pass)
        : cost_(cost),
          machine_(machine),
          room_(machine.attention(pass).room),
          deals_(room_ == AttentionCost::Room::as_items_end && !cost.joins() &&
                 machine.attention(pass).item == Item::key_tile) {
        ranks_.resize(static_cast<std::size_t>(cost.ranks()));
    }

    /// An attend that the rank is to run, in its order; and that the first of them has ended.
    void add(int rank, const Op& attend) {
        of(rank).attends.push_back({attend.rows(), attend.part, {attend.begins, attend.ends}});
    }
    void drop(int rank) { of(rank).attends.pop_front(); }

    /// A transfer has ended. Its multiprocessors go to the next one that is ready or waits, which is before blocks of
    /// an attend: transfers are of higher priority, and blocks that come in groups find a few free ones too far apart.
    void leave(int rank, Picoseconds now) { of(rank).left_at = now; }
    Picoseconds left_at(int rank) { return of(rank).left_at; }

    /// How long a transfer waits that comes when the rank's first attend, of `whole` in all, has run for `gone`; 0:
    /// until it ends.
    Picoseconds wait(int rank, Picoseconds gone, Picoseconds whole) {
        if (room_ == AttentionCost::Room::at_the_end) return 0;
        const auto& [rows, keys, turn] = of(rank).attends.front();
        const auto item = std::max<Picoseconds>(1, cost_.at_clock(cost_.tiles().block(rows, keys, turn).item, rank));
        const auto wait = item - gone % item;
        return gone + wait < whole ? wait : 0;
    }

    /// Whether speed() tells how fast attends are: those of items of keys, in launches of one.
    bool deals() const { return deals_; }

    /// Above any speed() of an attend: it may make up for what it was thought to lose.
    static constexpr double most_speed = 4;

    /// Parts of a multiprocessor that speeds are told in: the engine takes whole ones.
    static constexpr double parts = 1024;

    /// The rank's first attend has run for `gone`, and from now on transfers hold `held`: with that speed, on average,
    /// it ends when its items, dealt to processors that come and go, do.
    double speed(int rank, double held, Picoseconds gone, Picoseconds whole) {
        auto& one = of(rank);
        if (gone == 0) one.without.clear(), one.done = 0;
        if (whole == 0) return 1;
        const auto share = static_cast<double>(gone) / static_cast<double>(whole);
        if (!one.without.empty()) one.done += one.speed * (share - one.since);
        one.since = share;
        one.without.push_back({share, held});
        const auto& [rows, keys, turn] = one.attends.front();
        const auto end = cost_.tiles().longer_beside(one.without, rows, keys);
        const auto left = std::max(0.0, 1 - one.done);
        return one.speed = end > share ? std::min(most_speed, left / (end - share)) : most_speed;
    }

    /// Whether a transfer has room beside the rank's first attend, which has fewer items than would fill the
    /// processors.
    bool is_beside(int rank, double held, double multiprocessors) {
        const auto& [rows, keys, turn] = of(rank).attends.front();
        return deals_ && held + multiprocessors <= cost_.tiles().idle_processors(rows, keys);
    }

    /// Whole multiprocessors, as the engine takes them, that do for the rank's first attend as much as those that are
    /// left when transfers hold `held`.
    double left(int rank, double held) {
        const auto left = std::max(0.0, machine_.multiprocessors - held);
        // A launch of several attends has turns enough for one more not to count.
        if (held == 0 || left == 0 || room_ == AttentionCost::Room::at_the_end || cost_.joins()) return left;
        const auto& [rows, keys, turn] = of(rank).attends.front();
        return std::min(left, machine_.multiprocessors / cost_.tiles().longer_without(held, rows, keys, turn));
    }

    Lanes& waiting(int rank) { return of(rank).waiting; }    ///< transfers that wait for the attend's end
    Lanes& admitted(int rank) { return of(rank).admitted; }  ///< that have waited for an item's

private:
    struct Attend {
        Part rows, keys;
        TileModel::Turn turn;
    };
    struct Rank {
        std::deque<Attend> attends;
        Lanes waiting = 0, admitted = 0;
        Picoseconds left_at = -1;
        // Of the first attend: when transfers held how much, and what of it was done by the last of these times, in
        // shares of it undisturbed.
        std::vector<TileModel::Without> without;
        double done = 0, since = 0, speed = 1;
    };
    Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    CostModel& cost_;
    const Machine& machine_;
    AttentionCost::Room room_;
    bool deals_;
    std::vector<Rank> ranks_;
};

}  // namespace ringlab::sim
