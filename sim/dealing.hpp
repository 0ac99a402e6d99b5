#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::sim {

/// So many items that take as long each.
struct ItemGroup {
    double seconds = 0;
    std::int64_t count = 0;
};

/// Processors that take items in the order in which they are given, each as soon as it is free.
class Processors {
public:
    explicit Processors(std::int64_t count, double free_from = 0)
        : count_(count), free_{{free_from, static_cast<double>(count)}} {}

    /// When the last of the items has ended. They wait where they are: nothing of them is done before `begin`, and none
    /// ends before `end`.
    double give(const ItemGroup& items, double begin = 0, double end = 0);

    /// Whatever they do takes so much longer.
    void delay(double seconds);

private:
    /// Processors that are free at the same time.
    struct Free {
        double time = 0;
        double count = 0;
        bool operator<(const Free& other) const { return time > other.time; }  // the first to be free on top of a heap
    };
    std::int64_t give_at_once(const ItemGroup& items);

    std::int64_t count_;
    std::vector<Free> free_;  // a heap
};

/// Time of items given longest first to whichever of `processors` is free first.
double makespan(std::vector<ItemGroup> items, std::int64_t processors);

/// The same, in the order that they are in.
double makespan_in_order(std::span<const ItemGroup> items, std::int64_t processors);

/// From `from` on there are so many processors, at least one.
struct ProcessorCount {
    double from = 0;
    std::int64_t count = 1;
};

/// The same while processors come and go, `counts` by time, the first from 0 on. One goes when it has ended its item,
/// those first that are free first.
double makespan_in_order(std::span<const ItemGroup> items, std::span<const ProcessorCount> counts);

}  // namespace ringlab::sim
