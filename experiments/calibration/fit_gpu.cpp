#include "experiments/calibration/fit_gpu.hpp"

#include "experiments/prediction/predictor.hpp"
#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/clocks.hpp"
#include "sim/play/simulate.hpp"
#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

std::vector<const GpuSample*> wanted(const GpuFit& fit, SampleKind kind, const std::string& call = "") {
    auto found = fit.samples.of(kind, call);
    require(!found.empty(), "the samples hold no {} {}", to_string(kind), call);
    return found;
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

/// Fits all prices of a kernel's pass at once, to attends in short runs and to other timings, and says so.
void fit_kernel(GpuFit& fit, AttentionCost& cost, Pass pass, const std::string& section,
                const std::vector<TimedAttend>& attends, const std::vector<Timing>& others) {
    cost.flops = 0;
    for (const auto& attend : attends)
        if (attend.plan->layout().ranks() == 1) cost.flops = std::max(cost.flops, flops_of(attend, pass));
    auto timings = timings_of(attends, pass, fit.machine);
    timings.insert(timings.end(), others.begin(), others.end());
    for (const auto& [key, why] : fit_prices(cost, timings)) fit.sources[section + "." + key] = why;
    for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys", ".groups"})
        fit.sources[section + key] = "the kernel: " + fit.samples.kernels;
    fit.sources[section + ".teraflops"] = "measured: visible pairs, the best of the timed attends";
}

/// Fits the prices of the machine's own kernel: to attends in short runs, to launches that never rest, and to whole
/// passes, whose attends find other data in caches than single ones do.
void fit_own_kernel(GpuFit& fit, Pass pass) {
    std::vector<Timing> others;
    for (const auto* sample :
         wanted(fit, SampleKind::sustained, pass == Pass::forward ? "forward_kept" : "backward_block"))
        if (sample->rank == 0) others.push_back(timing_without_rests(*sample, fit.samples.plan(*sample), fit.machine));
    for (const auto& one : fit.passes)
        if (one.pass == pass && shows_kernels(one))
            others.push_back({one.seconds, [&fit, &one] { return seconds_in_turn(one, fit.machine); }});
    const auto section = fmt::format("attention.{}", to_string(pass));
    const auto singles = std::ranges::count(fit.attends(pass), false, &TimedAttend::held_out);
    fit.sources[section] =
        fmt::format("fitted to {} attends in short runs and {} launches without rests and passes, all on one GPU",
                    singles, others.size());
    fit_kernel(fit, cost_of(fit.machine, pass), pass, section, fit.attends(pass), others);
    fit.sources[section + ".groups"] = "the kernel, and what of it the GPU has room for";
}

/// Whether a sample is of another kernel than the machine's own, namely this one.
bool is_of(const GpuSample& sample, const AttentionKernel& kernel) {
    return (sample.kind == SampleKind::kernel || sample.kind == SampleKind::kernel_without_rests) &&
           sample.head_dim == kernel.forward.head_dim && sample.value_dim == kernel.forward.value_dim &&
           (sample.soft_cap > 0) == (kernel.scores == sim::Scores::capped);
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
    std::vector<TimedAttend> attends;
    std::vector<Timing> without_rests;
    for (const auto& sample : fit.samples.samples) {
        if (!is_of(sample, kernel)) continue;
        const auto plan = fit.samples.plan(sample);
        auto found = sampled_attend(sample, plan);
        if (!found || found->pass != pass) continue;
        if (sample.kind == SampleKind::kernel_without_rests) {
            without_rests.push_back(timing_without_rests(sample, plan, fit.machine));
        } else {
            found->attend.name += ", " + kernel.name;
            attends.push_back(std::move(found->attend));
        }
    }
    const auto section = fmt::format("kernels.{}.{}", kernel.name, to_string(pass));
    fit_kernel(fit, cost, pass, section, attends, without_rests);
    // What is beside the attends of a pass is as for the main kernel.
    cost.begin_seconds = own.begin_seconds;
    cost.begin_memory_ratio = own.begin_memory_ratio;
    auto& shown = fit.attends(pass);
    shown.insert(shown.end(), attends.begin(), attends.end());
    if (!without_rests.empty()) return;
    cost.power_flops = own.power_flops;
    fit.sources[section + ".power_teraflops"] = "as for the kernel without a cap, or of other dims";
}

/// Fits each other kernel of which there are samples.
void fit_other_kernels(GpuFit& fit) {
    auto& kernels = fit.machine.kernels;
    std::erase_if(kernels, [&](const AttentionKernel& kernel) {
        return std::ranges::none_of(fit.samples.of(SampleKind::kernel, "backward_block"),
                                    [&](const GpuSample* one) { return is_of(*one, kernel); });
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

void collect_attends(GpuFit& fit) {
    constexpr double short_launch = 0.01;  // seconds up to which power does not limit the clock, even after a rest
    for (const auto* sample : wanted(fit, SampleKind::attend)) {
        if (sample->seconds > short_launch) continue;
        if (const auto found = sampled_attend(*sample, fit.samples.plan(*sample)))
            fit.attends(found->pass).push_back(found->attend);
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
    std::vector<double> rows_dkv, sums;
    for (const auto* sample : wanted(fit, SampleKind::attend, "backward_add")) {
        const auto& plan = *fit.samples.plan(*sample);
        const auto& p = plan.problem;
        const auto numbers = p.kv_heads * (p.head_dim + p.value_dim) * 4;
        rows_dkv.push_back(static_cast<double>(p.batch * plan.layout().shard_tokens(0) * numbers));
        sums.push_back(sample->seconds);
    }
    constexpr double add_traffic = 3;  // bytes per byte: both operands are read, one is written
    auto& m = fit.machine;
    m.memory_bytes_per_second = add_traffic / fit_rising_line(rows_dkv, sums).slope;
    const auto sheet = memory_rate_of_data_sheet(fit.samples.device);
    const bool is_above = sheet > 0 && m.memory_bytes_per_second > sheet;
    fit.sources["gpu.memory_gigabytes_per_second"] =
        "fitted: sums of gradients, three times their bytes" +
        (is_above ? fmt::format("; {} of {:.0f}, because L2 holds the shorter ones", above_data_sheet, sheet / 1e9)
                  : "");
    std::map<layouts::OpKind, std::pair<std::vector<double>, std::vector<double>>> timed;
    for (const auto& pass : fit.passes) {
        if (pass.transport != "loopback") continue;
        for (const auto& one : pass.operations) {
            const bool combines = one.op.lane() == layouts::compute_lane && one.op.kind != layouts::OpKind::attend;
            if (!combines || one.op.bytes == 0 || is_in_last_launch(pass, one)) continue;
            timed[one.op.kind].first.push_back(static_cast<double>(one.op.bytes));
            timed[one.op.kind].second.push_back(one.seconds.median);
        }
    }
    const auto line_of = [&](layouts::OpKind kind) {
        const auto found = timed.find(kind);
        require(found != timed.end() && found->second.first.size() >= 2, "the samples hold no {}", to_string(kind));
        auto line = fit_line(found->second.first, found->second.second);
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

}  // namespace

FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport) {
    GpuFit fit{{samples.machine}, samples, transport, executed_passes(samples)};
    collect_attends(fit);
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
