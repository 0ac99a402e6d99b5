#include "experiments/calibration/fit_gpu.hpp"
#include "experiments/calibration/least_squares.hpp"
#include "sim/cost/cost.hpp"
#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ringlab::experiments {
namespace {

using layouts::OpKind;
using layouts::Pass;

double mean_of(const std::vector<double>& values) {
    double sum = 0;
    for (const auto value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

layouts::Op first_attend(const layouts::Schedule& schedule) {
    auto ops = schedule.ops(0);
    while (const auto* op = ops.next())
        if (op->kind == OpKind::attend) return *op;
    fail("a schedule without attends");
}

}  // namespace

void fit_power(GpuFit& fit) {
    auto& powers = fit.machine.power_of_gpus;
    const auto sustained = fit.samples.of(SampleKind::sustained);
    double least = 1, most = 1;
    for (int gpu = 1; gpu < fit.samples.gpus; ++gpu) {
        std::vector<double> ratios;
        for (const auto* own : sustained)
            for (const auto* first : sustained)
                if (own->rank == gpu && first->rank == 0 && own->call == first->call &&
                    own->tokens_per_rank == first->tokens_per_rank)
                    ratios.push_back(std::pow(first->seconds / own->seconds, 3));
        if (ratios.empty()) return;
        if (powers.empty()) powers.push_back(1);
        powers.push_back(mean_of(ratios));
        least = std::min(least, *std::ranges::min_element(ratios));
        most = std::max(most, *std::ranges::max_element(ratios));
    }
    if (!powers.empty())
        fit.sources["power"] =
            fmt::format("measured: (time of the first GPU / its own)^3 of attends without rests, from {:.3f} to {:.3f}",
                        least, most);
}

void fit_rotation(GpuFit& fit) {
    auto& m = fit.machine;
    std::int64_t largest = 0;
    for (const auto* sample : fit.samples.of(SampleKind::rotation))
        largest = std::max(largest, sample->tokens_per_rank);
    for (const auto pass : both_passes)
        for (const auto* sample : fit.samples.of(SampleKind::rotation, to_string(pass))) {
            if (sample->tokens_per_rank < largest) continue;
            const auto plan = fit.samples.plan(*sample);
            const auto& schedule = *plan->schedule(pass);
            const auto moving = std::max(0.0, sample->seconds - 2 * m.accumulate_launch_seconds);
            (pass == Pass::forward ? m.rotate_memory_ratio : m.rotate_back_memory_ratio) =
                moving * m.memory_bytes_per_second / sim::rotated_bytes(schedule, schedule.layout().shard_tokens(0));
        }
    fit.sources["rotation"] =
        fmt::format("measured: rotations of q and k, and of dq and dk, of {} tokens, beside two launches", largest);
}

/// Fits split-KV attends. Whether the memory or the busiest thread block limits an attend depends on the rates. So the
/// rates, and which of the two limits each attend, are found in turns.
void fit_split_kv(GpuFit& fit) {
    auto& split = fit.machine.split_kv;
    const auto timed = fit.samples.of(SampleKind::few_rows);
    if (split.rows == 0 || timed.size() < 3) return;
    constexpr double first_guess = 3e12, of_a_block = 60e9, endless = std::numeric_limits<double>::infinity();
    split.bytes_per_second = first_guess;
    split.block_bytes_per_second = of_a_block;
    split.launch_seconds = 0;
    struct SplitTiming {
        double seconds, by_memory, by_block;  // seconds measured; others predicted at 1 B/s, without a launch
    };
    std::vector<SplitTiming> timings;
    for (const auto* sample : timed) {
        const auto plan = fit.samples.plan(*sample);
        const auto attend = first_attend(*plan->forward);
        const auto seconds_with = [&](double all, double block) {
            auto machine = fit.machine;
            machine.split_kv.bytes_per_second = all;
            machine.split_kv.block_bytes_per_second = block;
            return sim::split_kv_seconds(*plan->forward, attend, machine);
        };
        timings.push_back({sample->seconds, seconds_with(1, endless), seconds_with(endless, 1)});
    }
    bool knows_memory = false, knows_block = false;
    constexpr int rounds = 20;
    for (int round = 0; round < rounds; ++round) {
        std::vector<double> matrix, ones;
        for (const auto& one : timings) {
            const bool by_memory = one.by_memory / split.bytes_per_second > one.by_block / split.block_bytes_per_second;
            matrix.insert(matrix.end(), {1 / one.seconds, by_memory ? one.by_memory / one.seconds : 0,
                                         by_memory ? 0 : one.by_block / one.seconds});
            ones.push_back(1);
        }
        const auto found = nonnegative_least_squares(matrix, ones, 3).values;
        split.launch_seconds = found[0];
        if (found[1] > 0) split.bytes_per_second = 1 / found[1], knows_memory = true;
        if (found[2] > 0) split.block_bytes_per_second = 1 / found[2], knows_block = true;
    }
    // A rate that no sample determines is infinite.
    if (!knows_memory) split.bytes_per_second = endless;
    if (!knows_block) split.block_bytes_per_second = endless;
    double most = 0;
    for (const auto* sample : timed) {
        const auto plan = fit.samples.plan(*sample);
        const auto predicted = sim::split_kv_seconds(*plan->forward, first_attend(*plan->forward), fit.machine);
        most = std::max(most, std::abs(predicted / sample->seconds - 1));
    }
    const auto attends = fmt::format("{} attends of 1 and 16 rows, the last of up to 256Ki tokens", timed.size());
    fit.sources["split_kv"] = fmt::format("fitted to {}, within {:.0f} %", attends, 100 * most);
    if (!knows_memory) fit.sources["split_kv.gigabytes_per_second"] = not_determined_by(attends);
    if (!knows_block) fit.sources["split_kv.block_gigabytes_per_second"] = not_determined_by(attends);
    fit.sources["split_kv.rows"] = fit.sources["split_kv.groups"] = "the kernel: " + fit.samples.kernels;
}

void fit_dropout(GpuFit& fit) {
    for (const auto pass : both_passes) {
        auto& cost = cost_of(fit.machine, pass);
        std::vector<double> found;
        for (const auto* sample : fit.samples.of(SampleKind::dropout, to_string(pass))) {
            const auto plan = fit.samples.plan(*sample);
            const auto seconds_with = [&](double tile) {
                auto machine = fit.machine;
                cost_of(machine, pass).dropout_tile_seconds = tile;
                return predicted_seconds({plan, 0, 0, {}}, pass, machine);
            };
            constexpr double tile = 1e-5;
            const auto without = seconds_with(0);
            found.push_back(tile * (sample->seconds - without) / (seconds_with(tile) - without));
        }
        if (found.empty()) continue;
        cost.dropout_tile_seconds = std::max(0.0, mean_of(found));
        fit.sources[fmt::format("dropout.{}_tile_us", to_string(pass))] =
            fmt::format("measured: attends with dropout, what a tile takes more than without, from {:.2f} to {:.2f}",
                        *std::ranges::min_element(found) * 1e6, *std::ranges::max_element(found) * 1e6);
    }
}

void fit_products(GpuFit& fit) {
    for (const auto* sample : fit.samples.of(SampleKind::product)) {
        fit.machine.matrix_product_flops = sample->seconds;
        fit.sources["matrix_product"] = "measured: products of 8192 x 8192 matrices without rests";
    }
}

}  // namespace ringlab::experiments
