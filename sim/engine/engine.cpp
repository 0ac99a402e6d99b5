#include "sim/engine/engine.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>

namespace ringlab::sim {

void Engine::start(std::uint32_t tag, const Activity& activity) {
    if (tag >= states_.size()) states_.resize(tag + 1);
    sharing_.describe(tag, {activity.demands, activity.priority, activity.weight, activity.speed_beside_attend,
                            activity.slows_transfers});
    states_[tag] = {.remaining = static_cast<double>(activity.duration),
                    .updated = activity.duration,
                    .number = 0,
                    .speed = 0,
                    .runs = true,
                    .ends_later = false};
    if (activity.delay == 0) return begin(tag);
    auto line = std::ranges::find(lines_, activity.delay, &Line::delay);
    if (line == lines_.end()) line = lines_.insert(line, Line{activity.delay});
    line->waiting.push_back({{layouts::checked_sum(now_, activity.delay), queue_.take_number()}, tag});
}

Engine::Line* Engine::first_line() {
    Line* first = nullptr;
    for (auto& line : lines_)
        if (!line.waiting.empty() && (!first || line.waiting.front().begin < first->waiting.front().begin))
            first = &line;
    return first;
}

void Engine::begin(std::uint32_t tag) {
    auto& state = states_[tag];
    if (!sharing_.demands_something(tag)) return start_timer(tag, state.updated);
    state.updated = now_;
    sharing_.begin(tag);
}

void Engine::solve() {
    for (const auto& [tag, speed] : sharing_.solve()) set_speed(tag, speed);
}

void Engine::set_speed(std::uint32_t tag, float speed) {
    auto& state = states_[tag];
    state.remaining = std::max(0.0, state.remaining - static_cast<double>(now_ - state.updated) * state.speed);
    state.updated = now_;
    state.speed = speed;
    const auto end = end_of(state);
    state.ends_later = queue_.leaves_by(tag, end);
    if (state.ends_later)
        state.number = queue_.take_number();
    else
        queue_.set(tag, end);
}

// Speeds change more often than activities end. An activity that becomes slower keeps its place in the queue, and is
// put back when it comes up too early. So compute that several copies slow down, one after another, moves once and not
// for each copy.
EventQueue::EventOrder Engine::first_valid_end() {
    while (!queue_.empty()) {
        const auto [event_order, tag] = queue_.first();
        auto* state = state_of(tag);
        if (!state || !state->ends_later) return event_order;
        state->ends_later = false;
        queue_.set(tag, {end_of(*state), state->number});
    }
    return {never, ~std::uint64_t{0}};
}

Picoseconds Engine::end_of(const State& state) {
    const auto wait = state.remaining == 0 ? 0 : state.remaining / state.speed;
    return wait < 9e18 - static_cast<double>(state.updated) ? state.updated + static_cast<Picoseconds>(wait + 0.5)
                                                            : never;
}

bool Engine::next(std::uint32_t& tag) {
    for (;;) {
        auto* line = first_line();
        auto first = first_valid_end();
        const bool begins_now = line && line->waiting.front().begin.time == now_;
        if (!sharing_.is_solved() && !begins_now && first.time > now_) {
            solve();
            first = first_valid_end();
        }
        if (line && line->waiting.front().begin < first) {
            now_ = line->waiting.front().begin.time;
            begin(line->waiting.front().tag);
            line->waiting.pop_front();
            continue;
        }
        if (queue_.empty()) return false;
        require(
            first.time != never,
            "the simulation stands still: {} activities have no share of a resource, or one so small that they "
            "would run for more than 106 days, the longest that a timeline can hold; if the case is that large, use "
            "fewer tokens, or a faster machine",
            queue_.size());
        tag = queue_.pop().id;
        now_ = first.time;
        auto* state = state_of(tag);
        ++events_;
        if (!state) return true;
        if (sharing_.demands_something(tag)) sharing_.end(tag);
        state->runs = false;
        return true;
    }
}

}  // namespace ringlab::sim
