#include "experiments/calibration/cost_fit.hpp"

#include "experiments/study/least_squares.hpp"
#include "layouts/require.hpp"
#include "sim/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using sim::AttentionCost;

constexpr std::array times{
    &AttentionCost::launch_seconds,       &AttentionCost::item_seconds,      &AttentionCost::full_tile_seconds,
    &AttentionCost::partial_tile_seconds, &AttentionCost::idle_item_seconds, &AttentionCost::resume_seconds,
    &AttentionCost::finish_seconds,       &AttentionCost::share_seconds,     &AttentionCost::idle_byte_seconds,
    &AttentionCost::last_byte_seconds,    &AttentionCost::reread_seconds};

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
    return sim::attention_cost(machine, schedule).launch_seconds + model.block(rows, keys, attend.turn).alone;
}

/// A launch takes a sum of the times, each as often as it occurs on the multiprocessor that ends last. Which one that
/// is depends on the times, so counts and times are found in turns: counts by differences, times by linear least
/// squares.
void fit_attention(sim::Machine& machine, Pass pass, std::span<const TimedAttend> attends) {
    fit_attention(machine, pass == Pass::forward ? machine.forward : machine.backward, pass, attends);
}

void fit_attention(const sim::Machine& machine, AttentionCost& cost, Pass pass, std::span<const TimedAttend> attends) {
    const auto fitted = used(attends);
    require(!fitted.empty(), "no timed attends determine no times");
    double slowest = 0, tiles = 0;  // for a first guess: as if the longest launch were nothing but full tiles
    for (const auto* attend : fitted) {
        if (attend->seconds <= slowest) continue;
        slowest = attend->seconds;
        const auto& p = attend->plan->problem;
        const auto rows = static_cast<double>(attend->plan->layout().shard_tokens(attend->rank));
        const auto keys = static_cast<double>(attend->plan->layout().shard_tokens(attend->block));
        tiles = static_cast<double>(p.query_heads * p.batch) * rows * keys /
                static_cast<double>(cost.tile_rows * cost.tile_keys) / machine.multiprocessors;
    }
    for (const auto time : times) cost.*time = slowest / tiles;
    auto best = cost;
    double least = mean_square_error(fitted, pass, machine);
    constexpr int rounds = 24;
    for (int round = 0; round < rounds; ++round) {
        std::vector<double> counts, ones(fitted.size(), 1);
        for (const auto* attend : fitted) {
            const double before = predicted_seconds(*attend, pass, machine);
            for (const auto time : times) {
                const double kept = cost.*time, step = 1e-4 * best.full_tile_seconds;
                cost.*time += step;
                counts.push_back((predicted_seconds(*attend, pass, machine) - before) / step / attend->seconds);
                cost.*time = kept;
            }
        }
        // Nobody asks for a time whose counts are all 0, which would leave the system without a solution.
        std::vector<std::size_t> asked;
        for (std::size_t i = 0; i < times.size(); ++i) {
            double sum = 0;
            for (std::size_t row = 0; row < fitted.size(); ++row) sum += std::abs(counts[row * times.size() + i]);
            if (sum > 0)
                asked.push_back(i);
            else
                cost.*times[i] = 0;
        }
        require(fitted.size() > asked.size(), "{} timed attends do not determine {} times", fitted.size(),
                asked.size());
        std::vector<double> matrix;
        for (std::size_t row = 0; row < fitted.size(); ++row)
            for (const auto i : asked) matrix.push_back(counts[row * times.size() + i]);
        const auto found = nonnegative_least_squares(matrix, ones, asked.size());
        // Half the way: where the last multiprocessor changes, whole steps go back and forth.
        for (std::size_t i = 0; i < asked.size(); ++i) {
            auto& time = cost.*times[asked[i]];
            time = (time + found[i]) / 2;
        }
        const double error = mean_square_error(fitted, pass, machine);
        if (error >= least) continue;
        least = error;
        best = cost;
    }
    cost = best;
}

Line fit_line(std::span<const double> x, std::span<const double> y) {
    require(x.size() == y.size() && x.size() >= 2, "{} points do not determine a line", x.size());
    std::vector<double> matrix;
    for (std::size_t i = 0; i < x.size(); ++i) {
        matrix.push_back(1 / y[i]);
        matrix.push_back(x[i] / y[i]);
    }
    const auto found = nonnegative_least_squares(matrix, std::vector<double>(x.size(), 1), 2);
    return {found[0], found[1]};
}

Line fit_rising_line(std::span<const double> x, std::span<const double> y) {
    const auto line = fit_line(x, y);
    if (line.slope > 0) return line;
    const auto last = static_cast<std::size_t>(std::ranges::max_element(x) - x.begin());
    return {0, y[last] / x[last]};
}

}  // namespace ringlab::experiments
