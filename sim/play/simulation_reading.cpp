#include "layouts/basics/require.hpp"
#include "sim/play/clocks.hpp"
#include "sim/play/simulation.hpp"

#include <utility>

namespace ringlab::sim {

Simulation::Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                       std::vector<double> clocks, std::shared_ptr<TileModel> tiles)
    : IssuedWalk(schedule, machine, options, std::move(clocks), std::move(tiles)),
      machine_(machine),
      options_(options),
      tags_(lanes_),
      ops_(schedule, cost_.ranks()),
      fold_(ops_, schedule, machine, cost_.topology(), options),
      places_(options.sharing ? 1 + static_cast<int>(schedule.channels().size()) : 0),
      engine_(tags_.of(fold_.played(), 0), static_cast<std::uint32_t>(places_ * fold_.played())) {
    ops_.read_by(fold_.played());
    const auto played = static_cast<std::size_t>(fold_.played());
    ranks_.reserve(played);
    prediction_.ranks.resize(played);
    for (int rank = 0; rank < fold_.played(); ++rank) ranks_.push_back(begin_rank(rank));
    if (options.trace) trace_.emplace(ranks_.size(), query_heads());
    if (cost_.waits_inside_kernel())
        for (int rank = 0; rank < cost_.ranks(); ++rank) arrivals_.emplace_back(cost_.key_launches(rank));
    if (options.clock == Clock::sustained) flop_.resize(ranks_.size());
    if (machine.inside_host.depends_on_more_than_bytes()) messages_.emplace(schedule, cost_.ranks());
    if (!options.sharing) return;
    resources_.emplace(engine_, schedule, machine, cost_, fold_);
    transfers_hold_sms_ = resources_->transfers_are_kernels();
    halves_together_ = transfers_hold_sms_ &&
                       machine.inside_host.halves == LinkCost::SmHoldStart::both_ready_backward &&
                       schedule.options().pass == layouts::Pass::backward && !cost_.prices_fused_launches();
    const auto pass = schedule.options().pass;
    if (transfers_hold_sms_ && options.compute == ComputeModel::tiles && !cost_.is_free(Cause::attends) &&
        machine.attention(pass).transfer_start != AttentionCost::TransferStart::at_once)
        admission_.emplace(cost_, machine, pass);
}

std::vector<double> Simulation::powers() const {
    return of_all(sustained_flops_by_rank(schedule_, machine_, cost_.topology(), fold_.played()));
}

std::vector<double> Simulation::of_all(const std::vector<double>& played) const {
    std::vector<double> all(played.empty() ? 0 : static_cast<std::size_t>(cost_.ranks()));
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = played[rank % played.size()];
    return all;
}

std::int64_t Simulation::take(int id, const Op& op, layouts::OpIndex index, layouts::Interval issue) {
    const auto work = op.transfers() ? op.bytes : cost_.compute(op, id, index);
    const bool attends = op.kind == OpKind::attend;
    if (admission_ && attends) admission_->add(id, op);
    if (messages_) messages_->read(id, op);
    if (!arrivals_.empty() && attends) arrivals_[static_cast<std::size_t>(id)].read(op);
    count(rank_of(id).naive, totals_of(id), id, op, work);
    if (trace_) trace_->read(id, ring_of(id), op, issue);
    return work;
}

void Simulation::count(NaiveEstimate& naive, RankTotals& totals, int id, const Op& op, std::int64_t work) {
    switch (op.kind) {
        case OpKind::attend:
            require(
                !__builtin_add_overflow(totals.pair_count, layouts::pairs_of(op, query_heads()), &totals.pair_count),
                "rank {} has more than 2^63 visible pairs; give fewer tokens", id);
            if (!flop_.empty()) flop_[static_cast<std::size_t>(id)] += cost_.computed_flop(op);
            [[fallthrough]];
        case OpKind::merge:
        case OpKind::add:
        case OpKind::copy:
        case OpKind::expand:
        case OpKind::compress: naive.add_compute(op.step, work); return;
        case OpKind::receive: totals.bytes_received += op.bytes; return;
        case OpKind::send: totals.bytes_sent += op.bytes; break;
        case OpKind::fetch: totals.bytes_received += op.bytes; break;
    }
    const auto peer = ring_of(id) + op.peer;
    const auto cost =
        op.kind == OpKind::fetch ? cost_.transfer(peer, id, op.bytes) : cost_.transfer(id, peer, op.bytes);
    naive.add_transfer(op.step, cost.whole());
}

}  // namespace ringlab::sim
