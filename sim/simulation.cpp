#include "sim/simulation.hpp"

#include "layouts/require.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace ringlab::sim {

std::optional<Prediction> Simulation::run() {
    try {
        for (int rank = 0; rank < fold_.played(); ++rank) advance(rank);
        for (std::uint32_t ended = 0; engine_.next(ended);) {
            if (is_folded() && engine_.has_shared_out()) return std::nullopt;
            handle(tags_.rank(ended), tags_.lane(ended));
        }
        return result();
    } catch (const Error&) {
        if (is_folded()) return std::nullopt;  // without folding the error names the right ranks
        throw;
    }
}

void Simulation::hold(int rank, double multiprocessors) {
    if (multiprocessors == 0) return;
    auto& held = rank_of(rank).held;
    held += static_cast<float>(multiprocessors);
    leave(rank);
}

void Simulation::leave(int rank) {
    const auto held = static_cast<double>(rank_of(rank).held);
    const auto* attend = room_ ? attending(rank) : nullptr;
    const auto left = !attend          ? std::max(0.0, machine_.multiprocessors - held)
                      : room_->deals() ? Room::parts * machine_.multiprocessors *
                                             room_->speed(rank, held, engine_.now() - attend->time, attend->work)
                                       : room_->left(rank, held);
    resources_->leave_to_compute(rank, left);
}

const PendingOp* Simulation::attending(int rank) {
    auto& window = rank_of(rank).window;
    const auto head = window.head(compute_lane);
    if (head == OpWindow::none) return nullptr;
    const auto& op = window[head];
    return op.state == OpState::running && op.kind() == OpKind::attend ? &op : nullptr;
}

void Simulation::advance(int rank) {
    refill(rank);
    for (auto lanes = rank_of(rank).window.waiting(); lanes != 0; lanes &= lanes - 1)
        try_start(rank, std::countr_zero(lanes));
}

bool Simulation::waits_for_room(int id, Lane lane, PendingOp& op) {
    const auto* attend = attending(id);
    const auto multiprocessors = transfer_cost(id, lane, op).multiprocessors;
    if (!attend || comes_before(*attend) || multiprocessors == 0) return false;
    if (room_->is_beside(id, static_cast<double>(rank_of(id).held), multiprocessors)) return false;
    if (room_->left_at(id) == engine_.now() && messages_ && messages_->first(id, lane).has_time) return false;
    op.state = OpState::issuing;
    op.time = engine_.now();
    const auto wait = room_->wait(id, engine_.now() - attend->time, attend->work);
    (wait > 0 ? room_->admitted(id) : room_->waiting(id)) |= 1u << lane;
    if (wait > 0) engine_.start_timer(tags_.of(id, lane), wait);
    return true;
}

bool Simulation::is_met(int id, Lane lane, const PendingOp& op) {
    const int by = fold_.of(op.peer);
    auto& other = rank_of(by).window;
    const auto head = other.head(counterpart(lane));
    return head != OpWindow::none && other[head].state == OpState::posted && awaited_by(other[head], op.peer, by) == id;
}

bool Simulation::wait_for_room(int id, Lane lane, PendingOp& op) {
    const auto multiprocessors = transfer_cost(id, lane, op).multiprocessors;
    if (!is_met(id, lane, op) || multiprocessors == 0) return false;
    Picoseconds longest = 0;
    for (const auto rank : {id, op.peer}) {
        const auto* attend = attending(rank);
        if (!attend || comes_before(*attend)) continue;
        if (room_->is_beside(rank, static_cast<double>(rank_of(rank).held), multiprocessors)) continue;
        const auto gone = engine_.now() - attend->time;
        const auto wait = room_->wait(rank, gone, attend->work);
        longest = std::max(longest, wait > 0 ? wait : attend->work - gone);
    }
    if (longest <= 0) return false;
    op.state = OpState::issuing;
    room_->admitted(id) |= 1u << lane;
    engine_.start_timer(tags_.of(id, lane), longest);
    return true;
}

void Simulation::try_start(int id, Lane lane, bool admitted) {
    auto& window = rank_of(id).window;
    const auto head = window.head(lane);
    auto& op = window[head];
    if (!window.may_run(head)) return;
    window.leave_waiting(lane, op.time > engine_.now() ? OpState::issuing : OpState::posted);
    if (op.state == OpState::issuing) {
        engine_.start_timer(tags_.of(id, lane), op.time - engine_.now());
        return;
    }
    if (trace_ && !admitted) trace_->post(id, head, engine_.now());
    if (lane == compute_lane) return start_compute(id, op);
    if (room_ && !admitted && (begins_together(op) ? wait_for_room(id, lane, op) : waits_for_room(id, lane, op)))
        return;
    if (auto& rank = rank_of(id); rank.posted++ == 0) rank.posted_since = engine_.now();
    if (holds_ && !begins_together(op)) hold(id, transfer_cost(id, lane, op).multiprocessors);
    if (op.kind() == OpKind::fetch) return start_transfer(id, lane);
    if (!is_met(id, lane, op)) return;
    const auto other_lane = counterpart(lane);
    const int by = fold_.of(op.peer);
    check_match(id, op, head_of(by, other_lane));
    op.kind() == OpKind::send ? start_transfer(id, lane) : start_transfer(by, other_lane);
}

void Simulation::check_match(int id, const PendingOp& op, const PendingOp& match) const {
    require(op.pool() == match.pool() && op.work == match.work,
            "rank {} and rank {} disagree about a message: {} bytes of {} and {} of {}", id, op.peer, op.work,
            layouts::to_string(op.pool()), match.work, layouts::to_string(match.pool()));
}

void Simulation::start_compute(int id, PendingOp& op) {
    op.state = OpState::running;
    op.time = engine_.now();
    const auto tag = tags_.of(id, compute_lane);
    const bool attends = op.kind() == OpKind::attend;
    if (attends && !inside_.empty()) {
        const auto slower = cost_.slower(id, static_cast<layouts::OpIndex>(rank_of(id).window.head(compute_lane)));
        op.work = inside_[static_cast<std::size_t>(id)].end_of_next(op.time, slower) - op.time;
    }
    SharedResources::Demands demands;
    if (resources_)
        demands = resources_->of_compute(id, attends,
                                         attends && room_ && room_->deals() ? Room::parts * Room::most_speed : 1);
    if (room_ && attends) leave(id);
    if (demands.count == 0) return engine_.start_timer(tag, op.work);
    // leave() sets the capacity so that the attend runs at the speed that Room gives.
    const bool deals = attends && room_ && room_->deals();
    engine_.start(
        {.duration = deals ? static_cast<Picoseconds>(static_cast<double>(op.work) / Room::most_speed) : op.work,
         .demands = demands.span(),
         .priority = Priority::compute,
         .crowds = attends,
         .tag = tag,
         .place = place_of(id, compute_lane)});
}

void Simulation::start_transfer(int id, Lane lane) {
    auto& op = head_of(id, lane);
    begin_span(id, op);
    const int peer = fold_.of(op.peer);
    if (op.kind() == OpKind::send) begin_span(peer, head_of(peer, counterpart(lane)));
    auto whole = transfer_cost(id, lane, op);
    if (op.kind() == OpKind::send) {
        const auto other = counterpart(lane);
        if (messages_) whole = transfer_of_both(id, lane, op);
        if (begins_together(op)) {
            hold(id, transfer_cost(id, lane, op).multiprocessors);
            hold(peer, transfer_cost(peer, other, head_of(peer, other)).multiprocessors);
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
    engine_.start({.duration = cost.duration,
                   .delay = cost.latency,
                   .demands = demands.span(),
                   .weight = 1e9 / cost.bytes_per_second,  // so that flows on a full link get equal rates
                   .crowded_speed = cost.crowded_speed,
                   .tag = tags_.of(id, lane),
                   .place = place_of(id, lane)});
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
        if (!room_) return try_start(rank, lane);
        const auto admitted = room_->admitted(rank);
        room_->admitted(rank) &= ~(1u << lane);
        return try_start(rank, lane, admitted >> lane & 1);
    }
    const int peer = op.kind() == OpKind::send ? fold_.of(op.peer) : -1;
    const bool attended = op.kind() == OpKind::attend;
    finish(rank, lane);
    if (peer >= 0) finish(peer, counterpart(lane));
    if (room_ && (attended || lane != compute_lane)) {
        if (attended) {
            room_->drop(rank);
            make_room(rank, 0);
        } else {
            take_over(rank);
            if (peer >= 0) take_over(peer);
        }
    }
    behind_compute_ = room_ && room_->deals() && lane == compute_lane;
    advance(rank);
    behind_compute_ = false;
    if (peer >= 0) advance(peer);
}

void Simulation::make_room(int rank, Picoseconds least_wait) {
    for (auto lanes = room_->waiting(rank); lanes != 0; lanes &= lanes - 1) {
        const Lane lane = std::countr_zero(lanes);
        auto& op = head_of(rank, lane);
        if (engine_.now() - op.time < least_wait) continue;
        room_->waiting(rank) &= ~(1u << lane);
        op.state = OpState::waiting;
        try_start(rank, lane, true);
    }
}

void Simulation::take_over(int rank) {
    room_->leave(rank, engine_.now());
    make_room(rank, layouts::to_picoseconds(machine_.inside_host.latency_seconds));
}

void Simulation::finish(int id, Lane lane) {
    auto& rank = rank_of(id);
    auto& totals = totals_of(id);
    const auto now = engine_.now();
    const auto index = rank.window.head(lane);
    const auto& op = rank.window[index];
    const auto length = now - op.time;
    if (trace_) trace_->end(id, index, op.time, now);
    if (!inside_.empty()) {
        auto& inside = inside_[static_cast<std::size_t>(id)];
        if (op.kind() == OpKind::attend) inside.ended(now);
        if (lane != compute_lane) inside.arrived(index, op.pool() == Pool::dkv, now);
    }
    totals.end = now;
    if (lane == compute_lane) {
        totals.compute += length;
    } else {
        if (--rank.moving == 0) totals.communication += now - rank.moving_since;
        if (--rank.posted == 0) totals.waiting += now - rank.posted_since;
        if (holds_) hold(id, -transfer_cost(id, lane, op).multiprocessors);
        if (messages_) messages_->pop(id, lane);
    }
    rank.window.finish_head(lane);
}

void Simulation::require_finished() {
    for (int id = 0; id < fold_.played(); ++id) {
        auto& rank = rank_of(id);
        for (Lane lane = 0; lane < lanes_; ++lane) {
            const auto head = rank.window.head(lane);
            if (head == OpWindow::none) continue;
            const auto& op = rank.window[head];
            fail("the schedule cannot be finished: operation {} of rank {} ({}, peer {}) waits for ever", head, id,
                 layouts::to_string(op.kind()), op.peer);
        }
    }
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
        totals.end = layouts::checked_sum(std::max(totals.end, rank.prepared), cost_.behind_pass(id));
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
