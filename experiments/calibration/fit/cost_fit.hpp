#pragma once

#include "experiments/config/case.hpp"
#include "sim/cost/cost.hpp"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// An attend that was timed: the rows of a rank against the keys of a block.
struct TimedAttend {
    std::shared_ptr<const Plan> plan;
    int rank = 0, block = 0;
    sim::TileModel::BlockPosition position;
    double seconds = 0;
    bool held_out = false;
    std::string name = {};  ///< for people
};

/// What the simulator's cost model says of it.
double predicted_seconds(const TimedAttend& attend, layouts::Pass pass, const sim::Machine& machine);

/// Why times are 0 to which nothing was fitted, by their keys behind the section of their pass: "finish_us",
/// "ends.share_us".
using SourcesOfZeros = std::map<std::string, std::string>;

/// Finds the times of the machine's cost of a pass, its items and tiles given: least squares of the relative errors of
/// all attends that are not held out.
SourcesOfZeros fit_attention(sim::Machine& machine, layouts::Pass pass, std::span<const TimedAttend> attends);

/// The same of `cost`, a part of the machine: that of the kernel that does these attends.
SourcesOfZeros fit_attention(const sim::Machine& machine, sim::AttentionCost& cost, layouts::Pass pass,
                             std::span<const TimedAttend> attends);

/// (a, b) >= 0 of y = a + b x, least squares of relative errors. At least two points.
struct Line {
    double constant = 0, slope = 0;
    bool has_slope = true;  ///< or all x are alike: then the slope is 0, as nothing determines it
};
Line fit_line(std::span<const double> x, std::span<const double> y);

/// The same of what must take longer the more there is of it, but may not seem to, where other work disturbs the
/// measurement: then the line through the origin and the point of the largest x.
Line fit_rising_line(std::span<const double> x, std::span<const double> y);

}  // namespace ringlab::experiments
