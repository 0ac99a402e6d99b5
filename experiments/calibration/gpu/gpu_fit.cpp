#include "experiments/calibration/gpu/gpu_fit.hpp"

#include "experiments/calibration/fit/machine_file.hpp"
#include "experiments/calibration/fit/timed_attends.hpp"
#include "experiments/calibration/gpu/executed_passes.hpp"
#include "experiments/calibration/gpu/gpu_fit_links.hpp"
#include "experiments/calibration/gpu/gpu_fit_more.hpp"
#include "experiments/calibration/gpu/gpu_kernels.hpp"
#include "experiments/calibration/gpu/gpu_measure.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

/// Bytes per second of a device's memory by its data sheet, 0 if it is not known here.
double memory_rate_of_data_sheet(const std::string& device) {
    if (device.find("H100 80GB HBM3") != device.npos) return 3350e9;
    if (device.find("H200") != device.npos) return 4800e9;
    return 0;
}

class GpuFit {
public:
    GpuFit(const GpuSamples& samples, std::string transport)
        : all_(samples), transport_(std::move(transport)), passes_(executed_passes(samples)) {
        fitted_.machine = samples.machine;
    }

    FittedMachine fit() {
        collect_attends();
        fit_accumulation();
        for (const auto pass : both_passes) fit_pass(pass);
        fit_power(fitted_, all_);
        fit_rotation(fitted_, all_);
        fit_split_kv(fitted_, all_);
        fit_dropout(fitted_, all_);
        fit_products(fitted_, all_);
        fit_links(fitted_, all_, passes_, transport_);
        fit_kernels(fitted_, all_);
        source("host.transfer_issue_us", "not calibrated: one GPU");
        fit_transfer_issue(fitted_, passes_, transport_);
        machine().name = fmt::format("{} {}", all_.gpus, all_.device);
        machine().description = fmt::format("one host; blocks travel by {}; calibrated on parts, none of them a ring",
                                            transport_ == "nccl" ? "NCCL" : "copy engine");
        source("topology", "this machine");
        source("gpu.multiprocessors", "this machine");
        source("cache", "this machine");
        return std::move(fitted_);
    }

private:
    sim::Machine& machine() { return fitted_.machine; }
    std::vector<TimedAttend>& attends(Pass pass) { return pass == Pass::forward ? fitted_.forward : fitted_.backward; }
    void source(const std::string& key, const std::string& text) { fitted_.sources[key] = text; }

    std::vector<const GpuSample*> of(const std::string& kind, const std::string& call = "") const {
        auto found = all_.of(kind, call);
        require(!found.empty(), "the samples hold no {} {}", kind, call);
        return found;
    }

    std::shared_ptr<const Plan> plan(const GpuSample& sample) {
        auto& known = plans_[fmt::format("{} {} {} {} {} {}", sample.kind == "rotation", sample.mask, sample.layout,
                                         sample.algorithm, sample.ranks, sample.tokens_per_rank)];
        if (!known) known = plan_of(sample, all_);
        return known;
    }

    /// Seconds up to which power does not limit the clock of a launch, even after a rest.
    static constexpr double short_launch = 0.01;

    void collect_attends() {
        for (const auto* sample : of("attend")) {
            if (sample->seconds > short_launch) continue;
            if (const auto found = sampled_attend(*sample, plan(*sample)))
                attends(found->pass).push_back(found->attend);
        }
    }

    /// Whether the pass is of ranks that take turns on one GPU, and that keep their rows. A rank that sends rows copies
    /// them in many pieces, which is not a price of kernels.
    static bool shows_kernels(const ExecutedPass& pass) {
        return pass.transport == "loopback" && std::ranges::none_of(pass.operations, [](const auto& one) {
                   return one.op.transfers() && layouts::of_rows(one.op.pool);
               });
    }

    /// Fits all prices of a pass's kernel at once: to attends in short runs, to launches that never rest, and to whole
    /// passes, whose attends find other data in caches than single ones do.
    void fit_pass(Pass pass) {
        auto& cost = cost_of(machine(), pass);
        cost.flops = 0;
        for (const auto& attend : attends(pass))
            if (attend.plan->layout().ranks() == 1) cost.flops = std::max(cost.flops, flops_of(attend, pass));
        auto timings = timings_of(attends(pass), pass, machine());
        const auto singles = timings.size();
        for (const auto* sample : of("sustained", pass == Pass::forward ? "forward_kept" : "backward_block"))
            if (sample->rank == 0) timings.push_back(timing_without_rests(*sample, plan(*sample), machine()));
        for (const auto& one : passes_)
            if (one.pass == pass && shows_kernels(one))
                timings.push_back({one.seconds, [this, &one] { return seconds_in_turn(one, machine()); }});
        const auto section = fmt::format("attention.{}", to_string(pass));
        source(section,
               fmt::format("fitted to {} attends in short runs and {} launches without rests and passes, all on "
                           "one GPU",
                           singles, timings.size() - singles));
        for (const auto& [key, why] : fit_prices(cost, timings)) source(fmt::format("{}.{}", section, key), why);
        for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys"})
            source(section + key, "the kernel: " + all_.kernels);
        source(section + ".groups", "the kernel, and what of it the GPU has room for");
        source(section + ".teraflops", "measured: visible pairs, the best of the timed attends");
    }

    static double bytes_of_rows(const Plan& plan, std::int64_t numbers) {
        return static_cast<double>(plan.problem.batch * plan.layout().shard_tokens(0) * numbers);
    }

    /// Whether the launch that rounds results also makes this sum, so that its own time is next to nothing: a whole
    /// gradient of the rank's keys, at the end of the pass.
    static bool is_in_last_launch(const ExecutedPass& pass, const ExecutedOperation& sum) {
        const auto sums_own_keys = [&](const layouts::Op& op) {
            return op.kind == layouts::OpKind::add && op.pool == layouts::Pool::dkv && op.slot() == 0 &&
                   op.part == pass.plan->schedule(pass.pass)->part(sum.rank,
                                                                   {0, static_cast<int>(pass.plan->problem.kv_heads)});
        };
        return sums_own_keys(sum.op) && std::ranges::none_of(pass.operations, [&](const auto& other) {
                   return other.rank == sum.rank && other.begin > sum.begin && !sums_own_keys(other.op);
               });
    }

    /// Fits memory bandwidth to sums of two gradients, whose traffic is counted. Then fits sums, merges and copies to
    /// those that the executor launched.
    void fit_accumulation() {
        std::vector<double> rows_dkv, sums;
        for (const auto* sample : of("attend", "backward_add")) {
            const auto& one = *plan(*sample);
            rows_dkv.push_back(
                bytes_of_rows(one, one.problem.kv_heads * (one.problem.head_dim + one.problem.value_dim) * 4));
            sums.push_back(sample->seconds);
        }
        constexpr double add_traffic = 3;  // bytes per byte: both operands are read, one is written
        auto& m = machine();
        m.memory_bytes_per_second = add_traffic / fit_rising_line(rows_dkv, sums).slope;
        const auto sheet = memory_rate_of_data_sheet(all_.device);
        const bool is_above = sheet > 0 && m.memory_bytes_per_second > sheet;
        source("gpu.memory_gigabytes_per_second",
               "fitted: sums of gradients, three times their bytes" +
                   (is_above ? fmt::format("; {} of {:.0f}, because L2 holds the shorter ones", above_data_sheet,
                                           sheet / 1e9)
                             : ""));
        std::map<layouts::OpKind, std::pair<std::vector<double>, std::vector<double>>> timed;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback") continue;
            for (const auto& one : pass.operations) {
                const bool combines = one.op.lane() == layouts::compute_lane && one.op.kind != layouts::OpKind::attend;
                if (!combines || one.op.bytes == 0 || is_in_last_launch(pass, one)) continue;
                timed[one.op.kind].first.push_back(static_cast<double>(one.op.bytes));
                timed[one.op.kind].second.push_back(one.seconds);
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
        source("accumulate", "fitted to passes of ranks that take turns on one GPU");
        for (const auto& [line, key] : {std::pair(add, "add"), {copy, "copy"}})
            if (!line.has_slope)
                source(fmt::format("accumulate.{}_memory_ratio", key), not_determined_by("passes of one size"));
        if (!timed.contains(layouts::OpKind::merge))
            source("accumulate.merge_memory_ratio",
                   "counted: per byte of a 16-bit partial, 1 read, and 2 read and 2 written of the fp32 result");
    }

    const GpuSamples& all_;
    const std::string transport_;
    const std::vector<ExecutedPass> passes_;
    FittedMachine fitted_;
    std::map<std::string, std::shared_ptr<const Plan>> plans_;
};

}  // namespace

FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport) {
    return GpuFit(samples, transport).fit();
}

}  // namespace ringlab::experiments
