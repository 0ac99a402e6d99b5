#include "sim/engine/engine.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>

namespace ringlab::sim {

void Engine::reserve(std::size_t activities, std::size_t resources) {
    queue_.reserve(timers_ + places_ + activities);
    states_.reserve(places_ + activities);
    sharing_.reserve(places_ + activities, resources);
}

ActivityId Engine::take_place(ActivityId wanted) {
    if (wanted < states_.size() && !states_[wanted].runs) return wanted;
    if (free_.empty()) {
        require(states_.size() < EventQueue::most_ids - timers_, "more than {} activities at a time",
                EventQueue::most_ids - timers_);
        states_.emplace_back();
        return static_cast<ActivityId>(states_.size() - 1);
    }
    const auto id = free_.back();
    free_.pop_back();
    return id;
}

ActivityId Engine::start(const Activity& activity) {
    const auto id = take_place(activity.place);
    sharing_.describe(id, {activity.demands, activity.priority, activity.weight, activity.speed_beside_attend,
                           activity.slows_transfers});
    states_[id] = {.remaining = static_cast<double>(activity.duration),
                   .updated = activity.duration,  // `updated` holds the duration until it begins
                   .number = 0,
                   .speed = 0,
                   .tag = activity.tag,
                   .runs = true,
                   .ends_later = false};
    activity.delay > 0 ? wait(id, activity.delay) : begin(id);
    return id;
}

// There are few different delays, and time only grows. So the activities with one delay form a line that is sorted
// without any work, which is faster than the queue.
void Engine::wait(ActivityId id, Picoseconds delay) {
    auto line = std::find_if(lines_.begin(), lines_.end(), [&](const Line& one) { return one.delay == delay; });
    if (line == lines_.end()) line = lines_.insert(line, Line{delay});
    line->push({{layouts::checked_sum(now_, delay), queue_.take_number()}, id});
}

void Engine::Line::push(const Entry& entry) {
    if (end - first == ring.size()) {
        std::vector<Entry> larger(std::max<std::size_t>(8, 2 * ring.size()));
        for (auto i = first; i != end; ++i) larger[i & (static_cast<std::uint32_t>(larger.size()) - 1)] = at(i);
        ring = std::move(larger);
    }
    at(end++) = entry;
}

Engine::Line* Engine::first_line() {
    Line* first = nullptr;
    for (auto& line : lines_)
        if (!line.empty() && (!first || line.at(line.first).begin < first->at(first->first).begin)) first = &line;
    return first;
}

void Engine::begin(ActivityId id) {
    auto& state = states_[id];
    if (!sharing_.demands_something(id)) {
        queue_.set(id + timers_, layouts::checked_sum(now_, state.updated));
        return;
    }
    state.updated = now_;
    sharing_.begin(id);
}

void Engine::solve() {
    for (const auto& [id, speed] : sharing_.solve()) set_speed(id, speed);
}

void Engine::set_speed(ActivityId id, float speed) {
    auto& state = states_[id];
    state.remaining = std::max(0.0, state.remaining - static_cast<double>(now_ - state.updated) * state.speed);
    state.updated = now_;
    state.speed = speed;
    const auto end = end_of(state);
    state.ends_later = queue_.leaves_by(id + timers_, end);
    if (state.ends_later)
        state.number = queue_.take_number();
    else
        queue_.set(id + timers_, end);
}

// Speeds change more often than activities end. An activity that becomes slower keeps its place in the queue, and is
// put back when it comes up too early. So compute that several copies slow down, one after another, moves once and not
// for each copy.
EventQueue::EventOrder Engine::first_valid_end() {
    while (!queue_.empty()) {
        const auto [event_order, id] = queue_.first();
        if (id < timers_ || !states_[id - timers_].ends_later) return event_order;
        auto& state = states_[id - timers_];
        state.ends_later = false;
        queue_.set(id, {end_of(state), state.number});
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
        const auto begins = line ? line->at(line->first).begin : EventQueue::EventOrder{never, ~std::uint64_t{0}};
        auto ends = first_valid_end();
        if (!sharing_.is_solved() && begins.time > now_ && ends.time > now_) {
            solve();
            ends = first_valid_end();
        }
        if (line && begins < ends) {
            now_ = begins.time;
            begin(line->at(line->first++).id);
            continue;
        }
        if (queue_.empty()) return false;
        require(
            ends.time != never,
            "the simulation stands still: {} activities have no share of a resource, or one so small that they "
            "would run for more than 106 days, the longest that a timeline can hold; if the case is that large, use "
            "fewer tokens, or a faster machine",
            queue_.size());
        break;
    }
    const auto event = queue_.pop();
    now_ = event.time;
    ++events_;
    if (event.id < timers_) {
        tag = event.id;
        return true;
    }
    const auto id = event.id - timers_;
    auto& state = states_[id];
    if (sharing_.demands_something(id)) sharing_.end(id);
    state.runs = false;
    if (id >= places_) free_.push_back(id);
    tag = state.tag;
    return true;
}

}  // namespace ringlab::sim
