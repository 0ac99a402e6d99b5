#include "experiments/calibration/fit_gpu.hpp"

#include "experiments/calibration/least_squares.hpp"
#include "experiments/prediction/predictor.hpp"
#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/clocks.hpp"
#include "sim/play/simulate.hpp"
#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using sim::AttentionCost;
using sim::AttentionKernel;

/// Bytes per second of a device's memory by its data sheet, 0 if it is not known here.
double memory_rate_of_data_sheet(const std::string& device) {
    if (device.find("H100 80GB HBM3") != device.npos) return 3350e9;
    if (device.find("H200") != device.npos) return 4800e9;
    return 0;
}

/// The clock that power allows a GPU that computes for so long within a pass, at the clock of the calibration.
double clock_of(layouts::Picoseconds computing, layouts::Picoseconds pass, double flop, const sim::AttentionCost& cost,
                const sim::SimOptions& options) {
    sim::Prediction turns;
    turns.ranks.emplace_back().compute = computing;
    turns.makespan = pass;
    const double at_calibration = 1;
    return sim::clocks_within_power(turns, {&at_calibration, 1}, {&flop, 1}, {&cost.power_flops, 1}, options).front();
}

/// Seconds that the cost model predicts for a pass of ranks that take turns on one GPU.
double seconds_in_turn(const ExecutedPass& pass, const sim::Machine& machine) {
    const auto& schedule = pass.schedule();
    auto apart = machine;  // each rank has a GPU to itself, and no message costs anything
    apart.gpus_per_host = apart.nics_per_host = pass.ranks();
    apart.power_of_gpus.clear();
    apart.inside_host = {};
    sim::SimOptions options;
    options.clock = sim::Clock::calibrated;
    const auto found = sim::simulate(schedule, apart, options);
    sim::CostModel cost(schedule, apart, options);
    layouts::Picoseconds computing = 0, around = 0;
    double flop = 0;
    for (int rank = 0; rank < pass.ranks(); ++rank) {
        computing += found.ranks[static_cast<std::size_t>(rank)].compute;
        around += cost.begin_of_pass(rank) + cost.end_of_pass(rank);
    }
    for (const auto& one : pass.operations)
        if (one.op.kind == layouts::OpKind::attend) flop += cost.computed_flop(one.op);
    repeat(options, {pass.period, pass.seconds, pass.forward_before});
    const auto clock = clock_of(computing, computing + around, flop, attention_cost(machine, schedule), options);
    return layouts::to_seconds(around) + layouts::to_seconds(computing) / clock;
}

/// An attend of one rank that is repeated without rests, at the clock that power then allows. `machine` must outlive
/// the timing.
Timing timing_without_rests(const GpuSample& sample, std::shared_ptr<const Plan> plan, const sim::Machine& machine) {
    const auto found = sampled_attend(sample, std::move(plan)).value();
    return {sample.seconds, [found, &machine] {
                const auto& schedule = *found.attend.plan->schedule(found.pass);
                const sim::SimOptions options;
                auto ops = schedule.ops(0);
                const auto flop = sim::CostModel(schedule, machine, options).computed_flop(*ops.next());
                const auto alone = predicted_seconds(found.attend, found.pass, machine);
                const auto time = layouts::checked_picoseconds(alone);
                return alone / clock_of(time, time, flop, attention_cost(machine, schedule), options);
            }};
}

/// Whether the pass is of ranks that take turns on one GPU, and that keep their rows. A rank that sends rows copies
/// them in many pieces, which is not a price of kernels.
bool shows_kernels(const ExecutedPass& pass) {
    return pass.transport == "loopback" && std::ranges::none_of(pass.operations, [](const auto& one) {
               return one.op.transfers() && layouts::of_rows(one.op.pool);
           });
}

/// Whether a sample is of this kernel; null: of the machine's own.
bool is_of(const GpuSample& sample, const AttentionKernel* kernel) {
    if (!kernel || sample.head_dim == 0) return !kernel && sample.head_dim == 0;
    return sample.head_dim == kernel->forward.head_dim && sample.value_dim == kernel->forward.value_dim &&
           (sample.soft_cap > 0) == (kernel->scores == sim::Scores::capped);
}

/// What was timed of a pass of one kernel.
struct KernelTimings {
    std::vector<TimedAttend> attends;
    std::vector<Timing> without_rests;
};

/// Of the machine's own kernel without launches that are so long that power limits the clock, even after a rest; other
/// kernels have no such samples.
KernelTimings timings_of(const GpuFit& fit, Pass pass, const AttentionKernel* kernel) {
    constexpr double short_launch = 0.01;  // seconds
    KernelTimings timings;
    for (const auto& sample : fit.samples.samples) {
        const bool rests = sample.kind == SampleKind::attend;
        if (!is_of(sample, kernel) || (!rests && sample.kind != SampleKind::sustained)) continue;
        const auto plan = fit.samples.plan(sample);
        auto found = sampled_attend(sample, plan);
        if (!found || found->pass != pass) continue;
        if (kernel) found->attend.name += ", " + kernel->name;
        if (!rests && sample.rank == 0)
            timings.without_rests.push_back(timing_without_rests(sample, plan, fit.machine));
        else if (rests && (kernel || sample.seconds <= short_launch))
            timings.attends.push_back(std::move(found->attend));
    }
    return timings;
}

/// Fits all prices of a kernel's pass at once, and says so.
void fit_kernel(GpuFit& fit, AttentionCost& cost, Pass pass, const std::string& section, KernelTimings timed) {
    cost.flops = 0;
    for (const auto& attend : timed.attends)
        if (attend.plan->layout().ranks() == 1) cost.flops = std::max(cost.flops, flops_of(attend, pass));
    auto timings = timings_of(timed.attends, pass, fit.machine);
    timings.insert(timings.end(), timed.without_rests.begin(), timed.without_rests.end());
    for (const auto& [key, why] : fit_prices(cost, timings)) fit.sources[section + "." + key] = why;
    for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys", ".groups"})
        fit.sources[section + key] = "the kernel: " + fit.samples.kernels;
    fit.sources[section + ".teraflops"] = "measured: visible pairs, the best of the timed attends";
    std::ranges::move(timed.attends, std::back_inserter(fit.attends(pass)));
}

/// Fits the prices of the machine's own kernel: to attends in short runs, to launches that never rest, and to whole
/// passes, whose attends find other data in caches than single ones do.
void fit_own_kernel(GpuFit& fit, Pass pass) {
    auto timed = timings_of(fit, pass, nullptr);
    require(!timed.attends.empty() && !timed.without_rests.empty(),
            "the samples hold no {} attends, with and without rests", to_string(pass));
    for (const auto& one : fit.passes)
        if (one.pass == pass && shows_kernels(one))
            timed.without_rests.push_back({one.seconds, [&fit, &one] { return seconds_in_turn(one, fit.machine); }});
    const auto section = fmt::format("attention.{}", to_string(pass));
    fit.sources[section] =
        fmt::format("fitted to {} attends in short runs and {} launches without rests and passes, all on one GPU",
                    std::ranges::count(timed.attends, false, &TimedAttend::held_out), timed.without_rests.size());
    fit_kernel(fit, cost_of(fit.machine, pass), pass, section, std::move(timed));
    fit.sources[section + ".groups"] = "the kernel, and what of it the GPU has room for";
}

/// The prices of `base`, with the dims, work tiles and clusters of `own`.
AttentionCost with_own(const AttentionCost& base, const AttentionCost& own) {
    auto cost = base;
    cost.head_dim = own.head_dim;
    cost.value_dim = own.value_dim;
    cost.work_tile = own.work_tile;
    cost.tile_rows = own.tile_rows;
    cost.tile_keys = own.tile_keys;
    cost.groups = own.groups;
    return cost;
}

/// Fits a pass of another kernel. Prices that the samples do not show are those of the machine's own kernel.
void fit_other_kernel(GpuFit& fit, AttentionKernel& kernel, Pass pass) {
    const auto& own = fit.machine.attention(pass);
    auto& cost = cost_of(kernel, pass);
    cost = with_own(own, cost);
    auto timed = timings_of(fit, pass, &kernel);
    const bool shows_power = !timed.without_rests.empty();
    const auto section = fmt::format("kernels.{}.{}", kernel.name, to_string(pass));
    fit_kernel(fit, cost, pass, section, std::move(timed));
    // What is beside the attends of a pass is as for the main kernel.
    cost.begin_seconds = own.begin_seconds;
    cost.begin_memory_ratio = own.begin_memory_ratio;
    if (shows_power) return;
    cost.power_flops = own.power_flops;
    fit.sources[section + ".power_teraflops"] = "as for the kernel without a cap, or of other dims";
}

/// Fits each other kernel of which there are samples.
void fit_other_kernels(GpuFit& fit) {
    auto& kernels = fit.machine.kernels;
    std::erase_if(kernels, [&](const AttentionKernel& kernel) {
        return std::ranges::none_of(fit.samples.samples, [&](const auto& one) { return is_of(one, &kernel); });
    });
    std::ranges::sort(kernels, {}, [](const AttentionKernel& kernel) {
        return std::tuple(kernel.forward.head_dim, kernel.forward.value_dim, kernel.scores);
    });
    for (auto& kernel : kernels) {
        fit.sources["kernels." + kernel.name] =
            "fitted to attends of one GPU in short runs, as those of the kernel above";
        for (const auto pass : both_passes) fit_other_kernel(fit, kernel, pass);
        fit.sources["kernels." + kernel.name + ".scores"] = "the kernel: " + fit.samples.kernels;
    }
    // Power was timed without a cap.
    for (auto& kernel : kernels) {
        if (kernel.scores == sim::Scores::plain) continue;
        for (const auto& plain : kernels)
            if (plain.scores == sim::Scores::plain && plain.forward.head_dim == kernel.forward.head_dim &&
                plain.forward.value_dim == kernel.forward.value_dim)
                for (const auto pass : both_passes)
                    cost_of(kernel, pass).power_flops = plain.attention(pass).power_flops;
    }
}

/// Whether the launch that rounds results also makes this sum, so that its own time is next to nothing: a whole
/// gradient of the rank's keys, at the end of the pass.
bool is_in_last_launch(const ExecutedPass& pass, const ExecutedOperation& sum) {
    const auto sums_own_keys = [&](const layouts::Op& op) {
        return op.kind == layouts::OpKind::add && op.pool == layouts::Pool::dkv && op.slot() == 0 &&
               op.part == pass.schedule().part(sum.rank, {0, static_cast<int>(pass.plan->problem.kv_heads)});
    };
    return sums_own_keys(sum.op) && std::ranges::none_of(pass.operations, [&](const auto& other) {
               return other.rank == sum.rank && other.begin > sum.begin && !sums_own_keys(other.op);
           });
}

/// Fits memory bandwidth to sums of two gradients, whose traffic is counted. Then fits sums, merges and copies to
/// those that the executor launched.
void fit_accumulation(GpuFit& fit) {
    Moved sums;
    for (const auto* sample : fit.samples.of(SampleKind::attend, "backward_add")) {
        const auto& plan = *fit.samples.plan(*sample);
        const auto& p = plan.problem;
        const auto numbers = p.kv_heads * (p.head_dim + p.value_dim) * 4;
        sums.add(static_cast<double>(p.batch * plan.layout().shard_tokens(0) * numbers), sample->seconds);
    }
    constexpr double add_traffic = 3;  // bytes per byte: both operands are read, one is written
    auto& m = fit.machine;
    m.memory_bytes_per_second = add_traffic / sums.rising_line().slope;
    const auto sheet = memory_rate_of_data_sheet(fit.samples.device);
    const bool is_above = sheet > 0 && m.memory_bytes_per_second > sheet;
    fit.sources["gpu.memory_gigabytes_per_second"] =
        "fitted: sums of gradients, three times their bytes" +
        (is_above ? fmt::format("; {} of {:.0f}, because L2 holds the shorter ones", above_data_sheet, sheet / 1e9)
                  : "");
    std::map<layouts::OpKind, Moved> timed;
    for (const auto& pass : fit.passes) {
        if (pass.transport != "loopback") continue;
        for (const auto& one : pass.operations) {
            const bool combines = one.op.lane() == layouts::compute_lane && one.op.kind != layouts::OpKind::attend;
            if (!combines || one.op.bytes == 0 || is_in_last_launch(pass, one)) continue;
            timed[one.op.kind].add(static_cast<double>(one.op.bytes), one.seconds.median);
        }
    }
    const auto line_of = [&](layouts::OpKind kind) {
        const auto found = timed.find(kind);
        require(found != timed.end() && found->second.bytes.size() >= 2, "the samples hold no {}", to_string(kind));
        auto line = found->second.line();
        line.slope *= m.memory_bytes_per_second;
        return line;
    };
    const auto add = line_of(layouts::OpKind::add), copy = line_of(layouts::OpKind::copy);
    m.accumulate_launch_seconds = add.constant;
    m.add_memory_ratio = add.slope;
    m.merge_memory_ratio = timed.contains(layouts::OpKind::merge) ? line_of(layouts::OpKind::merge).slope : 5;
    m.copy_memory_ratio = copy.slope;
    fit.sources["accumulate"] = "fitted to passes of ranks that take turns on one GPU";
    for (const auto& [line, key] : {std::pair(add, "add"), {copy, "copy"}})
        if (!line.has_slope)
            fit.sources[fmt::format("accumulate.{}_memory_ratio", key)] = not_determined_by("passes of one size");
    if (!timed.contains(layouts::OpKind::merge))
        fit.sources["accumulate.merge_memory_ratio"] =
            "counted: per byte of a 16-bit partial, 1 read, and 2 read and 2 written of the fp32 result";
}

double mean_of(const std::vector<double>& values) {
    double sum = 0;
    for (const auto value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

layouts::Op first_attend(const layouts::Schedule& schedule) {
    auto ops = schedule.ops(0);
    while (const auto* op = ops.next())
        if (op->kind == layouts::OpKind::attend) return *op;
    fail("a schedule without attends");
}

/// Fits the power of each GPU relative to the first: where power limits clocks, time goes as its cube root.
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

}  // namespace

FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport) {
    GpuFit fit{{samples.machine}, samples, transport, executed_passes(samples)};
    fit_accumulation(fit);
    for (const auto pass : both_passes) fit_own_kernel(fit, pass);
    fit_power(fit);
    fit_rotation(fit);
    fit_split_kv(fit);
    fit_dropout(fit);
    fit_products(fit);
    fit_links(fit);
    fit_other_kernels(fit);
    fit.sources["host.transfer_issue_us"] = "not calibrated: one GPU";
    fit_transfer_issue(fit);
    fit.machine.name = fmt::format("{} {}", samples.gpus, samples.device);
    fit.machine.description = fmt::format("one host; blocks travel by {}; calibrated on parts, none of them a ring",
                                          transport == "nccl" ? "NCCL" : "copy engine");
    for (const auto* section : {"topology", "gpu.multiprocessors", "cache"}) fit.sources[section] = "this machine";
    return std::move(static_cast<FittedMachine&>(fit));
}

}  // namespace ringlab::experiments
