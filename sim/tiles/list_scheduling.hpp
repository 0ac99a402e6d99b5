#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::sim {

/// `count` work tiles of the same duration.
struct WorkTileGroup {
    double seconds = 0;
    std::int64_t count = 0;
};

/// List scheduling: processors (SMs, or groups of SMs) take work tiles in the given order, each as soon as it is free.
class ListScheduler {
public:
    explicit ListScheduler(std::int64_t count, double free_from = 0)
        : count_(count), free_{{free_from, static_cast<double>(count)}} {}

    /// Assigns the work tiles and returns when the last of them ends. A processor waits in place: no work tile starts
    /// before `begin`, and none ends before `end`.
    double give(const WorkTileGroup& items, double begin = 0, double end = 0);

    /// Every processor becomes free `seconds` later.
    void delay(double seconds);

private:
    /// `count` processors that are free from `time` on.
    struct Free {
        double time = 0;
        double count = 0;
        bool operator<(const Free& other) const {
            return time > other.time;
        }  // so that the first to be free is on top
           // of a heap
    };
    std::int64_t assign_large_group(const WorkTileGroup& items);

    std::int64_t count_;
    std::vector<Free> free_;  // a heap
};

/// Makespan, in seconds, of list scheduling on `sms` with the longest work tiles first.
double makespan(std::vector<WorkTileGroup> items, std::int64_t sms);

/// The same in the given order.
double list_schedule(std::span<const WorkTileGroup> items, std::int64_t sms);

/// From `from` seconds on there are `count` processors, at least one.
struct ProcessorsFrom {
    double from = 0;
    std::int64_t count = 1;
};

/// The same while processors come and go. `counts` is sorted by time and begins at 0. A processor leaves when it has
/// finished its work tile; those that are free first leave first.
double list_schedule(std::span<const WorkTileGroup> items, std::span<const ProcessorsFrom> counts);

}  // namespace ringlab::sim
