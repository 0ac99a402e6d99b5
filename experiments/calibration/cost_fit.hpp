#pragma once

#include "experiments/options/case.hpp"
#include "sim/cost/cost.hpp"

#include <functional>
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
    sim::TileModel::AttendPosition position;
    double seconds = 0;
    bool held_out = false;
    std::string name = {};  ///< for people
};

/// FLOP/s of visible pairs of an attend of one rank.
double flops_of(const TimedAttend& attend, layouts::Pass pass);

/// The costs of a pass of a machine or of another kernel, to be fitted.
template <class Costs>
sim::AttentionCost& cost_of(Costs& costs, layouts::Pass pass) {
    return pass == layouts::Pass::forward ? costs.forward : costs.backward;
}

/// Seconds of this attend by the simulator's cost model.
double predicted_seconds(const TimedAttend& attend, layouts::Pass pass, const sim::Machine& machine);

/// The source of a number that `measurements` do not determine. A time is then 0, and a rate unlimited.
inline const std::string not_determined = "not determined by ";
std::string not_determined_by(const std::string& measurements);

/// Part of the source of a rate that is higher than the device's data sheet allows.
inline constexpr const char* above_data_sheet = "above the data sheet's rate";

/// Why some prices are 0 without a fit, by key without the section of the pass.
using SourcesOfZeros = std::map<std::string, std::string>;

/// Something that was timed, and the seconds that the cost model predicts for it with the prices as they are.
struct Timing {
    double seconds = 0;
    std::function<double()> predicted;
};

/// The attends that are not held out. `machine` must outlive the timings.
std::vector<Timing> timings_of(std::span<const TimedAttend> attends, layouts::Pass pass, const sim::Machine& machine);

/// Fits the prices that the timings show; `cost` is a part of the machine that predicts them, with its kind of work
/// tile, its tiles and `flops` given. Least squares of the relative errors. A time that they do not show is then 0, and
/// a rate has no end.
SourcesOfZeros fit_prices(sim::AttentionCost& cost, std::span<const Timing> timings);

/// The line y = a + b x with a, b >= 0 that fits best, by least squares of relative errors. At least two points.
struct Line {
    double constant = 0, slope = 0;
    bool has_slope = true;  ///< or all x are alike: then the slope is 0, as nothing determines it
};
Line fit_line(std::span<const double> x, std::span<const double> y);

/// As fit_line(), for a quantity that must grow with x. Where other work disturbs the measurement and it does not seem
/// to grow, this is the line through the origin and the point with the largest x.
Line fit_rising_line(std::span<const double> x, std::span<const double> y);

/// Bytes that were moved, and the seconds that it took.
struct Moved {
    std::vector<double> bytes, seconds;

    void add(double of_bytes, double of_seconds) {
        bytes.push_back(of_bytes);
        seconds.push_back(of_seconds);
    }
    Line line() const { return fit_line(bytes, seconds); }
    Line rising_line() const { return fit_rising_line(bytes, seconds); }
};

}  // namespace ringlab::experiments
