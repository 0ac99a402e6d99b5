#pragma once

#include "layouts/checked.hpp"
#include "sim/event_queue.hpp"
#include "sim/huge_pages.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ringlab::sim {

using ResourceId = std::uint32_t;
using ActivityId = std::uint32_t;

/// Who is served first where a resource does not suffice: transfers take what they need, compute runs on what is left.
/// (A copy engine keeps its speed beside a kernel and slows the kernel down, not the other way round.)
enum class Priority : std::uint8_t { transfer, compute };

/// What an activity takes of a resource, in the resource's unit, while it runs at full speed.
struct Demand {
    ResourceId resource = 0;
    double amount = 0;
};

/// Something that takes time.
struct Activity {
    Picoseconds duration = 0;           ///< when it runs at full speed throughout
    Picoseconds delay = 0;              ///< before that, in which it takes nothing of any resource
    std::span<const Demand> demands{};  ///< at most Engine::most_demands
    Priority priority = Priority::transfer;
    double weight = 1;         ///< where a resource is short, speeds go as the weights
    double crowded_speed = 1;  ///< at most this speed while a crowding activity is on one of its resources
    bool crowds = false;
    std::uint32_t tag = 0;      ///< handed back when it ends
    std::uint32_t place = ~0u;  ///< where it would like to lie
};

/// Activities that share resources, in simulated time.
///
/// Every activity has a speed in [0, 1]. Speeds are weighted max-min fair: for every resource, the sum of speed *
/// amount is at most its capacity, and no activity could be faster without slowing one that is no better off
/// (bottleneck fairness, found by progressive filling), first among transfers, then among compute with what they leave.
/// Speeds are solved again whenever something starts or ends, before time moves on, and only where it can matter: a
/// resource that could serve all its transfers at full speed passes no change on.
///
/// An activity whose speed stays 1 ends exactly `duration` after its start.
class Engine {
public:
    static constexpr int most_demands = 6;

    /// Tags below `timers` are also those of timers, one each.
    /// Activities may have `places` to choose from, by which they lie together in memory.
    explicit Engine(std::uint32_t timers = 0, std::uint32_t places = 0)
        : timers_(timers), places_(places), states_(places), uses_(places * room_) {}

    /// `capacity` per unit of time of the caller's choice; demands are in the same unit.
    ResourceId add_resource(double capacity);
    void set_capacity(ResourceId resource, double capacity);

    /// Starts at now().
    ActivityId start(const Activity& activity);

    /// An activity that shares nothing: next() gives `tag`, below `timers` and of no other one that runs, after
    /// `duration`. It takes up no more than its place in the queue.
    void start_timer(std::uint32_t tag, Picoseconds duration) { queue_.set(tag, layouts::later(now_, duration)); }

    /// Moves time to the next end of an activity and gives its tag; false if nothing is going on. Throws Error if all
    /// that is left stands still for want of a resource.
    bool next(std::uint32_t& tag);

    /// Memory for this many activities at a time and resources, so that none is wasted on growing.
    void reserve(std::size_t activities, std::size_t resources);

    Picoseconds now() const { return now_; }
    std::uint64_t events() const { return events_; }

    /// Whether activities of one priority had to share out what did not suffice for them: then, and only then, speeds
    /// depend in their last bits on who began first. Demands of one activity for the same resource add up until then.
    bool has_shared_out() const { return shared_out_; }

private:
    friend struct SpeedProbe;  // of the tests, which look at speeds under way

    static constexpr std::uint32_t none = ~0u;
    static constexpr Picoseconds never = std::numeric_limits<Picoseconds>::max();

    // A place in a resource's list: activity << link_bits | index of the demand.
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
        double remaining;     // of the duration, at `updated`
        Picoseconds updated;  // when the speed was last changed
        float speed;
        float bound;  // the speed that nothing but crowding limits
        float weight;
        float crowded_speed;
        std::uint32_t tag;
        std::uint8_t uses;
        Priority priority;
        bool crowds;
        bool runs = false;
        std::uint32_t place : 31;  // in the part being solved, nowhere outside it
        std::uint32_t late : 1;    // ends after it is to leave the queue, with `number`
        ResourceId limit;          // of a transfer whose speed was shared out: what it filled up; none: its bound
        std::uint64_t number;
    };
    static_assert(sizeof(State) == 56);

    /// Activities whose delay has not ended yet, in order: all of a line have the same delay.
    struct Line {
        struct Entry {
            EventQueue::Turn begin;
            ActivityId id;
        };
        Picoseconds delay;
        std::vector<Entry> ring{};  // a power of two
        std::uint32_t first = 0, end = 0;

        bool empty() const { return first == end; }
        Entry& at(std::uint32_t i) { return ring[i & (static_cast<std::uint32_t>(ring.size()) - 1)]; }
        void push(const Entry& entry);
    };

    static std::int64_t whole(double amount) { return static_cast<std::int64_t>(amount + 0.5); }

    // Sums over transfers are kept as whole numbers: nothing is left behind when a term is taken out again. Small, as
    // an event touches several, all over memory.
    struct Resource {
        std::int64_t demand = 0;                // of all transfers at the speed of their bounds
        std::int64_t used = 0;                  // by all transfers
        std::array<Link, 2> users{none, none};  // by priority
        float capacity = 0;
        std::uint32_t crowding : 12 = 0;   // activities that crowd
        std::uint32_t sensitive : 16 = 0;  // transfers that mind
        std::uint32_t dirty : 1 = 0;
        std::uint32_t crowd_changed : 1 = 0;
        std::uint32_t tight : 1 = 0;  // demand exceeded capacity when last solved
        std::uint32_t marked : 1 = 0;

        bool short_of_capacity() const { return demand > whole(capacity); }
    };
    static_assert(sizeof(Resource) == 32);

    static ActivityId activity_of(Link link) { return link >> link_bits; }
    State& state_of(Link link) { return states_[activity_of(link)]; }
    Use& use_of(Link link) { return uses_[std::size_t{activity_of(link)} * room_ + (link & ((1u << link_bits) - 1))]; }
    std::span<Use> uses(ActivityId id) { return {&uses_[std::size_t{id} * room_], states_[id].uses}; }
    void make_room(std::size_t demands);

    ActivityId take_place(ActivityId wanted);
    void wait(ActivityId id, Picoseconds delay);
    void begin(ActivityId id);
    Line* first_line();
    static Picoseconds end_of(const State& state);
    EventQueue::Turn settled_first();
    bool solved() const { return fresh_.empty() && dirty_.empty(); }
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
    void note_tightness(Resource& resource);
    void take_users(ResourceId id, Priority priority);
    void take_resource(ResourceId id);
    bool gather(ResourceId start, Priority priority);
    void leave_part();
    void fill(Priority priority);
    void fill_near();
    void gather_near();
    bool is_felt(ResourceId id);
    void keep_speeds();
    void fill_part(Priority priority);
    void begin_filling(Priority priority);
    bool settle_bounded(double level);
    void settle_full(double level, Priority priority);
    void settle(std::uint32_t place, float speed, ResourceId limit);
    double refresh_stale();
    double reached_level(ResourceId id, Priority priority);
    /// Whether nobody of its priority shares any of the activity's resources, and its speed then.
    bool is_alone(Link link);
    float speed_alone(ActivityId id, Priority priority);
    std::int64_t left(const Resource& resource, Priority priority) const {
        const auto all = whole(resource.capacity);
        return priority == Priority::transfer ? all : std::max<std::int64_t>(0, all - resource.used);
    }

    std::uint32_t timers_, places_;
    EventQueue queue_;         // of timers and, behind their tags, activities
    std::vector<Line> lines_;  // few: machines have few latencies
    HugeVector<State> states_;
    std::size_t room_ = 2;  // for uses of each activity: as many as any has had so far, on most machines two
    HugeVector<Use> uses_;  // by activity
    std::vector<ActivityId> free_;
    HugeVector<Resource> resources_;
    Picoseconds now_ = 0;
    std::uint64_t events_ = 0;

    std::uint32_t transfers_ = 0;  // that have begun
    std::uint32_t sensitive_ = 0;  // activities that mind a crowd
    std::uint32_t tight_ = 0;      // resources that are
    bool may_be_short_ = false;    // some resource, more than when last solved
    bool shared_out_ = false;

    std::vector<ActivityId> fresh_;  // whose speed is to be set: new, or with another bound
    std::vector<ResourceId> dirty_;  // on which something changed since the last solution
    std::vector<ResourceId> near_;   // to be solved, of what is connected with more
    // Scratch of the solver: the part being solved.
    std::vector<ActivityId> part_;
    std::vector<ResourceId> part_resources_;
    static constexpr float open = -1;
    std::vector<float> part_speeds_;             // `open` until settled
    std::vector<ResourceId> part_limits_;        // what each filled up
    std::vector<double> part_bounds_;            // the level at which each reaches its bound
    std::vector<double> part_reached_;           // the level at which each resource is full
    std::vector<std::uint32_t> part_place_;      // of a resource in the part, if it is in it
    std::vector<std::uint32_t> part_open_;       // who still grows
    std::vector<std::uint32_t> part_stale_;      // who was settled last
    std::vector<std::uint32_t> part_refreshed_;  // resources of those
};

}  // namespace ringlab::sim
