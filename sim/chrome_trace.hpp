#pragma once

#include "layouts/timeline.hpp"

#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::sim {

/// One group of a trace, for instance "predicted" or "measured".
struct TraceGroup {
    std::string name;
    const layouts::Timeline* timeline = nullptr;
    std::span<const layouts::Interval> host_issue{};  ///< by span, as in Prediction; may be empty
    std::vector<std::string> lane_names{};            ///< as Schedule::lane_name says; lanes beyond them have numbers
};

/// What goes into a trace: large JSON kills the viewer.
struct TraceFilter {
    layouts::Interval ranks{0, std::numeric_limits<std::int64_t>::max()};
    layouts::Interval steps{0, std::numeric_limits<std::int64_t>::max()};
};

/// What every trace begins with.
inline constexpr std::string_view chrome_trace_begin = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";

/// Writes Chrome trace-event JSON, which ui.perfetto.dev opens: a process per group and rank; a thread per lane, and
/// one for the host; arrows from sends to receives; a slice of its own for the time in which a transfer waits for its
/// peer. Times are microseconds with all six decimals, exact picoseconds. Slices of a track never overlap: where
/// measured ones do, the later goes to a further track of the lane.
void write_chrome_trace(std::ostream& out, std::span<const TraceGroup> groups, const TraceFilter& filter = {});

}  // namespace ringlab::sim
