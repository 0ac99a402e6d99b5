#include "sim/recurrence/symmetric_ops.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>

namespace ringlab::sim {
namespace {

using layouts::Op;
using layouts::OpKind;

constexpr int sampled_ranks = 64;

std::vector<Op> ops_of_rank_0(const layouts::Schedule& schedule) {
    std::vector<Op> all;
    auto stream = schedule.ops(0);
    while (const auto* op = stream.next()) {
        require(op->lane() < schedule.lanes(), "operation {} is on channel {} of {}", all.size(), op->channel,
                schedule.channels().size());
        require(schedule.problem().queries.empty(),
                "only some tokens have a query row; the symmetric recurrence needs one for each token");
        for (const auto* part : {&op->part, &op->rows()})
            require(part->block < schedule.ranks(),
                    "operation {} uses block {}, made of shards of several of {} ranks; the symmetric recurrence "
                    "needs blocks that belong to one rank",
                    all.size(), part->block, schedule.ranks());
        all.push_back(*op);
    }
    return all;
}

bool is_shifted(const layouts::Schedule& schedule, const Op& first, const Op& op, int rank) {
    const bool same_peer = first.peer < 0 ? op.peer < 0 : op.peer == shifted(schedule, first.peer, rank);
    const bool same_state =
        first.begins == op.begins && first.ends == op.ends && first.fused == op.fused && first.adds == op.adds;
    return first.kind == op.kind && first.lane() == op.lane() && first.pool == op.pool && same_peer &&
           op.part == shifted(schedule, first.part, rank) &&
           (op.kind != OpKind::attend || op.rows() == shifted(schedule, first.rows(), rank)) &&
           first.bytes == op.bytes && same_state && std::ranges::equal(first.after(), op.after());
}

void compare(const layouts::Schedule& schedule, SymmetricOps& ops, int rank) {
    const auto& expected = ops.of_rank_0;
    auto stream = schedule.ops(rank);
    std::size_t seen = 0;
    while (const auto* op = stream.next()) {
        require(seen < expected.size() && is_shifted(schedule, expected[seen], *op, rank),
                "operation {} of rank {} differs from that of rank 0; the symmetric recurrence does not hold here",
                seen, rank);
        ops.same_pair_counts &= expected[seen++].pair_count == op->pair_count;
    }
    require(seen == expected.size(),
            "rank {} has {} operations, rank 0 has {}; the symmetric recurrence does not hold here", rank, seen,
            expected.size());
}

}  // namespace

SymmetricOps read_symmetric(const layouts::Schedule& schedule) {
    SymmetricOps ops{ops_of_rank_0(schedule)};
    const int others = schedule.ranks() - 1;
    for (int sample = 1; sample <= std::min(sampled_ranks, others); ++sample)
        compare(schedule, ops,
                others <= sampled_ranks ? sample : static_cast<int>(std::int64_t{sample} * others / sampled_ranks));
    return ops;
}

}  // namespace ringlab::sim
