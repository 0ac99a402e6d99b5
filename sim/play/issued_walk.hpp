#pragma once

#include "layouts/basics/require.hpp"
#include "layouts/program/walk.hpp"
#include "sim/cost/cost.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

namespace ringlab::sim {

using layouts::compute_lane;
using layouts::Lane;
using layouts::Op;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::OpState;
using layouts::OpWindow;
using layouts::PendingOp;
using layouts::Pool;
using layouts::Schedule;

/// Sums of one rank's durations step by step: the estimates that a simulator has to beat.
class NaiveEstimate {
public:
    void add_compute(int step, Picoseconds duration) {
        enter(step);
        compute_ = layouts::checked_sum(compute_, duration);
    }
    void add_transfer(int step, Picoseconds duration) {
        enter(step);
        transfer_ = layouts::checked_sum(transfer_, duration);
    }
    Picoseconds overlapped() const { return layouts::checked_sum(overlapped_, std::max(compute_, transfer_)); }
    Picoseconds serial() const { return layouts::checked_sum(serial_, layouts::checked_sum(compute_, transfer_)); }

private:
    void enter(int step) {
        if (step == step_) return;
        overlapped_ = overlapped();
        serial_ = serial();
        compute_ = transfer_ = 0;
        step_ = step;
    }

    Picoseconds overlapped_ = 0, serial_ = 0, compute_ = 0, transfer_ = 0;
    int step_ = -1;
};

/// Rank and lane, packed into the engine's tag. A lane runs one operation at a time, so both identify the operation,
/// and its state tells what has ended: its wait for the host, or itself. For a send and its receive, the sender's tag
/// stands for both.
class Tags {
public:
    explicit Tags(int lanes) : lane_bits_(std::bit_width(static_cast<unsigned>(lanes - 1))) {}

    std::uint32_t of(int rank, Lane lane) const {
        return static_cast<std::uint32_t>(rank) << lane_bits_ | static_cast<std::uint32_t>(lane);
    }
    int rank(std::uint32_t tag) const { return static_cast<int>(tag >> lane_bits_); }
    Lane lane(std::uint32_t tag) const { return static_cast<Lane>(tag & ((1u << lane_bits_) - 1)); }

private:
    int lane_bits_;
};

/// Execution state of one rank.
struct alignas(64) SimulatedRank {
    SimulatedRank(int lanes, Picoseconds start, Picoseconds before)
        : window(lanes), begin_ended(layouts::checked_sum(start, before)), issued(start) {}

    // The order of members fills the gaps that window and naive leave: 128 bytes in all.
    [[no_unique_address]] OpWindow window;

    Picoseconds begin_ended;  // end of the work before the first operation on the compute lane
    [[no_unique_address]] NaiveEstimate naive;
    Picoseconds issued;  // when the host has issued all operations that were read
    Picoseconds posted_since = 0, moving_since = 0;
    bool more = true;        // there are operations left to read
    std::int8_t posted = 0;  // transfers whose own side is ready and that have not ended; at most one a lane
    std::int8_t moving = 0;  // those of them whose peer is ready too
    float held = 0;          // SMs that transfers hold
};
static_assert(sizeof(SimulatedRank) == 128);

/// A walk over a schedule whose operations are issued by hosts, in schedule order but for CostModel::is_issued_first().
///
/// Beside what Walk needs, `Player` has:
///
///     const Op* next_op(int id, std::uint32_t index);  // the rank's next operation, or nullptr behind the last one
///     std::int64_t take(int id, const Op&, OpIndex, Interval issue);  // it was read; returns PendingOp::work
///
/// and it may define must_read() and start_of().
template <class Player>
class IssuedWalk : public layouts::Walk<Player> {
protected:
    friend class layouts::Walk<Player>;

    /// See CostModel.
    IssuedWalk(const Schedule& schedule, const Machine& machine, const SimOptions& options, std::vector<double> clocks,
               std::shared_ptr<TileModel> tiles)
        : layouts::Walk<Player>(schedule.ranks()),
          schedule_(schedule),
          cost_(schedule, machine, options, std::move(clocks), std::move(tiles)),
          lanes_(schedule.lanes()),
          ring_ranks_(schedule.ranks()),
          partly_filled_(static_cast<std::size_t>(cost_.ranks())) {
        require(lanes_ <= OpWindow::most_lanes, "the schedule has {} channels; the simulator has room for {}",
                schedule.channels().size(), OpWindow::most_lanes / 2);
    }

    /// A rank in front of its first operation.
    SimulatedRank begin_rank(int id) const { return {lanes_, cost_.start(id), cost_.begin_of_pass(id)}; }

    /// Reads the schedule until every lane has a next operation.
    void refill(int id) {
        auto& rank = player().rank_of(id);
        while (rank.more && (!rank.window.every_lane_has_head() || player().must_read(id))) read(id, rank);
    }

    /// Whether the rank must read on for another reason.
    bool must_read(int) const { return false; }
    /// When the rank's host starts to issue.
    Picoseconds start_of(int id) const { return cost_.start(id); }
    void after_finish(int, Lane, OpKind, int) {}

    /// First rank of the ring that `rank` belongs to.
    int ring_of(int rank) const { return rank < ring_ranks_ ? 0 : rank - rank % ring_ranks_; }

    /// Throws Error if the send at the head of a lane and its receive are not of the same message.
    void require_match(int id, Lane lane) {
        const auto& send = this->head_of(id, lane);
        const auto& match = this->head_of(player().stand_in(send.peer), layouts::counterpart(lane));
        require(send.pool() == match.pool() && send.work == match.work,
                "rank {} and rank {} disagree about a message: {} bytes of {} and {} of {}", id, send.peer, send.work,
                layouts::to_string(send.pool()), match.work, layouts::to_string(match.pool()));
    }

    void require_finished(int ranks) {
        const auto stuck = this->find_unfinished(ranks, lanes_);
        if (!stuck) return;
        const auto& op = player().rank_of(stuck->rank).window[static_cast<std::uint32_t>(stuck->operation)];
        fail("the schedule cannot be finished: operation {} of rank {} ({}, peer {}) waits for ever", stuck->operation,
             stuck->rank, layouts::to_string(op.kind()), op.peer);
    }

    const Schedule& schedule_;
    CostModel cost_;
    int lanes_;

private:
    int ring_ranks_;
    std::vector<PartlyFilledSlots> partly_filled_;  // by rank

    Player& player() { return static_cast<Player&>(*this); }

    void read(int id, SimulatedRank& rank) {
        const auto index = static_cast<layouts::OpIndex>(rank.window.end());
        const auto* op = player().next_op(id, rank.window.end());
        if (!op) {
            rank.more = false;
            return;
        }
        require(op->lane() < lanes_, "rank {} has a transfer on channel {} of {}", id, op->channel,
                schedule_.channels().size());
        auto& partly_filled = partly_filled_[static_cast<std::size_t>(id)];
        const auto issue = cost_.issue(*op, partly_filled.had_part(schedule_, *op));
        rank.issued = layouts::checked_sum(rank.issued, issue);
        const auto by_host = cost_.is_issued_first(*op) ? player().start_of(id) : rank.issued;
        const auto issued = by_host + cost_.issue_delay(id, index);
        const auto work = player().take(id, *op, index, {issued - issue, issued});
        rank.window.push(*op, ring_of(id), op->lane() == compute_lane ? std::max(issued, rank.begin_ended) : issued,
                         work);
    }
};

}  // namespace ringlab::sim
