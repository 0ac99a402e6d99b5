#pragma once

#include "layouts/basics/checked_arithmetic.hpp"
#include "sim/engine/event_queue.hpp"
#include "sim/engine/sharing.hpp"

#include <cstdint>
#include <deque>
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
};

/// Activities in simulated time. Their speeds, which Sharing solves, change when something starts or ends: before time
/// moves on. An activity whose speed stays 1 ends exactly `duration` after its start.
class Engine {
public:
    /// Reserves memory for activities with tags below `tags`.
    explicit Engine(std::uint32_t tags = 0) : states_(tags), sharing_(tags) { queue_.reserve(tags); }

    ResourceId add_resource(double capacity) { return sharing_.add_resource(capacity); }
    void set_capacity(ResourceId resource, double capacity) { sharing_.set_capacity(resource, capacity); }
    void reserve_resources(std::size_t resources) { sharing_.reserve_resources(resources); }

    /// Starts an activity at now(). `tag` is a small whole number that the caller chooses and that nothing else has
    /// which runs now.
    void start(std::uint32_t tag, const Activity& activity);

    /// Starts an activity that shares nothing: next() returns `tag` after `duration`. Costs no more than an entry of
    /// the queue.
    void start_timer(std::uint32_t tag, Picoseconds duration) { queue_.set(tag, layouts::checked_sum(now_, duration)); }

    /// Advances time to the next end of an activity and returns its tag; false if nothing is running. Throws Error if
    /// everything that is left stands still because resources are exhausted.
    bool next(std::uint32_t& tag);

    Picoseconds now() const { return now_; }
    std::uint64_t events() const { return events_; }

private:
    friend struct SpeedProbe;  // of the tests, which look at speeds during a run

    static constexpr Picoseconds never = std::numeric_limits<Picoseconds>::max();
    static_assert(EventQueue::most_ids <= Sharing::most_activities);

    struct State {
        double remaining;      // of the duration, at time `updated`
        Picoseconds updated;   // time of the last change of speed; of what waits, the duration
        std::uint64_t number;  // for the queue, if `ends_later`
        float speed;
        bool runs = false;
        bool ends_later;  // it ends later than its queue entry says; the entry moves when it comes up
    };

    /// Activities that wait for one delay, in order of time. There are few different delays, and time only grows, so
    /// these lines are sorted without any work.
    struct Line {
        struct Waiting {
            EventQueue::EventOrder begin;
            std::uint32_t tag;
        };
        Picoseconds delay;
        std::deque<Waiting> waiting{};
    };

    void begin(std::uint32_t tag);
    static Picoseconds end_of(const State& state);
    EventQueue::EventOrder first_valid_end();
    Line* first_line();
    void solve();
    void set_speed(std::uint32_t tag, float speed);
    /// Of an activity; null for a timer.
    State* state_of(std::uint32_t tag) { return tag < states_.size() && states_[tag].runs ? &states_[tag] : nullptr; }

    std::vector<Line> lines_;
    EventQueue queue_;          // by tag
    HugeVector<State> states_;  // by tag
    Sharing sharing_;
    Picoseconds now_ = 0;
    std::uint64_t events_ = 0;
};

}  // namespace ringlab::sim
