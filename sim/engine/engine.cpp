#include "sim/engine/engine.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ringlab::sim {

void Engine::reserve(std::size_t activities, std::size_t resources) {
    queue_.reserve(timers_ + places_ + activities);
    states_.reserve(places_ + activities);
    uses_.reserve((places_ + activities) * uses_per_activity_);
    resources_.reserve(resources);
}

ResourceId Engine::add_resource(double capacity) {
    resources_.push_back({});
    const auto id = static_cast<ResourceId>(resources_.size() - 1);
    set_capacity(id, capacity);
    return id;
}

void Engine::set_capacity(ResourceId resource, double capacity) {
    require(capacity >= 0 && capacity < 9e18, "a resource has capacity {}; it must be finite and not negative",
            capacity);
    // Converted to float, as demands are: a demand of the whole capacity then fits exactly.
    resources_[resource].capacity = static_cast<float>(capacity);
    may_be_short_ |= resources_[resource].short_of_capacity();
    touch(resource);
}

ActivityId Engine::take_place(ActivityId wanted) {
    if (wanted < states_.size() && !states_[wanted].runs) return wanted;
    if (free_.empty()) {
        require(states_.size() < EventQueue::most_ids - timers_, "more than {} activities at a time",
                EventQueue::most_ids - timers_);
        states_.emplace_back();
        uses_.resize(states_.size() * uses_per_activity_);
        return static_cast<ActivityId>(states_.size() - 1);
    }
    const auto id = free_.back();
    free_.pop_back();
    return id;
}

void Engine::widen_uses(std::size_t demands) {
    HugeVector<Use> wider(states_.size() * demands);
    for (std::size_t id = 0; id < states_.size(); ++id)
        std::copy_n(&uses_[id * uses_per_activity_], uses_per_activity_, &wider[id * demands]);
    uses_ = std::move(wider);
    uses_per_activity_ = demands;
}

ActivityId Engine::start(const Activity& activity) {
    if (activity.demands.size() > uses_per_activity_) widen_uses(activity.demands.size());
    const auto id = take_place(activity.place);
    auto& state = states_[id];
    state.remaining = static_cast<double>(activity.duration);
    state.updated = activity.duration;  // `updated` holds the duration until it begins
    state.tag = activity.tag;
    state.uses = static_cast<std::uint8_t>(activity.demands.size());
    state.priority = activity.priority;
    state.slows_transfers = activity.slows_transfers;
    state.place = nowhere;
    state.limit = none;
    state.runs = true;
    state.ends_later = false;
    state.weight = static_cast<float>(activity.weight);
    state.speed_beside_attend = static_cast<float>(activity.speed_beside_attend);
    for (auto* use = uses(id).data(); const auto& demand : activity.demands) {
        use->amount = static_cast<float>(demand.amount);
        use++->resource = demand.resource;
    }
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
    if (state.uses == 0) {
        queue_.set(id + timers_, layouts::checked_sum(now_, state.updated));
        return;
    }
    state.updated = now_;
    state.speed = state.bound = 0;
    link(id);
    unset_speeds_.push_back(id);
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
        if (!solved() && begins.time > now_ && ends.time > now_) {
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
    if (state.uses > 0) unlink(id);
    state.runs = false;
    if (id >= places_) free_.push_back(id);
    tag = state.tag;
    return true;
}

void Engine::touch(ResourceId resource) {
    if (resources_[resource].dirty) return;
    resources_[resource].dirty = true;
    dirty_.push_back(resource);
}

void Engine::link(ActivityId id) {
    const auto& state = states_[id];
    slowable_transfers_ += state.speed_beside_attend < 1;
    transfers_ += state.priority == Priority::transfer;
    for (Link self = id << link_bits; auto& use : uses(id)) {
        auto& resource = resources_[use.resource];
        auto& head = resource.users[static_cast<std::size_t>(state.priority)];
        use.previous = none;
        use.next = head;
        if (head != none) use_of(head).previous = self;
        head = self++;
        if (state.slows_transfers) {
            require(++resource.slowing_users != 0, "more than 4095 attends use one resource at a time");
            resource.slowing_users_changed = true;
        }
        if (state.speed_beside_attend < 1)
            require(++resource.slowable_users != 0, "more than 65535 messages use one resource at a time");
        touch(use.resource);
    }
}

void Engine::unlink(ActivityId id) {
    const auto& state = states_[id];
    slowable_transfers_ -= state.speed_beside_attend < 1;
    transfers_ -= state.priority == Priority::transfer;
    for (auto& use : uses(id)) {
        auto& resource = resources_[use.resource];
        if (state.priority == Priority::transfer) {
            resource.demand -= whole(double(state.bound) * use.amount);
            resource.used -= whole(double(state.speed) * use.amount);
        }
        (use.previous == none ? resource.users[static_cast<std::size_t>(state.priority)] : use_of(use.previous).next) =
            use.next;
        if (use.next != none) use_of(use.next).previous = use.previous;
        if (state.slows_transfers) {
            --resource.slowing_users;
            resource.slowing_users_changed = true;
        }
        if (state.speed_beside_attend < 1) --resource.slowable_users;
        touch(use.resource);
    }
}

float Engine::bound_of(ActivityId id) {
    const auto& state = states_[id];
    if (state.speed_beside_attend < 1)
        for (const auto& use : uses(id))
            if (resources_[use.resource].slowing_users > 0) return state.speed_beside_attend;
    return 1;
}

void Engine::set_bound(ActivityId id, float bound) {
    auto& state = states_[id];
    if (state.priority == Priority::transfer)
        for (auto& use : uses(id)) {
            auto& resource = resources_[use.resource];
            resource.demand += whole(double(bound) * use.amount) - whole(double(state.bound) * use.amount);
            may_be_short_ |= resource.short_of_capacity();
        }
    state.bound = bound;
}

void Engine::set_speed(ActivityId id, float speed) {
    auto& state = states_[id];
    // An activity that has just begun has speed 0 and is not in the queue yet.
    if (speed == state.speed && (speed > 0 || state.updated != now_)) return;
    if (state.priority == Priority::transfer && speed != state.speed)
        for (auto& use : uses(id)) {
            auto& resource = resources_[use.resource];
            resource.used += whole(double(speed) * use.amount) - whole(double(state.speed) * use.amount);
            if (resource.users[static_cast<std::size_t>(Priority::compute)] != none) touch(use.resource);
        }
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

}  // namespace ringlab::sim
