#include "sim/engine/sharing.hpp"

#include "layouts/basics/require.hpp"

#include <limits>
#include <numeric>

namespace ringlab::sim {

ResourceId Sharing::add_resource(double capacity) {
    resources_.push_back({});
    const auto id = static_cast<ResourceId>(resources_.size() - 1);
    set_capacity(id, capacity);
    return id;
}

void Sharing::set_capacity(ResourceId resource, double capacity) {
    require(capacity >= 0 && capacity < 9e18, "a resource has capacity {}; it must be finite and not negative",
            capacity);
    // Converted to float, as demands are: a demand of the whole capacity then fits exactly.
    resources_[resource].capacity = static_cast<float>(capacity);
    may_be_short_ |= resources_[resource].short_of_capacity();
    touch(resource);
}

void Sharing::widen_uses(std::size_t demands) {
    HugeVector<Use> wider(states_.size() * demands);
    for (std::size_t id = 0; id < states_.size(); ++id)
        std::copy_n(&uses_[id * uses_per_activity_], uses_per_activity_, &wider[id * demands]);
    uses_ = std::move(wider);
    uses_per_activity_ = demands;
}

void Sharing::describe(ActivityId id, const Claim& claim) {
    if (id >= states_.size()) {
        states_.resize(id + 1);
        uses_.resize(states_.size() * uses_per_activity_);
    }
    if (claim.demands.size() > uses_per_activity_) widen_uses(claim.demands.size());
    states_[id] = {.speed = 0,
                   .bound = 0,
                   .weight = static_cast<float>(claim.weight),
                   .speed_beside_attend = static_cast<float>(claim.speed_beside_attend),
                   .place = nowhere,
                   .limit = none,
                   .uses = static_cast<std::uint8_t>(claim.demands.size()),
                   .priority = claim.priority,
                   .slows_transfers = claim.slows_transfers,
                   .is_new = true};
    for (auto* use = uses(id).data(); const auto& demand : claim.demands) {
        use->amount = static_cast<float>(demand.amount);
        use++->resource = demand.resource;
    }
}

void Sharing::touch(ResourceId resource) {
    if (resources_[resource].dirty) return;
    resources_[resource].dirty = true;
    dirty_.push_back(resource);
}

void Sharing::begin(ActivityId id) {
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
    unset_speeds_.push_back(id);
}

void Sharing::end(ActivityId id) {
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

float Sharing::bound_of(ActivityId id) {
    const auto& state = states_[id];
    if (state.speed_beside_attend < 1)
        for (const auto& use : uses(id))
            if (resources_[use.resource].slowing_users > 0) return state.speed_beside_attend;
    return 1;
}

void Sharing::set_bound(ActivityId id, float bound) {
    auto& state = states_[id];
    if (state.priority == Priority::transfer)
        for (auto& use : uses(id)) {
            auto& resource = resources_[use.resource];
            resource.demand += whole(double(bound) * use.amount) - whole(double(state.bound) * use.amount);
            may_be_short_ |= resource.short_of_capacity();
        }
    state.bound = bound;
}

void Sharing::set_speed(ActivityId id, float speed) {
    auto& state = states_[id];
    if (speed == state.speed && !state.is_new) return;
    if (state.priority == Priority::transfer && speed != state.speed)
        for (auto& use : uses(id)) {
            auto& resource = resources_[use.resource];
            resource.used += whole(double(speed) * use.amount) - whole(double(state.speed) * use.amount);
            if (resource.users[static_cast<std::size_t>(Priority::compute)] != none) touch(use.resource);
        }
    state.speed = speed;
    state.is_new = false;
    changes_.push_back({id, speed});
}

std::span<const Sharing::SpeedChange> Sharing::solve() {
    changes_.clear();
    solve_transfers();
    solve_compute();
    for (const auto resource : dirty_) resources_[resource].dirty = resources_[resource].slowing_users_changed = false;
    dirty_.clear();
    unset_speeds_.clear();
    return changes_;
}

void Sharing::solve_transfers() {
    for (const auto id : unset_speeds_) set_bound(id, bound_of(id));
    // The list grows during this loop, because a changed bound makes more resources dirty.
    for (std::size_t i = 0; slowable_transfers_ > 0 && i < dirty_.size(); ++i) {
        const auto& resource = resources_[dirty_[i]];
        if (!resource.slowing_users_changed || resource.slowable_users == 0) continue;
        for (auto at = resource.users[static_cast<std::size_t>(Priority::transfer)]; at != none; at = use_of(at).next) {
            const auto id = activity_of(at);
            const auto bound = bound_of(id);
            if (bound == states_[id].bound) continue;
            set_bound(id, bound);
            unset_speeds_.push_back(id);
            for (const auto& use : uses(id)) touch(use.resource);
        }
    }
    const bool some_short = may_be_short_ || resources_over_capacity_ > 0;
    may_be_short_ = false;
    local_resources_.clear();
    for (std::size_t i = 0; some_short && i < dirty_.size(); ++i) {
        if (!limits(resources_[dirty_[i]])) continue;
        gather(dirty_[i], Priority::transfer) ? fill(Priority::transfer) : local_resources_.push_back(dirty_[i]);
    }
    if (!local_resources_.empty()) fill_local();
    for (const auto id : unset_speeds_) {
        auto& state = states_[id];
        if (state.priority != Priority::transfer) continue;
        const bool limited = resources_over_capacity_ > 0 && std::ranges::any_of(uses(id), [&](const Use& use) {
                                 return resources_[use.resource].over_capacity != 0;
                             });
        if (!limited) set_speed(id, state.bound);
    }
}

void Sharing::solve_compute() {
    for (std::size_t i = 0; i < dirty_.size(); ++i) {
        auto& resource = resources_[dirty_[i]];
        const auto user = resource.users[static_cast<std::size_t>(Priority::compute)];
        if (user == none || !resource.dirty) continue;
        if (is_alone(user)) {
            set_speed(activity_of(user), speed_alone(activity_of(user), Priority::compute));
            for (const auto& use : uses(activity_of(user))) resources_[use.resource].dirty = false;
            continue;
        }
        gather(dirty_[i], Priority::compute);
        fill(Priority::compute);
    }
}

/// For transfers: whether the resource limits any of them, or did when last solved.
bool Sharing::limits(const Resource& resource) { return resource.short_of_capacity() || resource.over_capacity; }

void Sharing::update_over_capacity(Resource& resource) {
    resources_over_capacity_ -= resource.over_capacity;
    resource.over_capacity = resource.short_of_capacity();
    resources_over_capacity_ += resource.over_capacity;
}

/// Adds the users of a resource, with the given priority, to the part.
void Sharing::take_users(ResourceId id, Priority priority) {
    for (auto at = resources_[id].users[static_cast<std::size_t>(priority)]; at != none; at = use_of(at).next) {
        auto& state = state_of(at);
        if (state.place != nowhere) continue;
        state.place = static_cast<std::uint32_t>(part_.size());
        part_.push_back(activity_of(at));
    }
}

void Sharing::take_resource(ResourceId id) {
    auto& resource = resources_[id];
    if (resource.marked) return;
    resource.marked = true;
    part_resources_.push_back(id);
}

/// Makes a part of everything that is connected with a resource. Returns false, without a part, if that would be large
/// among many transfers.
bool Sharing::gather(ResourceId start, Priority priority) {
    constexpr std::uint32_t many = 256;
    constexpr std::size_t much = 16;
    const bool is_bounded = priority == Priority::transfer && transfers_ > many;
    part_.clear();
    part_resources_.clear();
    take_resource(start);
    bool is_all = true;
    for (std::size_t i = 0, user = 0; i < part_resources_.size() && is_all; ++i) {
        take_users(part_resources_[i], priority);
        for (; user < part_.size(); ++user)
            for (const auto& use : uses(part_[user]))
                if (priority == Priority::compute || limits(resources_[use.resource])) take_resource(use.resource);
        is_all = !is_bounded || part_.size() <= much;
    }
    for (const auto id : part_resources_) {
        resources_[id].marked = false;
        if (priority == Priority::transfer && is_all) update_over_capacity(resources_[id]);
    }
    if (!is_all) clear_part_indices();
    return is_all;
}

void Sharing::clear_part_indices() {
    for (const auto id : part_) states_[id].place = nowhere;
}

bool Sharing::is_alone(Link link) {
    for (const auto& use : uses(activity_of(link)))
        if (use.next != none || use.previous != none) return false;
    return true;
}

float Sharing::speed_alone(ActivityId id, Priority priority) {
    float speed = states_[id].bound;
    for (const auto& use : uses(id)) {
        double amount = use.amount;
        if (priority == Priority::transfer)  // both ends of a folded message may be one rank
            for (const auto& other : uses(id))
                if (&other != &use && other.resource == use.resource) amount += other.amount;
        const auto available = static_cast<double>(left(resources_[use.resource], priority));
        if (double(speed) * amount > available) speed = static_cast<float>(available / amount);
    }
    return speed;
}

void Sharing::fill(Priority priority) {
    if (part_.size() == 1) {
        clear_part_indices();
        set_speed(part_.front(), speed_alone(part_.front(), priority));
        return;
    }
    fill_part(priority);
    keep_speeds();
}

// Among many connected transfers a change affects few. So only resources where something changed are solved first, with
// their users; other activities keep their speeds. The solution is complete unless another full resource now limits one
// of these users, or has users whose share changes. Then that resource is solved as well.
void Sharing::fill_local() {
    for (const auto id : local_resources_) update_over_capacity(resources_[id]);
    for (std::size_t before = 0; before != local_resources_.size();) {
        before = local_resources_.size();
        gather_local();
        fill_part(Priority::transfer);
        for (auto k = before; k < part_resources_.size(); ++k)
            if (affects_others(part_resources_[k])) local_resources_.push_back(part_resources_[k]);
        if (local_resources_.size() != before) clear_part_indices();
    }
    keep_speeds();
}

/// Makes a part of the users of the resources in `local_resources_`. Behind these resources it has all others that
/// limit the same users.
void Sharing::gather_local() {
    part_.clear();
    part_resources_.clear();
    for (const auto id : local_resources_) take_resource(id);
    for (const auto id : local_resources_) take_users(id, Priority::transfer);
    for (const auto id : part_)
        for (const auto& use : uses(id))
            if (resources_[use.resource].over_capacity) take_resource(use.resource);
    for (const auto id : part_resources_) resources_[id].marked = false;
}

/// Whether a resource has users outside the part whose speeds would change with those of its users in it.
bool Sharing::affects_others(ResourceId id) {
    bool limits_some = false, has_others = false, limited_others = false, moves = false;
    for (auto at = resources_[id].users[static_cast<std::size_t>(Priority::transfer)]; at != none;
         at = use_of(at).next) {
        const auto& state = state_of(at);
        if (state.place == nowhere) {
            has_others = true;
            limited_others |= state.limit == id;
        } else {
            limits_some |= part_limits_[state.place] == id;
            moves |= part_speeds_[state.place] != state.speed;
        }
    }
    return (limits_some && has_others) || (moves && limited_others);
}

void Sharing::keep_speeds() {
    for (std::size_t i = 0; i < part_.size(); ++i) {
        auto& state = states_[part_[i]];
        state.place = nowhere;
        state.limit = part_limits_[i];
        set_speed(part_[i], part_speeds_[i]);
    }
}

// Progressive filling. All speeds grow as level * weight. An activity that reaches its bound, or uses the resource that
// fills up first, keeps its speed; the others grow on. A resource is evaluated again only when one of its users was
// settled. All that fills up at the same level is settled in one round, so P network ports of equal load take one round
// and not P.
void Sharing::fill_part(Priority priority) {
    begin_filling(priority);
    while (!part_open_.empty()) {
        double level = std::numeric_limits<double>::infinity();
        for (const auto reached : part_reached_) level = std::min(level, reached);
        if (!settle_bounded(level)) settle_full(level, priority);
        std::erase_if(part_open_, [&](std::uint32_t i) { return part_speeds_[i] != open; });
    }
}

void Sharing::begin_filling(Priority priority) {
    part_speeds_.assign(part_.size(), open);
    part_limits_.assign(part_.size(), none);
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

/// Settles the activities with the lowest bound if that is at most `level`. Returns whether it was.
bool Sharing::settle_bounded(double level) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto i : part_open_) lowest = std::min(lowest, part_bounds_[i]);
    part_stale_.clear();
    if (lowest > level) return false;
    for (const auto i : part_open_)
        if (part_bounds_[i] <= lowest) settle(i, states_[part_[i]].bound, none);
    refresh_stale();
    return true;
}

/// Settles the users of all resources that are full at `level`, in order, until this makes another resource full at
/// that level.
void Sharing::settle_full(double level, Priority priority) {
    for (std::size_t k = 0; k < part_resources_.size(); ++k) {
        if (part_reached_[k] != level) continue;
        part_stale_.clear();
        for (auto at = resources_[part_resources_[k]].users[static_cast<std::size_t>(priority)]; at != none;
             at = use_of(at).next) {
            const auto& state = state_of(at);
            if (state.place != nowhere && part_speeds_[state.place] == open)
                settle(state.place, static_cast<float>(level * double(state.weight)), part_resources_[k]);
        }
        if (refresh_stale() <= level) return;
    }
}

void Sharing::settle(std::uint32_t place, float speed, ResourceId limit) {
    part_speeds_[place] = speed;
    part_limits_[place] = limit;
    part_stale_.push_back(place);
}

/// Evaluates the resources of the activities that were settled last again. Returns the lowest level at which one of
/// them is full.
double Sharing::refresh_stale() {
    double least = std::numeric_limits<double>::infinity();
    part_refreshed_.clear();
    for (const auto place : part_stale_)
        for (const auto& use : uses(part_[place])) {
            const auto at = part_place_[use.resource];
            auto& resource = resources_[use.resource];
            if (at >= part_resources_.size() || part_resources_[at] != use.resource || resource.marked) continue;
            resource.marked = true;
            part_refreshed_.push_back(at);
        }
    for (const auto at : part_refreshed_) {
        const auto id = part_resources_[at];
        resources_[id].marked = false;
        part_reached_[at] = reached_level(id, states_[part_[part_stale_.front()]].priority);
        least = std::min(least, part_reached_[at]);
    }
    return least;
}

/// Level at which the resource is full while its unsettled users grow. Users outside the part keep their speeds.
double Sharing::reached_level(ResourceId id, Priority priority) {
    const auto& resource = resources_[id];
    double available = static_cast<double>(left(resource, priority)), growth = 0;
    for (auto at = resource.users[static_cast<std::size_t>(priority)]; at != none; at = use_of(at).next) {
        const auto& state = state_of(at);
        const auto speed = state.place == nowhere ? state.speed : part_speeds_[state.place];
        if (speed == open)
            growth += double(state.weight) * use_of(at).amount;
        else
            available -= double(speed) * use_of(at).amount;
    }
    return growth == 0 ? std::numeric_limits<double>::infinity() : std::max(0.0, available) / growth;
}

}  // namespace ringlab::sim
