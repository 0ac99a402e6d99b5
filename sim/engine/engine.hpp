#pragma once

#include "layouts/basics/checked_arithmetic.hpp"
#include "sim/speed/event_queue.hpp"
#include "sim/speed/huge_pages.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
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

/// Something that takes time and may need resources.
struct Activity {
    Picoseconds duration = 0;           ///< if it runs at full speed throughout
    Picoseconds delay = 0;              ///< before the duration begins; takes nothing of any resource
    std::span<const Demand> demands{};  ///< at most Engine::most_demands
    Priority priority = Priority::transfer;
    double weight = 1;               ///< where a resource is too small, speeds are proportional to the weights
    double speed_beside_attend = 1;  ///< at most, while an activity with `slows_transfers` uses one of its resources
    bool slows_transfers = false;
    std::uint32_t tag = 0;      ///< returned by Engine::next() when it ends
    std::uint32_t place = ~0u;  ///< wanted index in memory, see Engine::Engine()
};

/// Activities that share resources, in simulated time.
///
/// Every activity has a speed in [0, 1]. Speeds are weighted max-min fair. For every resource the sum of speed * amount
/// is at most its capacity, and no activity can be faster without slowing one that is not better off (bottleneck
/// fairness, found by progressive filling). Transfers are solved first, then compute with what they leave. Speeds are
/// solved again whenever something starts or ends, before time moves on, and only where it can matter: a resource that
/// can serve all its transfers at full speed passes no change on.
///
/// An activity whose speed stays 1 ends exactly `duration` after its start.
class Engine {
public:
    static constexpr int most_demands = 6;

    /// Tags below `timers` belong to timers, one each. Activities may ask for one of `places` indices, so that those
    /// that are used together lie together in memory.
    explicit Engine(std::uint32_t timers = 0, std::uint32_t places = 0)
        : timers_(timers), places_(places), states_(places), uses_(places * uses_per_activity_) {}

    /// `capacity` is per unit of time, in a unit that the caller chooses; demands are in the same unit.
    ResourceId add_resource(double capacity);
    void set_capacity(ResourceId resource, double capacity);

    /// Starts an activity at now().
    ActivityId start(const Activity& activity);

    /// Starts an activity that shares nothing: next() returns `tag` after `duration`. `tag` must be below `timers` and
    /// not in use. Costs no more than an entry of the queue.
    void start_timer(std::uint32_t tag, Picoseconds duration) { queue_.set(tag, layouts::checked_sum(now_, duration)); }

    /// Advances time to the next end of an activity and returns its tag; false if nothing is running. Throws Error if
    /// everything that is left stands still because resources are exhausted.
    bool next(std::uint32_t& tag);

    /// Reserves memory for as many simultaneous activities and resources.
    void reserve(std::size_t activities, std::size_t resources);

    Picoseconds now() const { return now_; }
    std::uint64_t events() const { return events_; }

    /// Whether activities of one priority have ever had to share a resource that was too small. Only then do the last
    /// bits of speeds depend on who began first. Demands of one activity for the same resource add up until then.
    bool has_shared_out() const { return shared_out_; }

private:
    friend struct SpeedProbe;  // of the tests, which look at speeds during a run

    static constexpr std::uint32_t none = ~0u;
    static constexpr Picoseconds never = std::numeric_limits<Picoseconds>::max();

    // An entry of a resource's list of users: activity << link_bits | index of the demand.
    using Link = std::uint32_t;
    static constexpr int link_bits = 3;
    static_assert(most_demands <= 1 << link_bits);
    static_assert(EventQueue::most_ids <= none >> link_bits);

    struct Use {
        float amount;
        ResourceId resource;
        Link next, previous;
    };

    static constexpr std::uint32_t nowhere = (1u << 31) - 1;

    struct State {
        double remaining;     // of the duration, at time `updated`
        Picoseconds updated;  // time of the last change of speed
        float speed;
        float bound;  // the largest speed, limited by crowding alone
        float weight;
        float speed_beside_attend;
        std::uint32_t tag;
        std::uint8_t uses;
        Priority priority;
        bool slows_transfers;
        bool runs = false;
        std::uint32_t place : 31;      // index in the part being solved; `nowhere` outside it
        std::uint32_t ends_later : 1;  // it ends later than its queue entry says; the entry moves, with `number`, when
                                       // it comes up
        ResourceId limit;  // the full resource that limits a transfer; none: its bound limits it
        std::uint64_t number;
    };
    static_assert(sizeof(State) == 56);

    /// Activities whose delay has not ended yet, in order of time. All of a line have the same delay.
    struct Line {
        struct Entry {
            EventQueue::EventOrder begin;
            ActivityId id;
        };
        Picoseconds delay;
        std::vector<Entry> ring{};  // a ring buffer; its size is a power of two
        std::uint32_t first = 0, end = 0;

        bool empty() const { return first == end; }
        Entry& at(std::uint32_t i) { return ring[i & (static_cast<std::uint32_t>(ring.size()) - 1)]; }
        void push(const Entry& entry);
    };

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

    ActivityId take_place(ActivityId wanted);
    void wait(ActivityId id, Picoseconds delay);
    void begin(ActivityId id);
    Line* first_line();
    static Picoseconds end_of(const State& state);
    EventQueue::EventOrder first_valid_end();
    bool solved() const { return unset_speeds_.empty() && dirty_.empty(); }
    void touch(ResourceId resource);
    void link(ActivityId id);
    void unlink(ActivityId id);
    float bound_of(ActivityId id);
    void set_bound(ActivityId id, float bound);
    void set_speed(ActivityId id, float speed);
    void solve();
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

    std::uint32_t timers_, places_;
    EventQueue queue_;         // ids are tags of timers, then `timers_` + activity
    std::vector<Line> lines_;  // by delay; machines have few different latencies
    HugeVector<State> states_;
    std::size_t uses_per_activity_ = 2;  // the most demands that any activity has had; two on most machines
    HugeVector<Use> uses_;               // `uses_per_activity_` entries for each activity
    std::vector<ActivityId> free_;
    HugeVector<Resource> resources_;
    Picoseconds now_ = 0;
    std::uint64_t events_ = 0;

    std::uint32_t transfers_ = 0;                // number of transfers that have begun
    std::uint32_t slowable_transfers_ = 0;       // number of activities with a speed_beside_attend below 1
    std::uint32_t resources_over_capacity_ = 0;  // number of resources that are `over_capacity`
    bool may_be_short_ = false;                  // a resource may have become too small since the last solution
    bool shared_out_ = false;

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
