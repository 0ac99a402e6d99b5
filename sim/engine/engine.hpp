#pragma once

#include "layouts/basics/checked_arithmetic.hpp"
#include "sim/engine/event_queue.hpp"
#include "sim/engine/sharing.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace ringlab::sim {

/// Something that takes time and may need resources.
struct Activity {
    Picoseconds duration = 0;           ///< if it runs at full speed throughout
    Picoseconds delay = 0;              ///< before the duration begins; takes nothing of any resource
    std::span<const Demand> demands{};  ///< these and the next four: see Claim
    Priority priority = Priority::transfer;
    double weight = 1;
    double speed_beside_attend = 1;
    bool slows_transfers = false;
    std::uint32_t tag = 0;      ///< returned by Engine::next() when it ends
    std::uint32_t place = ~0u;  ///< wanted index in memory, see Engine::Engine()
};

/// Activities in simulated time. Their speeds, which Sharing solves, change when something starts or ends: before time
/// moves on. An activity whose speed stays 1 ends exactly `duration` after its start.
class Engine {
public:
    /// Tags below `timers` belong to timers, one each. Activities may ask for one of `places` indices, so that those
    /// that are used together lie together in memory.
    explicit Engine(std::uint32_t timers = 0, std::uint32_t places = 0)
        : timers_(timers), places_(places), states_(places), sharing_(places) {}

    ResourceId add_resource(double capacity) { return sharing_.add_resource(capacity); }
    void set_capacity(ResourceId resource, double capacity) { sharing_.set_capacity(resource, capacity); }

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

private:
    friend struct SpeedProbe;  // of the tests, which look at speeds during a run

    static constexpr Picoseconds never = std::numeric_limits<Picoseconds>::max();
    static_assert(EventQueue::most_ids <= Sharing::most_activities);

    struct State {
        double remaining;      // of the duration, at time `updated`
        Picoseconds updated;   // time of the last change of speed
        std::uint64_t number;  // for the queue, if `ends_later`
        float speed;
        std::uint32_t tag;
        bool runs = false;
        bool ends_later;  // it ends later than its queue entry says; the entry moves when it comes up
    };

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

    ActivityId take_place(ActivityId wanted);
    void wait(ActivityId id, Picoseconds delay);
    void begin(ActivityId id);
    Line* first_line();
    static Picoseconds end_of(const State& state);
    EventQueue::EventOrder first_valid_end();
    void solve();
    void set_speed(ActivityId id, float speed);

    std::uint32_t timers_, places_;
    EventQueue queue_;         // ids are tags of timers, then `timers_` + activity
    std::vector<Line> lines_;  // by delay; machines have few different latencies
    HugeVector<State> states_;
    Sharing sharing_;
    std::vector<ActivityId> free_;
    Picoseconds now_ = 0;
    std::uint64_t events_ = 0;
};

}  // namespace ringlab::sim
