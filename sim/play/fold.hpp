#pragma once

#include "layouts/schedules/schedule.hpp"
#include "sim/machine/options.hpp"
#include "sim/machine/topology.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

namespace ringlab::sim {

using layouts::Op;
using layouts::Ops;
using layouts::Schedule;

/// The operations of all ranks of one or more rings, in each rank's order. If ranks are alike, one stream is read for
/// all of them; an operation is kept until the last rank has read it. That saves stepping through, and caching, a
/// stream for each rank.
class OpSource {
public:
    /// `ranks` of all rings together; the schedule must outlive the source.
    OpSource(const Schedule& schedule, int ranks)
        : schedule_(schedule), ranks_(ranks), rank_symmetric_(schedule.is_rank_symmetric()) {
        for (int rank = 0; rank < (rank_symmetric_ ? 1 : ranks); ++rank)
            streams_.push_back(schedule.ops(rank % schedule.ranks()).with_op_storage(current_op_));
        const int other = schedule.ranks() - 1;
        if (rank_symmetric_)
            pair_counts_ = {schedule.pair_count(0, 0), schedule.pair_count(other, 0), schedule.pair_count(0, other)};
    }

    /// Whether ranks are alike, and all ranks' attends of a step have equally many visible pairs.
    bool attends_are_alike() const { return rank_symmetric_ && pair_counts_[1] == pair_counts_[2]; }

    /// Only the first `ranks` ranks will read. For schedules whose ranks are alike.
    void read_by(int ranks) { ranks_ = ranks; }

    /// Operation `index` of `rank`, or nullptr behind its last one. The rank must have read all before it. Valid until
    /// the next call.
    const Op* next(int rank, std::uint32_t index) {
        if (rank_symmetric_) return next_of_alike(rank, index);
        auto& stream = streams_[static_cast<std::size_t>(rank)];
        const auto* op = stream.next();
        if (!op) const Ops done = std::move(stream);
        return op;
    }

private:
    /// An operation of rank 0, and the number of ranks that have not read it yet.
    struct SharedOp {
        Op op;
        int readers;
    };

    const Op* next_of_alike(int rank, std::uint32_t index) {
        if (ranks_ == 1) return streams_.front().next();
        if (index == first_ + shared_ops_.size()) {
            const auto* op = streams_.front().next();
            if (!op) return nullptr;
            shared_ops_.push_back({*op, ranks_});
        }
        auto& [op, readers] = shared_ops_[index - first_];
        current_op_ = op;
        --readers;
        for (; !shared_ops_.empty() && shared_ops_.front().readers == 0; ++first_) shared_ops_.pop_front();
        move(rank % schedule_.ranks());
        return &current_op_;
    }

    /// Turns the operation of rank 0 into that of another rank of its ring.
    void move(int rank) {
        auto& op = current_op_;
        const auto shift = [&](int& number) {
            number += rank;
            if (number >= schedule_.ranks()) number -= schedule_.ranks();
        };
        shift(op.part.block);
        if (op.peer >= 0) shift(op.peer);
        if (!op.transfers()) shift(op.second.block);
        if (op.kind == layouts::OpKind::attend)
            op.pair_count = pair_counts_[op.rows().block == op.part.block  ? 0
                                         : op.rows().block > op.part.block ? 1
                                                                           : 2];
    }

    const Schedule& schedule_;
    int ranks_;
    bool rank_symmetric_;
    // Visible pairs of a rank's rows with the keys of the rank itself, of a lower one and of a higher one.
    std::array<std::int64_t, 3> pair_counts_{};
    Op current_op_;  // shared by all streams
    std::vector<Ops> streams_;
    std::deque<SharedOp> shared_ops_;  // from operation `first_` on
    std::size_t first_ = 0;
};

/// Simulates ranks that must behave alike only once: rank r behaves as rank r % played() does.
///
/// Suppose the schedule is the same on all ranks but for their numbers, and attends cost the same on all of them. Then
/// the times of a rank depend only on its peers and on who shares its memory, links, ports and leaf switches. If hosts
/// are alike and all their GPUs take part, every host has the same neighbours. So the times of one host's ranks,
/// repeated, solve the equations of all hosts, and these have one solution. Where several hosts share a leaf switch,
/// the unit is all hosts of a leaf; where no message leaves its host, it is a single rank.
///
/// Where a resource is too small, speeds of those who share it are rounded to float, in another order than in a play of
/// all ranks. Makespans of such plays differ by less than 1e-6, rarely by 1e-5.
class Fold {
public:
    /// Folds nothing if options ask for a trace, or make ranks differ.
    Fold(const OpSource& ops, const Schedule& schedule, const Machine& machine, const Topology& topology,
         const SimOptions& options);

    /// Number of ranks to simulate; all ranks of all rings if nothing is folded.
    int played() const { return played_; }

    int of(int rank) const {
        if (rank < played_) return rank;
        return (played_ & (played_ - 1)) == 0 ? rank & (played_ - 1) : rank % played_;
    }

private:
    int played_;
};

/// Number of ranks that simulate() plays for all of them.
int ranks_played(const Schedule& schedule, const Machine& machine, const SimOptions& options);

}  // namespace ringlab::sim
