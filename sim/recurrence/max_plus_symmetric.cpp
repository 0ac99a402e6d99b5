#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/clocks.hpp"
#include "sim/ranks/issued_walk.hpp"
#include "sim/recurrence/max_plus.hpp"
#include "sim/recurrence/symmetric_ops.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>

namespace ringlab::sim {
namespace {

using layouts::OpIndex;
using layouts::OpKind;

/// Visible pairs of all heads; may exceed 64 bits.
__extension__ using Pairs = __int128;

/// One time per rank.
using Row = std::vector<Picoseconds>;

/// What is kept of an operation of rank 0.
struct OpRow {
    int readers = 0;             // operations that wait for this one, plus one if the result does
    std::unique_ptr<Row> times;  // when it is ready; once it runs, when it ends
};

/// Walks the operations of rank 0 for all ranks at once, with a row of times, one for each rank, per operation.
class SymmetricRecurrence : public IssuedWalk<SymmetricRecurrence> {
public:
    /// `clocks` are by rank; empty means that of the calibration.
    SymmetricRecurrence(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                        const std::vector<double>& clocks)
        : IssuedWalk(schedule, machine, options, clocks, nullptr),
          ranks_(schedule.ranks()),
          same_clock_(std::adjacent_find(clocks.begin(), clocks.end(), std::not_equal_to<>()) == clocks.end()),
          of_rank_(static_cast<std::size_t>(ranks_)),
          starts_(cost_.starts()),
          ops_(read_symmetric(schedule)),
          rank_(lanes_, 0, cost_.begin_of_pass(0)),
          rows_(ops_.of_rank_0.size()),
          last_(static_cast<std::size_t>(lanes_), -1),
          latest_possible_(
              layouts::checked_sum(cost_.begin_of_pass(0), *std::max_element(starts_.begin(), starts_.end()))) {
        require(!cost_.waits_inside_kernel(),
                "fused launches that wait for gradients are not modelled by the symmetric recurrence");
        count_readers();
    }

    Row run() {
        advance(0);
        end_all(ended_);
        require_finished(1);
        Row ends(starts_.size(), 0);
        for (const auto last : last_)
            for (std::size_t r = 0; last >= 0 && r < ends.size(); ++r)
                ends[r] = std::max(ends[r], (*row(last).times)[r]);
        check_pairs();
        for (auto& end : ends) end = layouts::checked_sum(end, cost_.end_of_pass(0));
        return ends;
    }

    /// The pass that run() has played, in the form that find_sustained_clocks() takes.
    PlayedPass played(const Row& ends, const Machine& machine) const {
        PlayedPass pass{{}, {}, sustained_flops_by_rank(schedule_, machine, cost_.topology(), ranks_)};
        for (const auto& busy : of_rank_) {
            pass.prediction.ranks.emplace_back().compute = layouts::checked_sum(of_all_.compute, busy.compute);
            pass.flop.push_back(of_all_.flop + busy.flop);
        }
        pass.prediction.makespan = *std::max_element(ends.begin(), ends.end());
        return pass;
    }

private:
    friend class layouts::Walk<SymmetricRecurrence>;
    friend class IssuedWalk<SymmetricRecurrence>;

    SimulatedRank& rank_of(int) { return rank_; }
    static int stand_in(int) { return 0; }
    static Picoseconds start_of(int) { return 0; }  // post() adds those of all ranks
    const Op& op(OpIndex index) const { return ops_.of_rank_0[static_cast<std::size_t>(index)]; }
    OpRow& row(OpIndex index) { return rows_[static_cast<std::size_t>(index)]; }
    OpIndex head(Lane lane) const { return static_cast<OpIndex>(rank_.window.head(lane)); }

    void count_readers() {
        std::vector<OpIndex> last(static_cast<std::size_t>(lanes_), -1);
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            const auto& op = ops_.of_rank_0[i];
            auto& before = last[static_cast<std::size_t>(op.lane())];
            if (before >= 0) ++row(before).readers;
            for (const auto other : op.after()) ++row(other).readers;
            before = static_cast<OpIndex>(i);
        }
        for (const auto one : last)
            if (one >= 0) ++row(one).readers;
    }

    const Op* next_op(int, std::uint32_t index) const {
        return index < rows_.size() ? &ops_.of_rank_0[index] : nullptr;
    }

    std::int64_t take(int, const Op& op, OpIndex, layouts::Interval issue) {
        extend_latest(issue.end - issue.begin);
        return op.bytes;
    }

    /// Checks that the attends cover all visible pairs of the mask, also on ranks that were not compared.
    void check_pairs() const {
        const layouts::Run all{0, 1, schedule_.problem().tokens};
        const auto pairs = layouts::visible_pairs(schedule_.mask(), {&all, 1}, layouts::KeyCounter({&all, 1}));
        require(Pairs{pairs} * schedule_.problem().query_heads == attended_pairs_,
                "ranks differ in their numbers of visible pairs; the symmetric recurrence does not hold here");
    }

    /// The head's row becomes the maximum over everything that it waits for.
    bool post(int, Lane lane, std::uint32_t head) {
        const auto& self = op(static_cast<OpIndex>(head));
        const auto issued = rank_.window[head].time;
        std::array<const Picoseconds*, 6> inputs{};
        std::size_t waits = 0;
        const auto before = last_[static_cast<std::size_t>(lane)];
        if (before >= 0) inputs[waits++] = row(before).times->data();
        for (const auto other : self.after())
            if (other != before) inputs[waits++] = row(other).times->data();
        auto times = new_row();
        auto* out = times->data();
        const auto ranks = times->size();
        // An operation that waits for nothing else waits for the start. All others come after such an operation.
        if (waits == 0 || issued > 0) {
            for (std::size_t r = 0; r < ranks; ++r) out[r] = starts_[r] + issued;
            for (std::size_t i = 0; i < waits; ++i)
                for (std::size_t r = 0; r < ranks; ++r) out[r] = std::max(out[r], inputs[i][r]);
        } else if (waits == 1) {
            std::copy_n(inputs[0], ranks, out);
        } else {
            const auto *a = inputs[0], *b = inputs[1], *c = inputs[waits > 2 ? 2 : 1];
            for (std::size_t r = 0; r < ranks; ++r) out[r] = std::max(std::max(a[r], b[r]), c[r]);
            for (std::size_t i = 3; i < waits; ++i)
                for (std::size_t r = 0; r < ranks; ++r) out[r] = std::max(out[r], inputs[i][r]);
        }
        row(static_cast<OpIndex>(head)).times = std::move(times);
        rank_.window.set_head_state(lane, OpState::posted);
        return true;
    }

    void start(int, Lane lane) {
        const auto& self = op(head(lane));
        auto& times = *row(head(lane)).times;
        if (lane == compute_lane) {
            add_compute(self, times);
        } else if (self.kind == OpKind::fetch) {
            add_durations(times, transfer_row(self));
        } else {
            const auto other = layouts::counterpart(lane);
            require_match(0, lane);
            meet_rows(self, times, *row(head(other)).times);
            head_of(0, other).state = OpState::running;
        }
        head_of(0, lane).state = OpState::running;
        ended_.push(0, lane);
    }

    void add_compute(const Op& self, Row& times) {
        const bool attends = self.kind == OpKind::attend;
        if (same_clock_ && (!attends || ops_.same_pair_counts)) {
            const auto duration = cost_.compute(self, 0);
            extend_latest(duration);
            for (auto& time : times) time += duration;
            of_all_.compute = layouts::checked_sum(of_all_.compute, duration);
            if (attends) add_attend(of_all_, self, ranks_);
            return;
        }
        auto op = self;
        durations_.clear();
        for (int rank = 0; rank < ranks_; ++rank) {
            if (attends && !ops_.same_pair_counts) {
                op.rows() = shifted(schedule_, self.rows(), rank);
                op.part = shifted(schedule_, self.part, rank);
                op.pair_count = schedule_.pair_count(op.rows(), op.part);
            }
            auto& busy = of_rank_[static_cast<std::size_t>(rank)];
            if (attends) add_attend(busy, op, 1);
            durations_.push_back(cost_.compute(op, rank));
            busy.compute = layouts::checked_sum(busy.compute, durations_.back());
        }
        add_durations(times, durations_);
    }

    /// Compute time and FLOP of one rank, or of all if they are alike.
    struct Busy {
        Picoseconds compute = 0;
        double flop = 0;
    };

    void add_attend(Busy& busy, const Op& op, int ranks) {
        attended_pairs_ += Pairs{op.pair_count} * op.rows().heads.count() * ranks;
        busy.flop += cost_.computed_flop(op);
    }

    /// Adds to an upper bound of all times, which detects overflow. The bound is the sum of all durations.
    void extend_latest(Picoseconds duration) { latest_possible_ = layouts::checked_sum(latest_possible_, duration); }

    /// Durations of a send or fetch, by the rank that has the operation. Kept, because they are the same from step to
    /// step.
    const Row& transfer_row(const Op& op) {
        if (op.peer == row_peer_ && op.bytes == row_bytes_ && op.kind == row_kind_) return transfers_;
        row_peer_ = op.peer;
        row_bytes_ = op.bytes;
        row_kind_ = op.kind;
        transfers_.clear();
        for (int rank = 0; rank < ranks_; ++rank) {
            const int peer = shifted(schedule_, op.peer, rank);
            const auto cost =
                op.kind == OpKind::send ? cost_.transfer(rank, peer, op.bytes) : cost_.transfer(peer, rank, op.bytes);
            transfers_.push_back(cost.whole());
        }
        return transfers_;
    }

    void add_durations(Row& times, const Row& durations) {
        extend_latest(*std::max_element(durations.begin(), durations.end()));
        for (std::size_t r = 0; r < durations.size(); ++r) times[r] += durations[r];
    }

    /// Ends the send of rank r and the receive of rank r + peer together.
    void meet_rows(const Op& send, Row& send_times, Row& receive_times) {
        const auto& durations = transfer_row(send);
        extend_latest(*std::max_element(durations.begin(), durations.end()));
        const auto shift = static_cast<std::size_t>(send.peer), ranks = durations.size();
        auto *from = send_times.data(), *to = receive_times.data();
        const auto* duration = durations.data();
        const auto pair = [&](std::size_t begin, std::size_t end, std::size_t at) {
            for (std::size_t r = begin; r < end; ++r, ++at) from[r] = to[at] = std::max(from[r], to[at]) + duration[r];
        };
        pair(0, ranks - shift, shift);
        pair(ranks - shift, ranks, 0);
    }

    void finish(int, Lane lane) {
        const auto release = [&](OpIndex index) {
            if (--row(index).readers == 0) free_.push_back(std::move(row(index).times));
        };
        auto& last = last_[static_cast<std::size_t>(lane)];
        if (last >= 0) release(last);
        last = head(lane);
        for (const auto other : op(last).after()) release(other);
        rank_.window.finish_head(lane);
    }

    std::unique_ptr<Row> new_row() {
        if (free_.empty()) return std::make_unique<Row>(starts_.size());
        auto row = std::move(free_.back());
        free_.pop_back();
        return row;
    }

    int ranks_;
    bool same_clock_;            // all ranks run at the same clock
    Busy of_all_;                // used if ranks are alike
    std::vector<Busy> of_rank_;  // by rank, if they differ
    Row starts_;
    SymmetricOps ops_;
    SimulatedRank rank_;
    std::vector<OpRow> rows_;    // by operation
    std::vector<OpIndex> last_;  // by lane: the last operation that has ended
    std::vector<std::unique_ptr<Row>> free_;
    layouts::EndedStack ended_;
    Pairs attended_pairs_ = 0;
    Row durations_;  // scratch
    Picoseconds latest_possible_;
    Row transfers_;
    int row_peer_ = -1;
    std::int64_t row_bytes_ = -1;
    OpKind row_kind_ = OpKind::send;
};

}  // namespace

std::vector<Picoseconds> max_plus_symmetric(const layouts::Schedule& schedule, const Machine& machine,
                                            const SimOptions& options) {
    require(!options.sharing, "the max-plus recurrence holds only with sharing off");
    const auto& jitter = options.jitter;
    require(options.replicas == 1 && jitter.slow_gpus == 0 && jitter.slow_links == 0 && jitter.compute_noise == 0 &&
                jitter.transfer_noise == 0,
            "the symmetric max-plus recurrence plays one ring, whose ranks may differ only in their start times");
    require(options.compute == ComputeModel::rate, "the symmetric max-plus recurrence needs the rate compute model");
    std::vector<double> clocks;
    if (power_limits_clocks(schedule, machine, options))
        clocks = find_sustained_clocks(static_cast<std::size_t>(schedule.ranks()), options, [&](const auto& at) {
            SymmetricRecurrence program(schedule, machine, options, at);
            return program.played(program.run(), machine);
        });
    return SymmetricRecurrence(schedule, machine, options, clocks).run();
}

}  // namespace ringlab::sim
