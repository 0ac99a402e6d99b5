#include "sim/tiles/list_scheduling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace ringlab::sim {

/// Assigns most work tiles of a very large group at once: each SM takes the work tiles that it can begin before a
/// common time. The result is that of assigning them one by one. Returns how many were assigned. Small groups are
/// always assigned one by one, which keeps sums the same to the last bit.
std::int64_t ListScheduler::assign_large_group(const WorkTileGroup& work_tiles) {
    constexpr std::int64_t few = 1 << 16;
    if (work_tiles.count <= few || work_tiles.seconds == 0) return work_tiles.seconds == 0 ? work_tiles.count : 0;
    const auto assigned_by = [&](double time, double level) {
        return level > time ? std::floor((level - time) / work_tiles.seconds) : 0;
    };
    const auto assigned = [&](double level) {
        double sum = 0;
        for (const auto& some : free_) sum += some.count * assigned_by(some.time, level);
        return sum;
    };
    double low = free_.front().time;
    double high = low;
    for (const auto& some : free_) high = std::max(high, some.time);
    high += static_cast<double>(work_tiles.count) * work_tiles.seconds;
    const auto most = static_cast<double>(work_tiles.count - few / 2);
    for (int halvings = 0; halvings < 200; ++halvings) {
        const auto middle = low + (high - low) / 2;
        (assigned(middle) <= most ? low : high) = middle;
    }
    auto given = static_cast<std::int64_t>(assigned(low));
    for (auto& some : free_) some.time += assigned_by(some.time, low) * work_tiles.seconds;
    if (work_tiles.count - given > 2 * few) {  // the work tiles are so short that rounding hides them
        for (auto& some : free_)
            some.time +=
                static_cast<double>(work_tiles.count - given) / static_cast<double>(count_) * work_tiles.seconds;
        given = work_tiles.count;
    }
    std::make_heap(free_.begin(), free_.end());
    return given;
}

double ListScheduler::give(const WorkTileGroup& work_tiles, double begin, double end) {
    double last = 0;
    const auto put = [&](Free some) {
        if (some.count == 0) return;
        free_.push_back(some);
        std::push_heap(free_.begin(), free_.end());
    };
    const bool wait = std::max(begin, end) > free_.front().time;
    auto left = work_tiles.count;
    if (!wait && left > 0) {
        left -= assign_large_group(work_tiles);
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
        const auto done = std::max(std::max(first.time, begin) + work_tiles.seconds, end);
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

double list_schedule(std::span<const WorkTileGroup> work_tiles, std::int64_t sms) {
    ListScheduler all(sms);
    double end = 0;
    for (const auto& group : work_tiles) end = std::max(end, all.give(group));
    return end;
}

double list_schedule(std::span<const WorkTileGroup> work_tiles, std::span<const SmsFrom> counts) {
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
    for (const auto& group : work_tiles)
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
