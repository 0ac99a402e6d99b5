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

/// List scheduling of work tiles: each SM, or group of SMs, takes the next work tile of a list as soon as it is free.
/// In this file a "processor" is an SM or such a group.
class ListScheduler {
public:
    explicit ListScheduler(std::int64_t count, double free_from = 0)
        : count_(count), free_{{free_from, static_cast<double>(count)}} {}

    /// Assigns the work tiles and returns when the last of them ends. No work tile starts before `begin` and none ends
    /// before `end`; a processor that must wait for these times stays occupied.
    double give(const WorkTileGroup& work_tiles, double begin = 0, double end = 0);

    /// Every processor becomes free `seconds` later.
    void delay(double seconds);

private:
    /// `count` processors that are free from `time` on.
    struct Free {
        double time = 0;
        double count = 0;
        /// So that the first to be free is on top of a heap.
        bool operator<(const Free& other) const { return time > other.time; }
    };
    std::int64_t assign_large_group(const WorkTileGroup& work_tiles);

    std::int64_t count_;
    std::vector<Free> free_;  // a heap
};

/// Makespan, in seconds, of list scheduling on `sms` SMs in the given order.
double list_schedule(std::span<const WorkTileGroup> work_tiles, std::int64_t sms);

/// From `from` seconds on there are `count` processors, at least one.
struct SmsFrom {
    double from = 0;
    std::int64_t count = 1;
};

/// The same with a number of processors that changes. `counts` is sorted by time and begins at time 0. A processor that
/// has to leave first finishes its work tile. If several could leave, those that are free first do.
double list_schedule(std::span<const WorkTileGroup> work_tiles, std::span<const SmsFrom> counts);

}  // namespace ringlab::sim
