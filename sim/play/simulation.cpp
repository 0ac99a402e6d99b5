#include "sim/play/simulation.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <utility>

namespace ringlab::sim {

Simulation::Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                       std::vector<double> clocks, std::shared_ptr<TileModel> tiles)
    : Walk(schedule.ranks()),
      schedule_(schedule),
      machine_(machine),
      options_(options),
      cost_(schedule, machine, options, std::move(clocks), std::move(tiles)),
      lanes_(schedule.lanes()),
      ring_ranks_(schedule.ranks()),
      tags_(lanes_),
      ops_(schedule, cost_.ranks()),
      fold_(ops_, schedule, machine, cost_.topology(), options),
      engine_(options.sharing ? tags_.of(fold_.played(), 0) : 0) {
    require(lanes_ <= OpWindow::most_lanes, "the schedule has {} channels; the simulator has room for {}",
            schedule.channels().size(), OpWindow::most_lanes / 2);
    ops_.read_by(fold_.played());
    const auto played = static_cast<std::size_t>(fold_.played());
    ranks_.reserve(played);
    prediction_.ranks.resize(played);
    partly_filled_.resize(played);
    for (int rank = 0; rank < fold_.played(); ++rank)
        ranks_.emplace_back(lanes_, cost_.start(rank), cost_.begin_of_pass(rank));
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

std::vector<double> Simulation::flop() const {
    std::vector<double> all(flop_.empty() ? 0 : static_cast<std::size_t>(cost_.ranks()));
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = flop_[rank % flop_.size()];
    return all;
}

void Simulation::read(int id, SimulatedRank& rank) {
    const auto index = static_cast<OpIndex>(rank.window.end());
    const auto* op = ops_.next(id, rank.window.end());
    if (!op) {
        rank.more = false;
        return;
    }
    require(op->lane() < lanes_, "rank {} has a transfer on channel {} of {}", id, op->channel,
            schedule_.channels().size());
    const auto issue = cost_.issue_next(*op, id, partly_filled_[static_cast<std::size_t>(id)], rank.issued);
    const auto work = take(id, *op, index, issue);
    rank.window.push(*op, ring_of(id), op->lane() == compute_lane ? std::max(issue.end, rank.begin_ended) : issue.end,
                     work);
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

Prediction Simulation::run() {
    for (int rank = 0; rank < fold_.played(); ++rank) advance(rank);
    for (std::uint32_t ended = 0; engine_.next(ended);) handle(tags_.rank(ended), tags_.lane(ended));
    return result();
}

void Simulation::hold_sms(int rank, double sms) {
    if (sms == 0) return;
    auto& held = rank_of(rank).held;
    held += static_cast<float>(sms);
    set_sms_of_compute(rank);
}

void Simulation::set_sms_of_compute(int rank) {
    const auto held = static_cast<double>(rank_of(rank).held);
    const auto* attend = admission_ ? running_attend(rank) : nullptr;
    const auto left = !attend ? std::max(0.0, machine_.sms - held)
                      : admission_->schedules_attends()
                          ? SmAdmission::parts * machine_.sms *
                                admission_->speed(rank, held, engine_.now() - attend->time, attend->work)
                          : admission_->usable_sms(rank, held);
    resources_->leave_to_compute(rank, left);
}

const PendingOp* Simulation::running_attend(int rank) {
    auto& window = rank_of(rank).window;
    const auto head = window.head(compute_lane);
    if (head == OpWindow::none) return nullptr;
    const auto& op = window[head];
    return op.state == OpState::running && op.kind() == OpKind::attend ? &op : nullptr;
}

bool Simulation::waits_for_sms(int id, Lane lane, PendingOp& op) {
    const auto* attend = running_attend(id);
    const auto sms = transfer_cost(id, lane, op).sms;
    if (!attend || precedes_attend(*attend) || sms == 0) return false;
    if (admission_->fits_on_idle_sms(id, static_cast<double>(rank_of(id).held), sms)) return false;
    op.state = OpState::issuing;
    op.time = engine_.now();
    const auto wait = admission_->wait(id, engine_.now() - attend->time, attend->work);
    (wait > 0 ? admission_->admitted(id) : admission_->waiting(id)) |= 1u << lane;
    if (wait > 0) engine_.start_timer(tags_.of(id, lane), wait);
    return true;
}

bool Simulation::waits_for_sms_at_both_ends(int id, Lane lane, PendingOp& op) {
    const auto sms = transfer_cost(id, lane, op).sms;
    if (!peer_is_posted(id, lane, op) || sms == 0) return false;
    Picoseconds longest = 0;
    for (const auto rank : {id, op.peer}) {
        const auto* attend = running_attend(rank);
        if (!attend || precedes_attend(*attend)) continue;
        if (admission_->fits_on_idle_sms(rank, static_cast<double>(rank_of(rank).held), sms)) continue;
        const auto gone = engine_.now() - attend->time;
        const auto wait = admission_->wait(rank, gone, attend->work);
        longest = std::max(longest, wait > 0 ? wait : attend->work - gone);
    }
    if (longest <= 0) return false;
    op.state = OpState::issuing;
    admission_->admitted(id) |= 1u << lane;
    engine_.start_timer(tags_.of(id, lane), longest);
    return true;
}

bool Simulation::post(int id, Lane lane, std::uint32_t head) {
    auto& rank = rank_of(id);
    auto& op = rank.window[head];
    rank.window.set_head_state(lane, op.time > engine_.now() ? OpState::issuing : OpState::posted);
    if (op.state == OpState::issuing) {
        engine_.start_timer(tags_.of(id, lane), op.time - engine_.now());
        return false;
    }
    if (trace_ && !admitted_) trace_->post(id, head, engine_.now());
    if (lane == compute_lane) return true;
    if (admission_ && !admitted_ &&
        (takes_sms_together(op) ? waits_for_sms_at_both_ends(id, lane, op) : waits_for_sms(id, lane, op)))
        return false;
    if (rank.posted++ == 0) rank.posted_since = engine_.now();
    if (transfers_hold_sms_ && !takes_sms_together(op)) hold_sms(id, transfer_cost(id, lane, op).sms);
    return true;
}

void Simulation::start(int id, Lane lane) {
    auto& op = head_of(id, lane);
    lane == compute_lane ? start_compute(id, op) : start_transfer(id, lane, op);
}

void Simulation::require_match(int id, Lane lane) {
    const auto& send = head_of(id, lane);
    const auto& match = head_of(fold_.of(send.peer), layouts::counterpart(lane));
    require(send.pool() == match.pool() && send.work == match.work,
            "rank {} and rank {} disagree about a message: {} bytes of {} and {} of {}", id, send.peer, send.work,
            layouts::to_string(send.pool()), match.work, layouts::to_string(match.pool()));
}

void Simulation::start_compute(int id, PendingOp& op) {
    op.state = OpState::running;
    op.time = engine_.now();
    const auto tag = tags_.of(id, compute_lane);
    const bool attends = op.kind() == OpKind::attend;
    if (attends && !arrivals_.empty()) {
        const auto slower = cost_.slowdown(id, static_cast<layouts::OpIndex>(rank_of(id).window.head(compute_lane)));
        op.work = arrivals_[static_cast<std::size_t>(id)].end_of_next_attend(op.time, slower) - op.time;
    }
    const bool schedules_attends = attends && admission_ && admission_->schedules_attends();
    SharedResources::Demands demands;
    if (resources_)
        demands =
            resources_->of_compute(id, attends, schedules_attends ? SmAdmission::parts * SmAdmission::most_speed : 1);
    if (admission_ && attends) set_sms_of_compute(id);
    if (demands.count == 0) return engine_.start_timer(tag, op.work);
    // set_sms_of_compute() sets the capacity so that the attend runs at the speed that SmAdmission gives.
    engine_.start(tag, {.duration = schedules_attends ? static_cast<Picoseconds>(static_cast<double>(op.work) /
                                                                                 SmAdmission::most_speed)
                                                      : op.work,
                        .demands = demands.span(),
                        .priority = Priority::compute,
                        .slows_transfers = attends});
}

void Simulation::start_transfer(int id, Lane lane, PendingOp& op) {
    begin_span(id, op);
    auto whole = transfer_cost(id, lane, op);
    if (op.kind() == OpKind::send) {
        require_match(id, lane);
        const int peer = fold_.of(op.peer);
        const auto other = layouts::counterpart(lane);
        begin_span(peer, head_of(peer, other));
        if (messages_) whole = transfer_of_both(id, lane, op);
        if (takes_sms_together(op)) {
            hold_sms(id, transfer_cost(id, lane, op).sms);
            hold_sms(peer, transfer_cost(peer, other, head_of(peer, other)).sms);
        }
    }
    const auto cost = cost_.with_noise(whole, id, rank_of(id).window.head(lane));
    if (!resources_ || cost.bytes_per_second == 0)
        engine_.start_timer(tags_.of(id, lane), cost.whole());
    else
        op.kind() == OpKind::fetch ? start_flow(op.peer, id, cost, id, lane) : start_flow(id, op.peer, cost, id, lane);
}

void Simulation::start_flow(int source, int destination, const TransferCost& cost, int id, Lane lane) {
    const auto demands = resources_->of_transfer(source, destination, cost, id);
    engine_.start(tags_.of(id, lane),
                  {.duration = cost.duration,
                   .delay = cost.latency,
                   .demands = demands.span(),
                   .weight = 1e9 / cost.bytes_per_second,  // so that flows on a full link get equal rates
                   .speed_beside_attend = cost.speed_beside_attend});
}

void Simulation::begin_span(int id, PendingOp& op) {
    op.state = OpState::running;
    op.time = engine_.now();
    auto& rank = rank_of(id);
    if (rank.moving++ == 0) rank.moving_since = engine_.now();
}

void Simulation::handle(int rank, Lane lane) {
    auto& op = head_of(rank, lane);
    if (op.state == OpState::issuing) {
        op.state = OpState::waiting;
        const bool admitted = admission_ && (admission_->admitted(rank) >> lane & 1);
        if (!admitted) return try_start(rank, lane);
        admission_->admitted(rank) &= ~(1u << lane);
        return start_admitted(rank, lane);
    }
    end(rank, lane);
    after_compute_ = false;
}

void Simulation::after_finish(int rank, Lane lane, OpKind kind, int peer) {
    if (!admission_) return;
    if (kind == OpKind::attend) {
        admission_->drop(rank);
        admit_waiting(rank, 0);
    } else if (lane != compute_lane) {
        pass_on_sms(rank);
        if (peer >= 0) pass_on_sms(peer);
    }
    after_compute_ = admission_->schedules_attends() && lane == compute_lane;
}

void Simulation::admit_waiting(int rank, Picoseconds least_wait) {
    for (auto lanes = admission_->waiting(rank); lanes != 0; lanes &= lanes - 1) {
        const Lane lane = std::countr_zero(lanes);
        auto& op = head_of(rank, lane);
        if (engine_.now() - op.time < least_wait) continue;
        admission_->waiting(rank) &= ~(1u << lane);
        op.state = OpState::waiting;
        start_admitted(rank, lane);
    }
}

void Simulation::pass_on_sms(int rank) {
    admit_waiting(rank, layouts::to_picoseconds(machine_.inside_host.latency_seconds));
}

void Simulation::finish(int id, Lane lane) {
    auto& rank = rank_of(id);
    auto& totals = totals_of(id);
    const auto now = engine_.now();
    const auto index = rank.window.head(lane);
    const auto& op = rank.window[index];
    const auto length = now - op.time;
    if (trace_) trace_->end(id, index, op.time, now);
    if (!arrivals_.empty()) {
        auto& inside = arrivals_[static_cast<std::size_t>(id)];
        if (op.kind() == OpKind::attend) inside.ended(now);
        if (lane != compute_lane) inside.arrived(index, op.pool() == Pool::dkv, now);
    }
    totals.end = now;
    if (lane == compute_lane) {
        totals.compute += length;
    } else {
        if (--rank.moving == 0) totals.communication += now - rank.moving_since;
        if (--rank.posted == 0) totals.waiting += now - rank.posted_since;
        if (transfers_hold_sms_) hold_sms(id, -transfer_cost(id, lane, op).sms);
        if (messages_) messages_->pop(id, lane);
    }
    rank.window.finish_head(lane);
}

void Simulation::require_finished() {
    const auto stuck = find_unfinished(fold_.played(), lanes_);
    if (!stuck) return;
    const auto& op = rank_of(stuck->rank).window[static_cast<std::uint32_t>(stuck->operation)];
    fail("the schedule cannot be finished: operation {} of rank {} ({}, peer {}) waits for ever", stuck->operation,
         stuck->rank, layouts::to_string(op.kind()), op.peer);
}

Prediction Simulation::result() {
    require_finished();
    auto& prediction = prediction_;
    const auto alike = static_cast<std::size_t>(cost_.ranks() / fold_.played());
    prediction.events = engine_.events() * alike;
    prediction.notes = cost_.notes();
    prediction.timeline.ranks = cost_.ranks();
    for (int id = 0; id < fold_.played(); ++id) {
        auto& rank = rank_of(id);
        auto& totals = totals_of(id);
        totals.end = layouts::checked_sum(std::max(totals.end, rank.begin_ended), cost_.end_of_pass(id));
        // Compute spans follow each other, so the rest of the time is not covered by compute.
        totals.exposed = totals.end - totals.compute;
        totals.waiting -= totals.communication;  // until here it was the time in which any transfer was posted
        prediction.makespan = std::max(prediction.makespan, totals.end);
        prediction.naive_overlapped = std::max(prediction.naive_overlapped, rank.naive.overlapped());
        prediction.naive_serial = std::max(prediction.naive_serial, rank.naive.serial());
    }
    const auto played = prediction.ranks.size();
    prediction.ranks.resize(alike * played);
    for (auto id = played; id < prediction.ranks.size(); ++id) prediction.ranks[id] = prediction.ranks[id - played];
    if (trace_) trace_->give(prediction);
    return std::move(prediction);
}

}  // namespace ringlab::sim
