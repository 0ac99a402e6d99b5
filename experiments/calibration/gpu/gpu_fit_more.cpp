#include "experiments/calibration/gpu/gpu_fit_more.hpp"

#include "experiments/calibration/fit/least_squares.hpp"
#include "experiments/calibration/fit/machine_file.hpp"
#include "experiments/calibration/gpu/gpu_fit_links.hpp"
#include "experiments/calibration/gpu/gpu_measure.hpp"
#include "sim/cost/cost.hpp"
#include "sim/cost/split_kv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ringlab::experiments {
namespace {

using layouts::OpKind;
using layouts::Pass;

constexpr Pass both_passes[] = {Pass::forward, Pass::backward};

std::vector<const GpuSample*> samples_of(const GpuSamples& all, const std::string& kind, const std::string& call = "") {
    std::vector<const GpuSample*> found;
    for (const auto& sample : all.samples)
        if (sample.kind == kind && (call.empty() || sample.call == call)) found.push_back(&sample);
    return found;
}

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

/// What all attends of a pass of ranks that take turns on one GPU are predicted to take.
double predicted_attends(const ExecutedPass& pass, sim::Machine machine) {
    machine.gpus_per_host = machine.nics_per_host = 1 << 16;  // ranks take turns on one
    machine.power_of_gpus.clear();
    // Backward launches end where an attend waits for one of their own, as where transfers are kernels.
    if (pass.pass == Pass::backward) machine.inside_host.sms_per_channel = 1e-9;
    const sim::SimOptions options;
    sim::CostModel model(*pass.plan->schedule(pass.pass), machine, options);
    double seconds = 0;
    for (const auto& each : pass.operations)
        if (each.op.kind == OpKind::attend) seconds += layouts::to_seconds(model.compute(each.op, each.rank));
    return seconds;
}

/// What they take, over what they are predicted to.
double longer(const ExecutedPass& pass, const sim::Machine& machine) {
    double measured = 0;
    for (const auto& each : pass.operations)
        if (each.op.kind == OpKind::attend) measured += each.seconds;
    return measured / predicted_attends(pass, machine);
}

/// How much of the time of a pass's attends goes into rows that are read again.
double share_rereading(const ExecutedPass& pass, const sim::Machine& machine) {
    if (pass.pass == Pass::forward) return 0;
    auto free = machine;
    free.backward.l2_miss_seconds = 0;
    return predicted_attends(pass, machine) / predicted_attends(pass, free) - 1;
}

/// Of fewer passes none tells what is the rule.
constexpr std::size_t enough_ratios = 3;

/// Sorts them.
double middle_of(std::vector<double>& ratios) {
    std::ranges::sort(ratios);
    return (ratios[(ratios.size() - 1) / 2] + ratios[ratios.size() / 2]) / 2;
}

constexpr double little_rereading = 0.01;

/// A pass of ranks that take turns on one GPU, and that of a ring with as much to do, whose launches are of one block
/// and read no rows again: power slows down both.
struct BesideRing {
    const ExecutedPass *pass, *ring;

    double longer(const sim::Machine& machine) const {
        return experiments::longer(*pass, machine) / experiments::longer(*ring, machine);
    }
};

std::vector<BesideRing> passes_beside_rings(const std::vector<ExecutedPass>& passes, const sim::Machine& machine,
                                            std::initializer_list<const char*> algorithms, Pass pass) {
    std::vector<BesideRing> found;
    constexpr std::int64_t enough = 2048;  // below, launches are the most of it
    for (const auto& one : passes) {
        const bool is_asked = std::ranges::find(algorithms, one.algorithm()) != algorithms.end();
        if (!is_asked || one.transport != "loopback" || one.pass != pass) continue;
        if (one.plan->layout().shard_tokens(0) < enough) continue;
        const auto ring = std::ranges::find_if(passes, [&](const auto& other) {
            return other.algorithm() == "ring" && other.transport == one.transport && other.pass == pass &&
                   other.ranks() == one.ranks() && other.plan->problem.tokens == one.plan->problem.tokens &&
                   other.plan->mask().name() == one.plan->mask().name() &&
                   other.plan->layout().name() == one.plan->layout().name();
        });
        if (ring != passes.end() && share_rereading(*ring, machine) < little_rereading) found.push_back({&one, &*ring});
    }
    return found;
}

}  // namespace

void fit_power(FittedMachine& fitted, const GpuSamples& samples) {
    auto& powers = fitted.machine.power_of_gpus;
    const auto sustained = samples_of(samples, "sustained");
    double least = 1, most = 1;
    for (int gpu = 1; gpu < samples.gpus; ++gpu) {
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
        fitted.sources["power"] =
            fmt::format("measured: (time of the first GPU / its own)^3 of attends without rests, from {:.3f} to {:.3f}",
                        least, most);
}

void fit_joined(FittedMachine& fitted, const std::vector<ExecutedPass>& passes) {
    for (const auto pass : both_passes) {
        std::vector<double> ratios;
        for (const auto& both : passes_beside_rings(passes, fitted.machine, {"pull", "joined-ring"}, pass))
            if (share_rereading(*both.pass, fitted.machine) < little_rereading)
                ratios.push_back(both.longer(fitted.machine));
        auto& cost = pass == Pass::forward ? fitted.machine.forward : fitted.machine.backward;
        auto& source = fitted.sources[fmt::format("joined_launches.{}_ratio", to_string(pass))];
        source = fmt::format("as those of attends one by one: {} passes are too few to fit it to", ratios.size());
        if (ratios.size() < enough_ratios) continue;
        cost.fused_ratio = middle_of(ratios);
        source = fmt::format(
            "fitted: median of {} passes of ranks that take turns on one GPU, from {:.3f} to {:.3f}, "
            "against those of attends one by one",
            ratios.size(), ratios.front(), ratios.back());
    }
}

void fit_rotation(FittedMachine& fitted, const GpuSamples& samples) {
    auto& m = fitted.machine;
    std::int64_t largest = 0;
    for (const auto* sample : samples_of(samples, "rotation")) largest = std::max(largest, sample->tokens_per_rank);
    for (const auto pass : both_passes)
        for (const auto* sample : samples_of(samples, "rotation", to_string(pass))) {
            if (sample->tokens_per_rank < largest) continue;
            const auto plan = plan_of(*sample, samples);
            const auto& schedule = *plan->schedule(pass);
            const auto moving = std::max(0.0, sample->seconds - 2 * m.accumulate_launch_seconds);
            (pass == Pass::forward ? m.rotate_memory_ratio : m.rotate_back_memory_ratio) =
                moving * m.memory_bytes_per_second / sim::rotated_bytes(schedule, schedule.layout().shard_tokens(0));
        }
    fitted.sources["rotation"] =
        fmt::format("measured: rotations of q and k, and of dq and dk, of {} tokens, beside two launches", largest);
}

/// Whether reading all of K and V or what one block reads takes longer depends on the rates, so both are found in
/// turns.
void fit_few_rows(FittedMachine& fitted, const GpuSamples& samples) {
    auto& few = fitted.machine.split_kv;
    const auto timed = samples_of(samples, "few_rows");
    if (few.rows == 0 || timed.size() < 3) return;
    constexpr double first_guess = 3e12, of_a_block = 60e9, endless = std::numeric_limits<double>::infinity();
    few.bytes_per_second = first_guess;
    few.block_bytes_per_second = of_a_block;
    few.launch_seconds = 0;
    struct Timing {
        double seconds, by_memory, by_block;  // measured; and predicted with rates of 1 B/s, without a launch
    };
    std::vector<Timing> timings;
    for (const auto* sample : timed) {
        const auto plan = plan_of(*sample, samples);
        const auto attend = first_attend(*plan->forward);
        const auto seconds_with = [&](double all, double block) {
            auto machine = fitted.machine;
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
            const bool by_memory = one.by_memory / few.bytes_per_second > one.by_block / few.block_bytes_per_second;
            matrix.insert(matrix.end(), {1 / one.seconds, by_memory ? one.by_memory / one.seconds : 0,
                                         by_memory ? 0 : one.by_block / one.seconds});
            ones.push_back(1);
        }
        const auto found = nonnegative_least_squares(matrix, ones, 3).values;
        few.launch_seconds = found[0];
        if (found[1] > 0) few.bytes_per_second = 1 / found[1], knows_memory = true;
        if (found[2] > 0) few.block_bytes_per_second = 1 / found[2], knows_block = true;
    }
    // What takes no time has no end to its rate.
    if (!knows_memory) few.bytes_per_second = endless;
    if (!knows_block) few.block_bytes_per_second = endless;
    double most = 0;
    for (const auto* sample : timed) {
        const auto plan = plan_of(*sample, samples);
        const auto predicted = sim::split_kv_seconds(*plan->forward, first_attend(*plan->forward), fitted.machine);
        most = std::max(most, std::abs(predicted / sample->seconds - 1));
    }
    const auto attends = fmt::format("{} attends of 1 and 16 rows, the last of up to 256Ki tokens", timed.size());
    fitted.sources["few_rows"] = fmt::format("fitted to {}, within {:.0f} %", attends, 100 * most);
    if (!knows_memory) fitted.sources["few_rows.gigabytes_per_second"] = not_determined_by(attends);
    if (!knows_block) fitted.sources["few_rows.block_gigabytes_per_second"] = not_determined_by(attends);
    fitted.sources["few_rows.rows"] = fitted.sources["few_rows.groups"] = "the kernel: " + samples.kernels;
}

void fit_dropout(FittedMachine& fitted, const GpuSamples& samples) {
    for (const auto pass : both_passes) {
        auto& cost = pass == Pass::forward ? fitted.machine.forward : fitted.machine.backward;
        std::vector<double> found;
        for (const auto* sample : samples_of(samples, "dropout", to_string(pass))) {
            const auto plan = plan_of(*sample, samples);
            const auto seconds_with = [&](double tile) {
                auto machine = fitted.machine;
                (pass == Pass::forward ? machine.forward : machine.backward).dropout_tile_seconds = tile;
                return predicted_seconds({plan, 0, 0, {}}, pass, machine);
            };
            constexpr double tile = 1e-5;
            const auto without = seconds_with(0);
            found.push_back(tile * (sample->seconds - without) / (seconds_with(tile) - without));
        }
        if (found.empty()) continue;
        cost.dropout_tile_seconds = std::max(0.0, mean_of(found));
        fitted.sources[fmt::format("dropout.{}_tile_us", to_string(pass))] =
            fmt::format("measured: attends with dropout, what a tile takes more than without, from {:.2f} to {:.2f}",
                        *std::ranges::min_element(found) * 1e6, *std::ranges::max_element(found) * 1e6);
    }
}

void fit_products(FittedMachine& fitted, const GpuSamples& samples) {
    for (const auto* sample : samples_of(samples, "product")) {
        fitted.machine.matrix_product_flops = sample->seconds;
        fitted.sources["matrix_product"] = "measured: products of 8192 x 8192 matrices without rests";
    }
}

}  // namespace ringlab::experiments
