#pragma once

#include "sim/cost/cost.hpp"

#include <deque>
#include <vector>

namespace ringlab::sim {

/// SM admission: when a transfer that is a kernel gets SMs while an attend runs, and how much slower the attend is
/// beside it. Both need whole SMs. A transfer that comes while an attend runs waits until thread blocks of the attend
/// end. An attend that lacks SMs needs more waves on the others.
class SmAdmission {
public:
    using Lanes = std::uint32_t;  ///< one bit for each lane

    SmAdmission(CostModel& cost, const Machine& machine, layouts::Pass pass)
        : cost_(cost),
          machine_(machine),
          start_(machine.attention(pass).transfer_start),
          schedules_attends_(start_ == AttentionCost::TransferStart::as_work_tiles_end &&
                             !cost.prices_fused_launches() && machine.attention(pass).work_tile == WorkTile::key_tile) {
        ranks_.resize(static_cast<std::size_t>(cost.ranks()));
    }

    /// add() appends an attend that the rank will run, in its order; drop() removes the first one, which has ended.
    void add(int rank, const Op& attend) {
        of(rank).attends.push_back({attend.rows(), attend.part, {attend.begins, attend.ends}});
    }
    void drop(int rank) { of(rank).attends.pop_front(); }

    /// How long a transfer waits that comes when the rank's first attend has run for `gone` of its `whole` duration. 0:
    /// until the attend ends.
    Picoseconds wait(int rank, Picoseconds gone, Picoseconds whole) {
        if (start_ == AttentionCost::TransferStart::at_the_end) return 0;
        const auto& [rows, keys, position] = of(rank).attends.front();
        const auto work_tile = std::max<Picoseconds>(
            1, cost_.at_clock(cost_.tiles().attend(rows, keys, position).longest_work_tile, rank));
        const auto wait = work_tile - gone % work_tile;
        return gone + wait < whole ? wait : 0;
    }

    /// Whether speed() determines how fast attends run: for attends of key tiles, launched one by one, if transfers are
    /// admitted as work tiles end.
    bool schedules_attends() const { return schedules_attends_; }

    /// Upper bound of speed(). Speeds above 1 occur when an attend turns out to lose less than it was charged before.
    static constexpr double most_speed = 4;

    /// Speeds are given to the engine in units of 1/1024 of an SM, because it takes whole numbers.
    static constexpr double parts = 1024;

    /// Average speed of the rank's first attend from now on. It has run for `gone` of its `whole` duration, and from
    /// now on transfers hold `held` SMs. At this speed it ends when its work tiles do, list-scheduled on SMs that come
    /// and go.
    double speed(int rank, double held, Picoseconds gone, Picoseconds whole) {
        auto& one = of(rank);
        if (gone == 0) one.missing.clear(), one.done = 0;
        if (whole == 0) return 1;
        const auto share = static_cast<double>(gone) / static_cast<double>(whole);
        if (!one.missing.empty()) one.done += one.speed * (share - one.since);
        one.since = share;
        one.missing.push_back({share, held});
        const auto& [rows, keys, position] = one.attends.front();
        const auto end = cost_.tiles().slowdown_while_sms_missing(one.missing, rows, keys);
        const auto left = std::max(0.0, 1 - one.done);
        return one.speed = end > share ? std::min(most_speed, left / (end - share)) : most_speed;
    }

    /// Whether a transfer fits on SMs that the rank's first attend leaves idle because it has fewer work tiles than
    /// SMs.
    bool fits_on_idle_sms(int rank, double held, double sms) {
        const auto& [rows, keys, position] = of(rank).attends.front();
        return schedules_attends_ && held + sms <= cost_.tiles().idle_sms(rows, keys);
    }

    /// Number of SMs that the rank's first attend makes use of while transfers hold `held`: all that are left, or fewer
    /// if its last wave leaves some idle.
    double usable_sms(int rank, double held) {
        const auto left = std::max(0.0, machine_.sms - held);
        // A fused launch has so many waves that one more does not count.
        if (held == 0 || left == 0 || start_ == AttentionCost::TransferStart::at_the_end ||
            cost_.prices_fused_launches())
            return left;
        const auto& [rows, keys, position] = of(rank).attends.front();
        return std::min(left, machine_.sms / cost_.tiles().slowdown_without_sms(held, rows, keys, position));
    }

    Lanes& waiting(int rank) { return of(rank).waiting; }    ///< transfers that wait for the attend to end
    Lanes& admitted(int rank) { return of(rank).admitted; }  ///< transfers that wait for a work tile to end

private:
    struct Attend {
        Part rows, keys;
        TileModel::AttendPosition position;
    };
    struct Rank {
        std::deque<Attend> attends;
        Lanes waiting = 0, admitted = 0;
        // For the first attend: from when on transfers held how many SMs, and how much of the attend was done at the
        // last of these times. Both as shares of its undisturbed duration.
        std::vector<TileModel::MissingSms> missing;
        double done = 0, since = 0, speed = 1;
    };
    Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    CostModel& cost_;
    const Machine& machine_;
    AttentionCost::TransferStart start_;
    bool schedules_attends_;
    std::vector<Rank> ranks_;
};

}  // namespace ringlab::sim
