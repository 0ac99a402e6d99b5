#pragma once

#include "sim/engine/huge_pages.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::sim {

using ResourceId = std::uint32_t;
using ActivityId = std::uint32_t;

/// Who is served first when a resource is too small: transfers take what they need, compute runs on what they leave. (A
/// copy engine keeps its speed beside a kernel and slows the kernel down, not the other way round.)
enum class Priority : std::uint8_t { transfer, compute };

/// What an activity takes of a resource while it runs at full speed, in the resource's unit.
struct Demand {
    ResourceId resource = 0;
    double amount = 0;
};

/// What an activity demands while it runs.
struct Claim {
    std::span<const Demand> demands{};  ///< at most Sharing::most_demands; those of one resource add up
    Priority priority = Priority::transfer;
    double weight = 1;               ///< where a resource is too small, speeds are proportional to the weights
    double speed_beside_attend = 1;  ///< at most, while an activity with `slows_transfers` uses one of its resources
    bool slows_transfers = false;
};

/// Speeds of activities that share resources. A function of demands and capacities, which knows no time.
///
/// Every activity has a speed x in [0, 1]. For every resource r, sum over its users of x * amount <= capacity(r).
/// Speeds are weighted max-min fair: no activity can be faster without slowing one that is not better off (bottleneck
/// fairness, found by progressive filling). Transfers are solved first, then compute with what they leave. Only what a
/// change can reach is solved again: a resource that can serve all its transfers at full speed passes no change on.
class Sharing {
public:
    static constexpr int most_demands = 6;
    static constexpr std::uint32_t most_activities = 1u << 29;

    explicit Sharing(std::uint32_t activities) : states_(activities), uses_(activities * uses_per_activity_) {}

    /// Capacity and demands are in a unit that the caller chooses.
    ResourceId add_resource(double capacity);
    void set_capacity(ResourceId resource, double capacity);

    void reserve_resources(std::size_t resources) { resources_.reserve(resources); }

    /// What an activity will demand from begin() to end(). Ids are small whole numbers that the caller chooses.
    void describe(ActivityId id, const Claim& claim);
    bool demands_something(ActivityId id) const { return states_[id].uses > 0; }
    void begin(ActivityId id);
    void end(ActivityId id);

    bool is_solved() const { return unset_speeds_.empty() && dirty_.empty(); }

    /// Solves the speeds. Returns those that have changed, in order; an activity may be in it twice, and the last speed
    /// counts. Valid until the next call.
    struct SpeedChange {
        ActivityId id;
        float speed;
    };
    std::span<const SpeedChange> solve();

private:
    static constexpr std::uint32_t none = ~0u;

    // An entry of a resource's list of users: activity << link_bits | index of the demand.
    using Link = std::uint32_t;
    static constexpr int link_bits = 3;
    static_assert(most_demands <= 1 << link_bits);
    static_assert(most_activities - 1 <= none >> link_bits);

    struct Use {
        float amount;
        ResourceId resource;
        Link next, previous;
    };

    static constexpr std::uint32_t nowhere = ~0u;

    struct State {
        float speed;
        float bound;  // the largest speed, limited by crowding alone
        float weight;
        float speed_beside_attend;
        std::uint32_t place;  // index in the part being solved; `nowhere` outside it
        ResourceId limit;     // the full resource that limits a transfer; none: its bound limits it
        std::uint8_t uses = 0;
        Priority priority;
        bool slows_transfers;
        bool is_new;  // it has begun, and its speed was never solved
    };
    static_assert(sizeof(State) == 28);

    static std::int64_t whole(double amount) { return static_cast<std::int64_t>(amount + 0.5); }

    // Sums over transfers are whole numbers, so removing a term restores the sum exactly. The struct is small because
    // each event touches several of them all over memory.
    struct Resource {
        std::int64_t demand = 0;                // of all transfers at their bounds
        std::int64_t used = 0;                  // by all transfers at their speeds
        std::array<Link, 2> users{none, none};  // heads of the lists of users, by priority
        float capacity = 0;
        std::uint32_t slowing_users : 12 = 0;   // number of users with `slows_transfers`
        std::uint32_t slowable_users : 16 = 0;  // number of transfers with a speed_beside_attend below 1
        std::uint32_t dirty : 1 = 0;
        std::uint32_t slowing_users_changed : 1 = 0;
        std::uint32_t over_capacity : 1 = 0;  // demand exceeded capacity when last solved
        std::uint32_t marked : 1 = 0;

        bool short_of_capacity() const { return demand > whole(capacity); }
    };
    static_assert(sizeof(Resource) == 32);

    static ActivityId activity_of(Link link) { return link >> link_bits; }
    State& state_of(Link link) { return states_[activity_of(link)]; }
    Use& use_of(Link link) {
        return uses_[std::size_t{activity_of(link)} * uses_per_activity_ + (link & ((1u << link_bits) - 1))];
    }
    std::span<Use> uses(ActivityId id) { return {&uses_[std::size_t{id} * uses_per_activity_], states_[id].uses}; }
    void widen_uses(std::size_t demands);
    void touch(ResourceId resource);
    float bound_of(ActivityId id);
    void set_bound(ActivityId id, float bound);
    void set_speed(ActivityId id, float speed);
    void solve_transfers();
    void solve_compute();
    static bool limits(const Resource& resource);
    void update_over_capacity(Resource& resource);
    void take_users(ResourceId id, Priority priority);
    void take_resource(ResourceId id);
    bool gather(ResourceId start, Priority priority);
    void clear_part_indices();
    void fill(Priority priority);
    void fill_local();
    void gather_local();
    bool affects_others(ResourceId id);
    void keep_speeds();
    void fill_part(Priority priority);
    void begin_filling(Priority priority);
    bool settle_bounded(double level);
    void settle_full(double level, Priority priority);
    void settle(std::uint32_t place, float speed, ResourceId limit);
    double refresh_stale();
    double reached_level(ResourceId id, Priority priority);
    /// is_alone(): no other activity of the same priority uses any resource of this one. speed_alone(): its speed then.
    bool is_alone(Link link);
    float speed_alone(ActivityId id, Priority priority);
    std::int64_t left(const Resource& resource, Priority priority) const {
        const auto all = whole(resource.capacity);
        return priority == Priority::transfer ? all : std::max<std::int64_t>(0, all - resource.used);
    }

    HugeVector<State> states_;
    std::size_t uses_per_activity_ = 2;  // the most demands that any activity has had; two on most machines
    HugeVector<Use> uses_;               // `uses_per_activity_` entries for each activity
    HugeVector<Resource> resources_;
    std::vector<SpeedChange> changes_;

    std::uint32_t transfers_ = 0;                // number of transfers that have begun
    std::uint32_t slowable_transfers_ = 0;       // number of activities with a speed_beside_attend below 1
    std::uint32_t resources_over_capacity_ = 0;  // number of resources that are `over_capacity`
    bool may_be_short_ = false;                  // a resource may have become too small since the last solution

    std::vector<ActivityId> unset_speeds_;     // activities whose speed must be set: new, or with another bound
    std::vector<ResourceId> dirty_;            // resources on which something changed since the last solution
    std::vector<ResourceId> local_resources_;  // resources to solve in fill_local()
    // Scratch memory of the solver: the part that is being solved, that is some activities and resources.
    std::vector<ActivityId> part_;
    std::vector<ResourceId> part_resources_;
    static constexpr float open = -1;
    std::vector<float> part_speeds_;             // `open` until the speed is settled
    std::vector<ResourceId> part_limits_;        // by activity: the resource that limits it
    std::vector<double> part_bounds_;            // by activity: the level at which it reaches its bound
    std::vector<double> part_reached_;           // by resource: the level at which it is full
    std::vector<std::uint32_t> part_place_;      // by resource of the engine: its index in the part, if it is in it
    std::vector<std::uint32_t> part_open_;       // activities that are not settled yet
    std::vector<std::uint32_t> part_stale_;      // activities that were settled last
    std::vector<std::uint32_t> part_refreshed_;  // resources that these use
};

}  // namespace ringlab::sim
