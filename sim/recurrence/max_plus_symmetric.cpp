#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/clocks.hpp"
#include "sim/ranks/lanes.hpp"
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

struct OpRow {
    Op op;  // of rank 0
    Picoseconds issued = 0;
    OpIndex before = -1;  // on the same lane
    int readers = 0;      // operations that wait for this one, plus one if the result does
    std::unique_ptr<Row> ready;
    std::unique_ptr<Row> end;
    bool done = false;
};

/// Runs the program of rank 0 for all ranks: one row of times per operation.
class SymmetricProgram {
public:
    /// `clocks` are by rank; empty means that of the calibration.
    SymmetricProgram(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                     const std::vector<double>& clocks)
        : schedule_(schedule),
          ranks_(schedule.ranks()),
          cost_(schedule, machine, options, clocks),
          same_clock_(std::adjacent_find(clocks.begin(), clocks.end(), std::not_equal_to<>()) == clocks.end()),
          of_rank_(static_cast<std::size_t>(ranks_)),
          starts_(cost_.starts()),
          lanes_(schedule.lanes()) {
        require(!cost_.waits_inside_kernel(),
                "fused launches that wait for gradients are not modelled by the symmetric recurrence");
        read();
    }

    Row run() {
        for (bool progress = true; progress;) {
            progress = false;
            for (auto& lane : lanes_)
                while (lane.next < lane.ops.size() && settle(lane.ops[lane.next])) {
                    ++lane.next;
                    progress = true;
                }
        }
        Row ends(starts_.size(), 0);
        for (const auto& [ops, next] : lanes_) {
            if (ops.empty()) continue;
            const auto& last = node(ops.back());
            require(last.done, "the schedule cannot be finished: operation {} waits for ever", ops[next]);
            for (std::size_t r = 0; r < ends.size(); ++r) ends[r] = std::max(ends[r], (*last.end)[r]);
        }
        check_cells();
        for (auto& end : ends) end = layouts::checked_sum(end, cost_.end_of_pass(0));
        return ends;
    }

    /// The pass that run() played, for find_sustained_clocks().
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
    struct LaneQueue {
        std::vector<OpIndex> ops;
        std::size_t next = 0;  // first operation that is not done
    };

    LaneQueue& lane_of(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
    OpRow& node(OpIndex op) { return nodes_[static_cast<std::size_t>(op)]; }
    void read() {
        auto symmetric = read_symmetric(schedule_);
        uniform_cells_ = symmetric.uniform_cells;
        auto host = cost_.host_clock(0);
        for (const auto& op : symmetric.of_rank_0) {
            const auto issued =
                host.issue(op, static_cast<OpIndex>(nodes_.size()), cost_.issue(op, host.follows(op)),
                           [&](OpIndex transfer, Picoseconds delay) { node(transfer).issued += delay; });
            OpRow added;
            added.op = op;
            added.issued = op.transfers() ? issued : std::max(issued, cost_.begin_of_pass(0));
            auto& lane = lane_of(op.lane()).ops;
            if (!lane.empty()) {
                added.before = lane.back();
                ++node(added.before).readers;
            }
            for (const auto other : op.after()) ++node(other).readers;
            lane.push_back(static_cast<OpIndex>(nodes_.size()));
            nodes_.push_back(std::move(added));
        }
        for (const auto& lane : lanes_)
            if (!lane.ops.empty()) ++node(lane.ops.back()).readers;
        latest_possible_ = layouts::checked_sum(layouts::checked_sum(host.state().now, cost_.begin_of_pass(0)),
                                                *std::max_element(starts_.begin(), starts_.end()));
    }

    /// Checks that the attends cover all visible pairs of the mask, also on ranks that were not compared.
    void check_cells() const {
        const layouts::Run all{0, 1, schedule_.problem().tokens};
        const auto pairs = layouts::visible_pairs(schedule_.mask(), {&all, 1}, layouts::KeyCounter({&all, 1}));
        require(Pairs{pairs} * schedule_.problem().query_heads == cells_,
                "ranks differ in their numbers of visible pairs; the symmetric recurrence does not hold here");
    }

    bool settle(OpIndex index) {
        auto& self = node(index);
        if (self.done) return true;
        if (!self.ready) {
            if (self.before >= 0 && !node(self.before).done) return false;
            for (const auto other : self.op.after())
                if (!node(other).done) return false;
            self.ready = ready_row(self);
        }
        switch (self.op.kind) {
            case OpKind::attend:
            case OpKind::merge:
            case OpKind::add:
            case OpKind::copy:
            case OpKind::expand:
            case OpKind::compress: add_compute(self); break;
            case OpKind::fetch: add_durations(self, transfer_row(self.op)); break;
            case OpKind::send:
            case OpKind::receive: return meet(self);
        }
        self.end = std::move(self.ready);
        finish(self);
        return true;
    }

    /// Maximum over everything that an operation waits for.
    std::unique_ptr<Row> ready_row(const OpRow& self) {
        std::array<const Picoseconds*, 6> inputs{};
        std::size_t waits = 0;
        if (self.before >= 0) inputs[waits++] = node(self.before).end->data();
        for (const auto other : self.op.after())
            if (other != self.before) inputs[waits++] = node(other).end->data();
        auto row = new_row();
        auto* out = row->data();
        const auto ranks = row->size();
        // An operation that waits for nothing else waits for the start. All others come after such an operation.
        if (waits == 0 || self.issued > 0) {
            for (std::size_t r = 0; r < ranks; ++r) out[r] = starts_[r] + self.issued;
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
        return row;
    }

    void add_compute(OpRow& self) {
        const bool attends = self.op.kind == OpKind::attend;
        if (same_clock_ && (!attends || uniform_cells_)) {
            const auto duration = cost_.compute(self.op, 0);
            extend_latest(duration);
            for (auto& time : *self.ready) time += duration;
            of_all_.compute = layouts::checked_sum(of_all_.compute, duration);
            if (attends) add_attend(of_all_, self.op, ranks_);
            return;
        }
        auto op = self.op;
        durations_.clear();
        for (int rank = 0; rank < ranks_; ++rank) {
            if (attends && !uniform_cells_) {
                op.rows() = shifted(schedule_, self.op.rows(), rank);
                op.part = shifted(schedule_, self.op.part, rank);
                op.pair_count = schedule_.pair_count(op.rows(), op.part);
            }
            auto& busy = of_rank_[static_cast<std::size_t>(rank)];
            if (attends) add_attend(busy, op, 1);
            durations_.push_back(cost_.compute(op, rank));
            busy.compute = layouts::checked_sum(busy.compute, durations_.back());
        }
        add_durations(self, durations_);
    }

    /// Compute time and FLOP of one rank, or of all if they are alike.
    struct Busy {
        Picoseconds compute = 0;
        double flop = 0;
    };

    void add_attend(Busy& busy, const Op& op, int ranks) {
        cells_ += Pairs{op.pair_count} * op.rows().heads.count() * ranks;
        busy.flop += cost_.computed_flop(op);
    }

    /// Adds to an upper bound of all times, which detects overflow: no path is longer than all operations in a row.
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

    void add_durations(OpRow& self, const Row& durations) {
        extend_latest(*std::max_element(durations.begin(), durations.end()));
        for (std::size_t r = 0; r < durations.size(); ++r) (*self.ready)[r] += durations[r];
    }

    /// Ends the send of rank r and the receive of rank r + peer together, if both are ready.
    bool meet(OpRow& self) {
        const bool sends = self.op.kind == OpKind::send;
        const auto& [ops, next] = lane_of(counterpart(self.op.lane()));
        if (next >= ops.size()) return false;
        auto& other = node(ops[next]);
        if (other.done || !other.ready || shifted(schedule_, other.op.peer, self.op.peer) != 0) return false;
        auto& send = sends ? self : other;
        auto& receive = sends ? other : self;
        const auto& durations = transfer_row(send.op);
        extend_latest(*std::max_element(durations.begin(), durations.end()));
        const auto shift = static_cast<std::size_t>(send.op.peer), ranks = durations.size();
        auto *from = send.ready->data(), *to = receive.ready->data();
        const auto* duration = durations.data();
        const auto pair = [&](std::size_t begin, std::size_t end, std::size_t at) {
            for (std::size_t r = begin; r < end; ++r, ++at) from[r] = to[at] = std::max(from[r], to[at]) + duration[r];
        };
        pair(0, ranks - shift, shift);
        pair(ranks - shift, ranks, 0);
        send.end = std::move(send.ready);
        receive.end = std::move(receive.ready);
        finish(send);
        finish(receive);
        return true;
    }

    void finish(OpRow& self) {
        self.done = true;
        const auto release = [&](OpIndex index) {
            auto& other = node(index);
            if (--other.readers == 0) free_.push_back(std::move(other.end));
        };
        if (self.before >= 0) release(self.before);
        for (const auto other : self.op.after()) release(other);
    }

    std::unique_ptr<Row> new_row() {
        if (free_.empty()) return std::make_unique<Row>(starts_.size());
        auto row = std::move(free_.back());
        free_.pop_back();
        return row;
    }

    const Schedule& schedule_;
    int ranks_;
    CostModel cost_;
    bool same_clock_;            // all ranks run at the same clock
    Busy of_all_;                // if ranks are alike
    std::vector<Busy> of_rank_;  // by rank, if they differ
    Row starts_;
    std::vector<OpRow> nodes_;
    std::vector<LaneQueue> lanes_;
    std::vector<std::unique_ptr<Row>> free_;
    bool uniform_cells_ = true;
    Pairs cells_ = 0;
    Row durations_;  // scratch
    Picoseconds latest_possible_ = 0;
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
            SymmetricProgram program(schedule, machine, options, at);
            return program.played(program.run(), machine);
        });
    return SymmetricProgram(schedule, machine, options, clocks).run();
}

}  // namespace ringlab::sim
