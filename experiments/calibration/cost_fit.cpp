#include "experiments/calibration/cost_fit.hpp"

#include "experiments/calibration/least_squares.hpp"
#include "layouts/basics/require.hpp"
#include "sim/machine/terms.hpp"
#include "sim/tiles/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using sim::AttentionCost;

using sim::Fitted;
using Price = sim::Price<AttentionCost>;

double mean_square_error(std::span<const Timing> timings) {
    double sum = 0;
    for (const auto& timing : timings) sum += std::pow(timing.predicted() / timing.seconds - 1, 2);
    return sum / static_cast<double>(timings.size());
}

/// A value of the right order in the units of the fit, from which its steps follow.
double typical_in_fit(const Price& price, const AttentionCost& cost) {
    if (price.is_rate()) return 1 / cost.flops;
    return price.unit == sim::units::micro ? cost.full_tile_seconds : price.unit;
}

/// All prices alike, so that the longest timing is predicted right. Power is what limits the best rate's clock to 0.84.
/// From half of that rate the forward fit of calibrate_2xh200.h5 ends in a minimum that is a little higher.
void guess(AttentionCost& cost, const std::vector<Price>& asked, std::span<const Timing> timings) {
    constexpr double low_power = 0.7;  // of the best rate: the square of the clock
    for (const auto& price : asked)
        cost.*price.value = price.is_rate() ? std::numeric_limits<double>::infinity() : price.unit;
    const auto& longest = *std::ranges::max_element(timings, {}, &Timing::seconds);
    const auto scale = longest.seconds / longest.predicted();
    for (const auto& price : asked)
        if (price.is_rate())
            cost.*price.value = low_power * cost.flops;
        else if (price.unit == sim::units::micro)
            cost.*price.value *= scale;
}

}  // namespace

std::string not_determined_by(const std::string& measurements) { return not_determined + measurements; }

double flops_of(const TimedAttend& attend, Pass pass) {
    const auto& schedule = *attend.plan->schedule(pass);
    auto ops = schedule.ops(0);
    return schedule.flop(*ops.next()) / attend.seconds;
}

double predicted_seconds(const TimedAttend& attend, Pass pass, const sim::Machine& machine) {
    const auto& schedule = *attend.plan->schedule(pass);
    const auto& p = attend.plan->problem;
    sim::TileModel model(schedule, machine);
    const auto rows = schedule.part(attend.rank, {0, static_cast<int>(p.query_heads)});
    const auto keys = schedule.part(attend.block, {0, static_cast<int>(p.kv_heads)});
    return sim::attention_cost(machine, schedule).launch_seconds + model.attend(rows, keys, attend.position).alone;
}

std::vector<Timing> timings_of(std::span<const TimedAttend> attends, Pass pass, const sim::Machine& machine) {
    std::vector<Timing> timings;
    for (const auto& attend : attends)
        if (!attend.held_out)
            timings.push_back(
                {attend.seconds, [&machine, attend, pass] { return predicted_seconds(attend, pass, machine); }});
    return timings;
}

/// A launch takes a sum of the fitted times, each multiplied by how often it occurs on the SM that ends last. Which SM
/// that is depends on the times, and the clock on all prices. So counts and prices are found in turns: counts by
/// differences, prices by linear least squares.
SourcesOfZeros fit_prices(AttentionCost& cost, std::span<const Timing> timings) {
    require(!timings.empty(), "nothing was timed, so no price can be fitted");
    std::vector<Price> asked;  // the most important first: of prices that always occur together, the others are 0
    SourcesOfZeros never_asked, undetermined;
    sim::for_each_price<AttentionCost>([&](const Price& price) {
        const bool for_rows = cost.work_tile == sim::WorkTile::query_tile;
        if (price.fitted == Fitted::no) return;
        if (price.fitted != (for_rows ? Fitted::for_key_tiles : Fitted::for_query_tiles)) return asked.push_back(price);
        cost.*price.value = 0;
        never_asked[price.key] = for_rows ? "none: only key tiles have it" : "none: only query tiles have it";
    });
    guess(cost, asked, timings);
    auto best = cost;
    double least = mean_square_error(timings);
    // Power comes last: while times are far off, it would be found where it limits nothing, and stay there.
    constexpr int rounds = 24, of_times = 6;
    for (int round = 0; round < rounds; ++round) {
        std::vector<double> counts, rest;  // of each timing, as shares of its seconds
        for (const auto& timing : timings) {
            const double before = timing.predicted();
            rest.push_back(1 - before / timing.seconds);
            for (const auto& price : asked) {
                constexpr double small = 1e-4;
                if (price.is_rate() && round < of_times) {
                    counts.push_back(0);
                    continue;
                }
                const double kept = price.in_fit(cost), step = small * typical_in_fit(price, best);
                price.set_in_fit(cost, kept + step);
                counts.push_back((timing.predicted() - before) / step / timing.seconds);
                rest.back() += counts.back() * kept;
                price.set_in_fit(cost, kept);
            }
        }
        const auto found = nonnegative_least_squares(counts, rest, asked.size());
        const auto determined = static_cast<std::size_t>(std::ranges::count(found.determined, true));
        require(timings.size() > determined, "{} timings do not determine {} prices", timings.size(), determined);
        // Half a step, because whole steps oscillate if another SM becomes the last one.
        for (std::size_t i = 0; i < asked.size(); ++i)
            if (!asked[i].is_rate() || round >= of_times)
                asked[i].set_in_fit(cost, found.determined[i] ? (asked[i].in_fit(cost) + found.values[i]) / 2 : 0);
        const double error = mean_square_error(timings);
        if (error >= least) continue;
        least = error;
        best = cost;
        undetermined.clear();
        for (std::size_t i = 0; i < asked.size(); ++i)
            if (!found.determined[i]) undetermined[asked[i].key] = not_determined_by("what was timed");
    }
    cost = best;
    // A price whose solution is 0 is halved in each round.
    for (const auto& price : asked)
        if (!price.is_rate() && cost.*price.value < 1e-6 * price.unit) cost.*price.value = 0;
    undetermined.merge(never_asked);
    return undetermined;
}

Line fit_line(std::span<const double> x, std::span<const double> y) {
    require(x.size() == y.size() && x.size() >= 2, "{} points do not determine a line", x.size());
    std::vector<double> matrix;
    for (std::size_t i = 0; i < x.size(); ++i) {
        matrix.push_back(1 / y[i]);
        matrix.push_back(x[i] / y[i]);
    }
    const auto found = nonnegative_least_squares(matrix, std::vector<double>(x.size(), 1), 2);
    return {found.values[0], found.values[1], found.determined[1]};
}

Line fit_rising_line(std::span<const double> x, std::span<const double> y) {
    const auto line = fit_line(x, y);
    if (line.slope > 0) return line;
    const auto last = static_cast<std::size_t>(std::ranges::max_element(x) - x.begin());
    return {0, y[last] / x[last], line.has_slope};
}

}  // namespace ringlab::experiments
