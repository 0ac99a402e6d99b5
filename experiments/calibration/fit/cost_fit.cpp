#include "experiments/calibration/fit/cost_fit.hpp"

#include "experiments/calibration/fit/least_squares.hpp"
#include "experiments/calibration/fit/machine_file.hpp"
#include "layouts/basics/require.hpp"
#include "sim/terms/terms.hpp"
#include "sim/tiles/kernels.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using sim::AttentionCost;

using sim::Attends;
using Price = sim::Price<AttentionCost>;

/// The prices that are fitted to timed attends, the most important first. If several prices always occur together, the
/// first one is fitted and the others are 0.
std::vector<Price> fitted_prices() {
    std::vector<Price> all;
    sim::for_each_price<AttentionCost>([&](const Price& price) {
        if (price.fitted_to != Attends::none && price.fitted_to != Attends::without_rests) all.push_back(price);
    });
    return all;
}

bool is_of(const Price& price, sim::WorkTile tiles) {
    return price.fitted_to != (tiles == sim::WorkTile::query_tile ? Attends::of_key_tiles : Attends::of_query_tiles);
}

// The shortest time of the simulator. A price whose solution is 0 is halved in each round, and below this it counts as
// 0.
constexpr double tick = 1e-12;

std::vector<const TimedAttend*> used(std::span<const TimedAttend> attends) {
    std::vector<const TimedAttend*> all;
    for (const auto& attend : attends)
        if (!attend.held_out) all.push_back(&attend);
    return all;
}

double mean_square_error(const std::vector<const TimedAttend*>& attends, Pass pass, const sim::Machine& machine) {
    double sum = 0;
    for (const auto* attend : attends)
        sum += std::pow(predicted_seconds(*attend, pass, machine) / attend->seconds - 1, 2);
    return sum / static_cast<double>(attends.size());
}

}  // namespace

double predicted_seconds(const TimedAttend& attend, Pass pass, const sim::Machine& machine) {
    const auto& schedule = *attend.plan->schedule(pass);
    const auto& p = attend.plan->problem;
    sim::TileModel model(schedule, machine);
    const auto rows = schedule.part(attend.rank, {0, static_cast<int>(p.query_heads)});
    const auto keys = schedule.part(attend.block, {0, static_cast<int>(p.kv_heads)});
    return sim::attention_cost(machine, schedule).launch_seconds + model.attend(rows, keys, attend.position).alone;
}

/// A launch takes a sum of the fitted times, each multiplied by how often it occurs on the SM that ends last. Which SM
/// that is depends on the times. So counts and times are found in turns: counts by differences, times by linear least
/// squares.
SourcesOfZeros fit_attention(sim::Machine& machine, Pass pass, std::span<const TimedAttend> attends) {
    return fit_attention(machine, pass == Pass::forward ? machine.forward : machine.backward, pass, attends);
}

SourcesOfZeros fit_attention(const sim::Machine& machine, AttentionCost& cost, Pass pass,
                             std::span<const TimedAttend> attends) {
    const auto fitted = used(attends);
    require(!fitted.empty(), "no attend was timed, so no time can be fitted");
    double slowest = 0, tiles = 0;  // first guess: the longest launch has full tiles only
    for (const auto* attend : fitted) {
        if (attend->seconds <= slowest) continue;
        slowest = attend->seconds;
        const auto& p = attend->plan->problem;
        const auto rows = static_cast<double>(attend->plan->layout().shard_tokens(attend->rank));
        const auto keys = static_cast<double>(attend->plan->layout().shard_tokens(attend->block));
        tiles = static_cast<double>(p.query_heads * p.batch) * rows * keys /
                static_cast<double>(cost.tile_rows * cost.tile_keys) / machine.sms;
    }
    std::vector<Price> asked;
    SourcesOfZeros never_asked, undetermined;
    for (const auto& time : fitted_prices()) {
        if (is_of(time, cost.work_tile))
            asked.push_back(time);
        else
            never_asked[time.key] = time.fitted_to == Attends::of_key_tiles ? "none: only key tiles have it"
                                                                            : "none: only query tiles have it";
        cost.*time.value = is_of(time, cost.work_tile) ? slowest / tiles : 0;
    }
    auto best = cost;
    double least = mean_square_error(fitted, pass, machine);
    constexpr int rounds = 24;
    for (int round = 0; round < rounds; ++round) {
        std::vector<double> counts, ones(fitted.size(), 1);
        for (const auto* attend : fitted) {
            const double before = predicted_seconds(*attend, pass, machine);
            for (const auto& time : asked) {
                const double kept = cost.*time.value, step = 1e-4 * best.full_tile_seconds;
                cost.*time.value += step;
                counts.push_back((predicted_seconds(*attend, pass, machine) - before) / step / attend->seconds);
                cost.*time.value = kept;
            }
        }
        const auto found = nonnegative_least_squares(counts, ones, asked.size());
        const auto determined = static_cast<std::size_t>(std::ranges::count(found.determined, true));
        require(fitted.size() > determined, "{} timed attends do not determine {} times", fitted.size(), determined);
        // Half a step, because whole steps oscillate if another SM becomes the last one.
        for (std::size_t i = 0; i < asked.size(); ++i) {
            auto& time = cost.*asked[i].value;
            time = found.determined[i] ? (time + found.values[i]) / 2 : 0;
        }
        const double error = mean_square_error(fitted, pass, machine);
        if (error >= least) continue;
        least = error;
        best = cost;
        undetermined.clear();
        for (std::size_t i = 0; i < asked.size(); ++i)
            if (!found.determined[i]) undetermined[asked[i].key] = not_determined_by("the timed attends");
    }
    cost = best;
    for (const auto& time : asked)
        if (cost.*time.value < tick) cost.*time.value = 0;
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
