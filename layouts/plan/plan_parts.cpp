#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/plan/plan.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// Rows of a segment and all keys that they see; empty if they see nothing.
Interval reach(const MaskSegment& segment) {
    Interval all{segment.rows.begin, segment.rows.begin};
    for (const auto row : {segment.rows.begin, segment.rows.end - 1}) {
        const auto keys = segment.at(row);
        if (keys == RowKeys{}) continue;
        all = {std::min({all.begin, segment.rows.begin, keys.first()}),
               std::max({all.end, segment.rows.end, keys.end})};
    }
    return all;
}

}  // namespace

std::vector<PlanPart> plan_parts(const Mask& mask) {
    std::vector<Interval> reaches;
    for (const auto& segment : mask.segments())
        if (const auto all = reach(segment); all.size() > 0) reaches.push_back(all);
    std::ranges::sort(reaches, {}, &Interval::begin);
    std::vector<Interval> intervals;
    const auto add = [&](Interval interval) {
        if (interval.size() > 0) intervals.push_back(interval);
    };
    Interval open{0, 0};
    for (const auto& next : reaches) {
        if (next.begin < open.end) {
            open.end = std::max(open.end, next.end);
            continue;
        }
        add(open);
        add({open.end, next.begin});
        open = next;
    }
    add(open);
    add({open.end, mask.tokens()});

    const Run everything{0, 1, mask.tokens()};
    const KeyCounter keys({&everything, 1});
    std::vector<PlanPart> parts;
    for (const auto& interval : intervals) {
        const Run rows{interval.begin, 1, interval.size()};
        parts.push_back({interval, static_cast<double>(visible_pairs(mask, {&rows, 1}, keys))});
    }
    return parts;
}

}  // namespace ringlab::layouts
