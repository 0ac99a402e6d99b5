// How speeds are shared out: Engine::solve() and what it is made of.

#include "sim/engine.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::sim {

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
        auto& resource = resources_[dirty_[i]];
        const auto user = resource.users[static_cast<std::size_t>(Priority::compute)];
        if (user == none || !resource.dirty) continue;
        if (is_alone(user)) {
            set_speed(activity_of(user), speed_alone(activity_of(user), Priority::compute));
            for (const auto& use : uses(activity_of(user))) resources_[use.resource].dirty = false;  // all done by that
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
    shared_out_ = true;
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
