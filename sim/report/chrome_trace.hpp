#pragma once

#include "layouts/program/timeline.hpp"

#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::sim {

/// One group of a trace, for example "predicted" or "measured".
struct TraceGroup {
    std::string name;
    const layouts::Timeline* timeline = nullptr;
    std::span<const layouts::Interval> host_issue{};  ///< by span, as in Prediction; may be empty
    std::vector<std::string> lane_names{};            ///< as Schedule::lane_name() says; lanes beyond these are named
                                                      ///< by number
};

inline constexpr layouts::Interval all_ranks{0, std::numeric_limits<std::int64_t>::max()};

/// The first bytes of every trace.
inline constexpr std::string_view chrome_trace_begin = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";

/// Writes Chrome trace-event JSON, which ui.perfetto.dev opens. There is one process per group and rank, and in it one
/// thread per lane and one for the host. Arrows go from sends to receives. The time in which a transfer waits for its
/// peer is a slice of its own. Times are microseconds with six decimals, so picoseconds are exact. Slices of a track
/// never overlap: if measured ones do, the later one goes to another track of the same lane. Viewers fail on large
/// files: `ranks` says whose spans are written.
void write_chrome_trace(std::ostream& out, std::span<const TraceGroup> groups, layouts::Interval ranks = all_ranks);

}  // namespace ringlab::sim
