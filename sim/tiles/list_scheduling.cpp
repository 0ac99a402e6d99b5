#include "sim/tiles/list_scheduling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace ringlab::sim {

/// Assigns most work tiles of a very large group at once: each SM takes the work tiles that it can begin before a
/// common time. The result is that of assigning them one by one. Returns how many were assigned. Small groups are
/// always assigned one by one, which keeps sums the same to the last bit.
std::int64_t ListScheduler::assign_large_group(const WorkTileGroup& items) {
    constexpr std::int64_t few = 1 << 16;
    if (items.count <= few || items.seconds == 0) return items.seconds == 0 ? items.count : 0;
    const auto assigned_by = [&](double time, double level) {
        return level > time ? std::floor((level - time) / items.seconds) : 0;
    };
    const auto assigned = [&](double level) {
        double sum = 0;
        for (const auto& some : free_) sum += some.count * assigned_by(some.time, level);
        return sum;
    };
    double low = free_.front().time;
    double high = low;
    for (const auto& some : free_) high = std::max(high, some.time);
    high += static_cast<double>(items.count) * items.seconds;
    const auto most = static_cast<double>(items.count - few / 2);
    for (int halvings = 0; halvings < 200; ++halvings) {
        const auto middle = low + (high - low) / 2;
        (assigned(middle) <= most ? low : high) = middle;
    }
    auto given = static_cast<std::int64_t>(assigned(low));
    for (auto& some : free_) some.time += assigned_by(some.time, low) * items.seconds;
    if (items.count - given > 2 * few) {  // the work tiles are so short that rounding hides them
        for (auto& some : free_)
            some.time += static_cast<double>(items.count - given) / static_cast<double>(count_) * items.seconds;
        given = items.count;
    }
    std::make_heap(free_.begin(), free_.end());
    return given;
}

double ListScheduler::give(const WorkTileGroup& items, double begin, double end) {
    double last = 0;
    const auto put = [&](Free some) {
        if (some.count == 0) return;
        free_.push_back(some);
        std::push_heap(free_.begin(), free_.end());
    };
    const bool wait = std::max(begin, end) > free_.front().time;
    auto left = items.count;
    if (!wait && left > 0) {
        left -= assign_large_group(items);
        for (const auto& some : free_) last = left == 0 ? std::max(last, some.time) : last;
    }
    while (left > 0) {
        std::pop_heap(free_.begin(), free_.end());
        auto first = free_.back();
        free_.pop_back();
        while (!free_.empty() && free_.front().time == first.time) {
            first.count += free_.front().count;
            std::pop_heap(free_.begin(), free_.end());
            free_.pop_back();
        }
        const auto taken = std::min(first.count, static_cast<double>(left));
        const auto done = std::max(std::max(first.time, begin) + items.seconds, end);
        put({first.time, first.count - taken});
        put({done, taken});
        last = std::max(last, done);
        left -= static_cast<std::int64_t>(taken);
    }
    return last;
}

void ListScheduler::delay(double seconds) {
    for (auto& some : free_) some.time += seconds;
}

double makespan(std::vector<WorkTileGroup> items, std::int64_t sms) {
    std::sort(items.begin(), items.end(),
              [](const WorkTileGroup& a, const WorkTileGroup& b) { return a.seconds > b.seconds; });
    return list_schedule(items, sms);
}

double list_schedule(std::span<const WorkTileGroup> items, std::int64_t sms) {
    ListScheduler all(sms);
    double end = 0;
    for (const auto& group : items) end = std::max(end, all.give(group));
    return end;
}

double list_schedule(std::span<const WorkTileGroup> items, std::span<const ProcessorsFrom> counts) {
    std::vector<double> free(static_cast<std::size_t>(counts.front().count), 0.0);  // a heap, the first on top
    const auto later = std::greater<>{};
    const auto come_and_go = [&] {
        for (; counts.size() > 1 && counts[1].from <= free.front(); counts = counts.subspan(1)) {
            const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(1, counts[1].count));
            while (free.size() > wanted) {
                std::ranges::pop_heap(free, later);
                free.pop_back();
            }
            while (free.size() < wanted) {
                free.push_back(counts[1].from);
                std::ranges::push_heap(free, later);
            }
        }
    };
    double end = 0;
    for (const auto& group : items)
        for (std::int64_t i = 0; i < group.count; ++i) {
            come_and_go();
            std::ranges::pop_heap(free, later);
            free.back() += group.seconds;
            end = std::max(end, free.back());
            std::ranges::push_heap(free, later);
        }
    return end;
}

}  // namespace ringlab::sim
