#include "sim/engine.hpp"

#include "layouts/require.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ringlab::sim {

void Engine::reserve(std::size_t activities, std::size_t resources) {
    queue_.reserve(timers_ + places_ + activities);
    states_.reserve(places_ + activities);
    uses_.reserve((places_ + activities) * room_);
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
    // Through float, as demands are: a demand of the whole capacity then fits exactly.
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
        uses_.resize(states_.size() * room_);
        return static_cast<ActivityId>(states_.size() - 1);
    }
    const auto id = free_.back();
    free_.pop_back();
    return id;
}

void Engine::make_room(std::size_t demands) {
    std::vector<Use> wider(states_.size() * demands);
    for (std::size_t id = 0; id < states_.size(); ++id) std::copy_n(&uses_[id * room_], room_, &wider[id * demands]);
    uses_ = std::move(wider);
    room_ = demands;
}

ActivityId Engine::start(const Activity& activity) {
    if (activity.demands.size() > room_) make_room(activity.demands.size());
    const auto id = take_place(activity.place);
    auto& state = states_[id];
    state.remaining = static_cast<double>(activity.duration);
    state.updated = activity.duration;  // until it begins
    state.tag = activity.tag;
    state.uses = static_cast<std::uint8_t>(activity.demands.size());
    state.priority = activity.priority;
    state.crowds = activity.crowds;
    state.place = nowhere;
    state.runs = true;
    state.late = false;
    state.weight = static_cast<float>(activity.weight);
    state.crowded_speed = static_cast<float>(activity.crowded_speed);
    for (auto* use = uses(id).data(); const auto& demand : activity.demands) {
        use->amount = static_cast<float>(demand.amount);
        use++->resource = demand.resource;
    }
    activity.delay > 0 ? wait(id, activity.delay) : begin(id);
    return id;
}

// Delays are few and time only grows, so a line for each is in order by itself, and quicker than the queue.
void Engine::wait(ActivityId id, Picoseconds delay) {
    auto line = std::find_if(lines_.begin(), lines_.end(), [&](const Line& one) { return one.delay == delay; });
    if (line == lines_.end()) line = lines_.insert(line, Line{delay});
    line->push({{layouts::later(now_, delay), queue_.take_number()}, id});
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
        queue_.set(id + timers_, layouts::later(now_, state.updated));
        return;
    }
    state.updated = now_;
    state.speed = state.bound = 0;
    link(id);
    fresh_.push_back(id);
}

// Speeds change more often than activities end, and what becomes slower need not move in the queue at once: it is
// found out when its turn seems to have come. So compute that copies slow down and leave again moves once, not for
// each.
EventQueue::Turn Engine::settled_first() {
    while (!queue_.empty()) {
        const auto [turn, id] = queue_.first();
        if (id < timers_ || !states_[id - timers_].late) return turn;
        auto& state = states_[id - timers_];
        state.late = false;
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
        const auto begins = line ? line->at(line->first).begin : EventQueue::Turn{never, ~std::uint64_t{0}};
        // Nothing ends before the queue says so, and mostly its first event is later than now.
        const bool over =
            begins.time > now_ && (queue_.empty() || queue_.first().turn.time > now_ || settled_first().time > now_);
        if (!solved() && over) solve();
        const auto ends = settled_first();
        if (line && begins < ends) {
            now_ = begins.time;
            begin(line->at(line->first++).id);
            continue;
        }
        if (queue_.empty()) return false;
        require(ends.time != never,
                "the simulation stands still: {} activities have no share of a resource, or one so small that they "
                "would take longer than 106 days",
                queue_.size());
        break;
    }
    const auto event = queue_.pop();
    now_ = event.time;
    ++events_;
    // With many ranks, what comes next is far away in memory.
    if (const auto id = queue_.promoted(2); id >= timers_) {
        prefetch(&states_[id - timers_], sizeof(State));
        prefetch(&uses_[(id - timers_) * room_], room_ * sizeof(Use));
    }
    if (const auto id = queue_.promoted(1); id >= timers_)
        for (const auto& use : uses(id - timers_)) prefetch(&resources_[use.resource], sizeof(Resource));
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
    sensitive_ += state.crowded_speed < 1;
    for (Link self = id << link_bits; auto& use : uses(id)) {
        auto& resource = resources_[use.resource];
        auto& head = resource.users[static_cast<std::size_t>(state.priority)];
        use.previous = none;
        use.next = head;
        if (head != none) use_of(head).previous = self;
        head = self++;
        if (state.crowds) {
            require(++resource.crowding != 0, "too many activities crowd one resource");
            resource.crowd_changed = true;
        }
        if (state.crowded_speed < 1) require(++resource.sensitive != 0, "too many transfers on one resource");
        touch(use.resource);
    }
}

void Engine::unlink(ActivityId id) {
    const auto& state = states_[id];
    sensitive_ -= state.crowded_speed < 1;
    set_bound(id, 0);
    for (auto& use : uses(id)) {
        auto& resource = resources_[use.resource];
        if (state.priority == Priority::transfer) resource.used -= whole(double(state.speed) * use.amount);
        (use.previous == none ? resource.users[static_cast<std::size_t>(state.priority)] : use_of(use.previous).next) =
            use.next;
        if (use.next != none) use_of(use.next).previous = use.previous;
        if (state.crowds) {
            --resource.crowding;
            resource.crowd_changed = true;
        }
        if (state.crowded_speed < 1) --resource.sensitive;
        touch(use.resource);
    }
}

float Engine::bound_of(ActivityId id) {
    const auto& state = states_[id];
    if (state.crowded_speed < 1)
        for (const auto& use : uses(id))
            if (resources_[use.resource].crowding > 0) return state.crowded_speed;
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
    if (speed == state.speed && state.updated != now_) return;
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
    state.late = queue_.leaves_by(id + timers_, end);
    if (state.late)
        state.number = queue_.take_number();
    else
        queue_.set(id + timers_, end);
}

void Engine::solve() {
    solve_transfers();
    solve_compute();
    for (const auto resource : dirty_) resources_[resource].dirty = resources_[resource].crowd_changed = false;
    dirty_.clear();
    fresh_.clear();
}

void Engine::solve_transfers() {
    for (const auto id : fresh_) set_bound(id, bound_of(id));
    // A changed bound makes more resources dirty, so the list grows under way.
    for (std::size_t i = 0; sensitive_ > 0 && i < dirty_.size(); ++i) {
        const auto& resource = resources_[dirty_[i]];
        if (!resource.crowd_changed || resource.sensitive == 0) continue;
        for (auto at = resource.users[static_cast<std::size_t>(Priority::transfer)]; at != none; at = use_of(at).next) {
            const auto id = activity_of(at);
            const auto bound = bound_of(id);
            if (bound == states_[id].bound) continue;
            set_bound(id, bound);
            fresh_.push_back(id);
            for (const auto& use : uses(id)) touch(use.resource);
        }
    }
    const bool some_short = may_be_short_ || tight_ > 0;
    may_be_short_ = false;
    for (std::size_t i = 0; some_short && i < dirty_.size(); ++i) {
        const auto& resource = resources_[dirty_[i]];
        if (!resource.short_of_capacity() && !resource.tight) continue;
        gather(dirty_[i], Priority::transfer);
        fill(Priority::transfer);
    }
    for (const auto id : fresh_) {
        auto& state = states_[id];
        if (state.priority != Priority::transfer) continue;
        const bool limited = tight_ > 0 && std::ranges::any_of(uses(id), [&](const Use& use) {
                                 return resources_[use.resource].tight != 0;
                             });
        if (!limited) set_speed(id, state.bound);
    }
}

void Engine::solve_compute() {
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
        const auto user = resources_[dirty_[i]].users[static_cast<std::size_t>(Priority::compute)];
        if (user == none) continue;
        if (is_alone(user)) {
            set_speed(activity_of(user), speed_alone(activity_of(user), Priority::compute));
            continue;
        }
        gather(dirty_[i], Priority::compute);
        fill(Priority::compute);
    }
}

void Engine::gather(ResourceId start, Priority priority) {
    part_.clear();
    part_resources_.clear();
    const auto add = [&](ResourceId id) {
        auto& resource = resources_[id];
        const bool binds = priority == Priority::compute || resource.short_of_capacity() || resource.tight;
        if (resource.marked || !binds) return;
        resource.marked = true;
        part_resources_.push_back(id);
    };
    add(start);
    for (std::size_t i = 0; i < part_resources_.size(); ++i)
        for (auto at = resources_[part_resources_[i]].users[static_cast<std::size_t>(priority)]; at != none;
             at = use_of(at).next) {
            auto& state = state_of(at);
            if (state.place != nowhere) continue;
            state.place = static_cast<std::uint32_t>(part_.size()) & nowhere;
            part_.push_back(activity_of(at));
            for (const auto& use : uses(activity_of(at))) add(use.resource);
        }
    for (const auto id : part_resources_) {
        auto& resource = resources_[id];
        resource.marked = false;
        if (priority != Priority::transfer) continue;
        tight_ -= resource.tight;
        resource.tight = resource.short_of_capacity();
        tight_ += resource.tight;
    }
}

bool Engine::is_alone(Link link) {
    for (const auto& use : uses(activity_of(link)))
        if (use.next != none || use.previous != none) return false;
    return true;
}

float Engine::speed_alone(ActivityId id, Priority priority) {
    float speed = states_[id].bound;
    for (const auto& use : uses(id)) {
        const auto available = left(resources_[use.resource], priority);
        if (double(speed) * use.amount > static_cast<double>(available))
            speed = static_cast<float>(static_cast<double>(available) / use.amount);
    }
    return speed;
}

// Progressive filling: all speeds grow as level * weight; whoever reaches its bound, or sits on the resource that fills
// up first, keeps its speed; the others go on. A resource is looked at again only when one of its users was settled,
// and what fills up at one level is settled in one round: over the network ports of P hosts there is one round and not
// P.
void Engine::fill(Priority priority) {
    if (part_.size() == 1) {
        auto& state = states_[part_.front()];
        state.place = nowhere;
        set_speed(part_.front(), speed_alone(part_.front(), priority));
        return;
    }
    begin_filling(priority);
    while (!part_open_.empty()) {
        double level = std::numeric_limits<double>::infinity();
        for (const auto reached : part_reached_) level = std::min(level, reached);
        if (!settle_bounded(level)) settle_full(level, priority);
        std::erase_if(part_open_, [&](std::uint32_t i) { return part_speeds_[i] != open; });
    }
    for (std::size_t i = 0; i < part_.size(); ++i) {
        states_[part_[i]].place = nowhere;
        set_speed(part_[i], part_speeds_[i]);
    }
}

void Engine::begin_filling(Priority priority) {
    part_speeds_.assign(part_.size(), open);
    part_bounds_.clear();
    for (const auto id : part_) part_bounds_.push_back(double(states_[id].bound) / double(states_[id].weight));
    part_open_.resize(part_.size());
    std::iota(part_open_.begin(), part_open_.end(), 0u);
    part_place_.resize(std::max(part_place_.size(), resources_.size()));
    part_reached_.clear();
    for (const auto id : part_resources_) {
        part_place_[id] = static_cast<std::uint32_t>(part_reached_.size());
        part_reached_.push_back(reached_level(id, priority));
    }
}

/// Those whose bound is below the level, or who have the lowest of all: whether there are any.
bool Engine::settle_bounded(double level) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto i : part_open_) lowest = std::min(lowest, part_bounds_[i]);
    part_stale_.clear();
    if (lowest > level) return false;
    for (const auto i : part_open_)
        if (part_bounds_[i] <= lowest) settle(i, states_[part_[i]].bound);
    refresh_stale();
    return true;
}

/// The users of all resources that fill up at `level`, in order, until one of them moves another resource there.
void Engine::settle_full(double level, Priority priority) {
    for (std::size_t k = 0; k < part_resources_.size(); ++k) {
        if (part_reached_[k] != level) continue;
        part_stale_.clear();
        for (auto at = resources_[part_resources_[k]].users[static_cast<std::size_t>(priority)]; at != none;
             at = use_of(at).next) {
            const auto& state = state_of(at);
            if (part_speeds_[state.place] == open)
                settle(state.place, static_cast<float>(level * double(state.weight)));
        }
        if (refresh_stale() <= level) return;
    }
}

void Engine::settle(std::uint32_t place, float speed) {
    part_speeds_[place] = speed;
    part_stale_.push_back(place);
}

/// What the resources of those settled last now reach: the least.
double Engine::refresh_stale() {
    double least = std::numeric_limits<double>::infinity();
    for (const auto place : part_stale_) {
        const auto& state = states_[part_[place]];
        for (const auto& use : uses(part_[place])) {
            const auto at = part_place_[use.resource];
            if (at >= part_resources_.size() || part_resources_[at] != use.resource) continue;
            part_reached_[at] = reached_level(use.resource, state.priority);
            least = std::min(least, part_reached_[at]);
        }
    }
    return least;
}

/// The level at which the resource is full, by those of its users that still grow.
double Engine::reached_level(ResourceId id, Priority priority) {
    const auto& resource = resources_[id];
    double available = static_cast<double>(left(resource, priority)), growth = 0;
    for (auto at = resource.users[static_cast<std::size_t>(priority)]; at != none; at = use_of(at).next) {
        const auto speed = part_speeds_[state_of(at).place];
        if (speed == open)
            growth += double(state_of(at).weight) * use_of(at).amount;
        else
            available -= double(speed) * use_of(at).amount;
    }
    return growth == 0 ? std::numeric_limits<double>::infinity() : std::max(0.0, available) / growth;
}

}  // namespace ringlab::sim
