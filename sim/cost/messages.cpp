#include "sim/cost/messages.hpp"

#include "layouts/program/rank_checks.hpp"

namespace ringlab::sim {

using layouts::OpKind;
using layouts::Pool;

std::int64_t pieces_of(const layouts::Schedule& schedule, const layouts::Op& transfer) {
    const auto tensors = static_cast<std::int64_t>(layouts::tensors(transfer.pool).size());
    // In a whole block each tensor of rows is a piece of its own, and the tensors of keys are one piece.
    if (!is_split_by_heads(schedule, transfer)) return of_rows(transfer.pool) ? tensors : 1;
    return tensors * transfer.part.heads.count() * schedule.problem().batch;
}

bool is_split_by_heads(const layouts::Schedule& schedule, const layouts::Op& transfer) {
    return transfer.part.tokens != layouts::Interval{0, schedule.block_tokens(transfer.part.block)};
}

bool PartlyFilledSlots::had_part(const layouts::Schedule& schedule, const layouts::Op& op) {
    if (op.kind != OpKind::receive && op.kind != OpKind::copy) return false;
    const bool is_whole = !is_split_by_heads(schedule, op) && op.part.heads.count() == schedule.problem().kv_heads;
    if (is_whole) return false;
    return !slots_.emplace(op.pool, op.slot(op.pool)).second;
}

namespace {

/// In most schedules there is none, and to look for one is quicker than to follow every slot.
bool has_lane_with_several_senders(const layouts::Schedule& schedule, int rank) {
    std::vector<int> senders(static_cast<std::size_t>(schedule.lanes()), -1);
    for (auto ops = schedule.ops(rank); const auto* op = ops.next();) {
        if (op->kind != OpKind::receive) continue;
        auto& sender = senders[static_cast<std::size_t>(op->lane())];
        if (sender >= 0 && sender != op->peer) return true;
        sender = op->peer;
    }
    return false;
}

}  // namespace

std::vector<bool> lanes_where_arrival_order_matters(const layouts::Schedule& schedule) {
    std::vector<bool> matters(static_cast<std::size_t>(schedule.lanes()));
    for (const auto rank : {0, schedule.ranks() - 1}) {
        if (!has_lane_with_several_senders(schedule, rank)) continue;
        layouts::ArrivalOrder order(schedule.lanes());
        layouts::OpIndex op_index = 0;
        for (auto ops = schedule.ops(rank); const auto* op = ops.next(); ++op_index)
            order.add(op_index, *op, layouts::Operands(*op, schedule.options().pass));
        for (std::size_t lane = 0; lane < matters.size(); ++lane)
            if (order.matters(static_cast<layouts::Lane>(lane))) matters[lane] = true;
    }
    return matters;
}

}  // namespace ringlab::sim
