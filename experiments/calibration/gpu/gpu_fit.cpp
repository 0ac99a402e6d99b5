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
using AttendPosition = sim::TileModel::AttendPosition;

class GpuFit {
public:
    GpuFit(const GpuSamples& samples, std::string transport)
        : all_(samples), transport_(std::move(transport)), passes_(executed_passes(samples)) {
        fitted_.machine = samples.machine;
    }

    FittedMachine fit() {
        collect_attends();
        for (const auto pass : {Pass::forward, Pass::backward}) {
            zeros_[pass] = fit_attention(machine(), pass, attends(pass));
            add_seam(pass);
        }
        fit_accumulation();
        fit_surroundings();
        fit_rates();
        fit_clocks();
        fit_power(fitted_, all_);
        fit_rotation(fitted_, all_);
        fit_few_rows(fitted_, all_);
        fit_dropout(fitted_, all_);
        fit_products(fitted_, all_);
        fit_host(fitted_, passes_);
        fit_links(fitted_, all_, passes_, transport_);
        fit_kernels(fitted_, all_, longer_);
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
    sim::AttentionCost& cost(Pass pass) { return pass == Pass::forward ? machine().forward : machine().backward; }
    std::vector<TimedAttend>& attends(Pass pass) { return pass == Pass::forward ? fitted_.forward : fitted_.backward; }
    void source(const std::string& key, const std::string& text) { fitted_.sources[key] = text; }

    std::vector<const GpuSample*> of(const std::string& kind, const std::string& call = "") const {
        std::vector<const GpuSample*> found;
        for (const auto& sample : all_.samples)
            if (sample.kind == kind && (call.empty() || sample.call == call)) found.push_back(&sample);
        require(!found.empty(), "the samples hold no {} {}", kind, call);
        return found;
    }

    std::shared_ptr<const Plan> plan(const GpuSample& sample) {
        auto& known = plans_[fmt::format("{} {} {} {} {} {}", sample.kind == "rotation", sample.mask, sample.layout,
                                         sample.algorithm, sample.ranks, sample.tokens_per_rank)];
        if (!known) known = plan_of(sample, all_);
        return known;
    }

    /// Tokens of a rank, and seconds of a launch, up to which power does not limit the clock. Longer launches are
    /// slowed down by power even after a rest.
    static constexpr std::int64_t short_pass = 4096;
    static constexpr double short_launch = 0.01;

    void collect_attends() {
        seam_ = gap_between_kernels() - cost_of_timing();
        for (const auto* sample : of("attend")) {
            if (sample->seconds > short_launch) continue;
            if (const auto found = sampled_attend(*sample, plan(*sample)))
                attends(found->pass).push_back(found->attend);
        }
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.algorithm() != "ring") continue;
            if (pass.plan->layout().shard_tokens(0) > short_pass) continue;
            const bool held_out = pass.ranks() > 1 && pass.plan->mask().name() == "full";
            for (const auto& [op, rank, posted, begin, seconds] : pass.operations) {
                if (op.kind != layouts::OpKind::attend || pass.transfers_between(begin, begin + seconds)) continue;
                const bool backward = pass.pass == Pass::backward;
                in_passes_[pass.pass].push_back({pass.plan, rank, op.part.block,
                                                 backward ? AttendPosition{} : AttendPosition{op.begins, op.ends},
                                                 seconds + seam_, held_out, "in a pass"});
            }
        }
    }

    /// Adds to the launch time what attends take longer inside a pass. There they find other data in caches and begin
    /// after the gap between two kernels. This costs about the same time for every attend, whatever its length.
    void add_seam(Pass pass) {
        std::vector<double> more;
        auto& executed = in_passes_[pass];
        for (const auto& attend : executed)
            if (!attend.held_out) more.push_back(attend.seconds - predicted_seconds(attend, pass, machine()));
        require(!more.empty(), "the samples hold no short pass of one rank");
        const auto longer = std::max(0.0, median_of(std::move(more)));
        cost(pass).launch_seconds += longer;
        longer_[pass] = longer;
        for (auto& attend : attends(pass)) attend.seconds += longer;
        attends(pass).insert(attends(pass).end(), executed.begin(), executed.end());
        source(fmt::format("attention.{}.launch_us", to_string(pass)),
               fmt::format("fitted to attends of one GPU in short runs, and {:.1f} us that they take longer in a pass",
                           longer * 1e6));
    }

    /// Median seconds from the end of one kernel to the begin of the next on the same stream.
    double gap_between_kernels() const {
        std::vector<double> gaps;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.algorithm() != "ring") continue;
            const auto computing = pass.computing();
            for (std::size_t i = 1; i < computing.size(); ++i)
                gaps.push_back(computing[i].begin - computing[i - 1].begin - computing[i - 1].seconds);
        }
        require(!gaps.empty(), "the samples hold no pass of ranks that take turns");
        return std::max(0.0, median_of(std::move(gaps)));
    }

    /// Seconds per compute operation by which a pass takes longer if every operation is timed.
    double cost_of_timing() const {
        std::vector<double> more;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.algorithm() != "ring" || pass.ranks() == 1) continue;
            if (pass.pass != Pass::forward || pass.plan->layout().shard_tokens(0) > short_pass) continue;
            const auto computing = pass.computing();
            more.push_back((computing.back().begin + computing.back().seconds - pass.seconds) /
                           static_cast<double>(computing.size()));
        }
        return more.empty() ? 0 : std::max(0.0, median_of(std::move(more)));
    }

    static double bytes_of_rows(const Plan& plan, std::int64_t numbers) {
        return static_cast<double>(plan.problem.batch * plan.layout().shard_tokens(0) * numbers);
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
        source("gpu.memory_gigabytes_per_second", "fitted: sums of gradients, three times their bytes");
        std::map<layouts::OpKind, std::pair<std::vector<double>, std::vector<double>>> timed;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback") continue;
            for (const auto& one : pass.operations) {
                const bool combines = one.op.lane() == layouts::compute_lane && one.op.kind != layouts::OpKind::attend;
                if (!combines || one.op.bytes == 0) continue;
                timed[one.op.kind].first.push_back(static_cast<double>(one.op.bytes));
                timed[one.op.kind].second.push_back(one.seconds + seam_);
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
        m.copy_launch_seconds = copy.constant;
        m.copy_memory_ratio = copy.slope;
        source("accumulate", "fitted to passes of ranks that take turns on one GPU");
        for (const auto& [line, key] : {std::pair(add, "add"), {copy, "copy"}})
            if (!line.has_slope)
                source(fmt::format("accumulate.{}_memory_ratio", key), not_determined_by("passes of one size"));
        if (!timed.contains(layouts::OpKind::merge))
            source("accumulate.merge_memory_ratio",
                   "counted: per byte of a 16-bit partial, 1 read, and 2 read and 2 written of the fp32 result");
    }

    /// Fits the time before the first attend of a pass, and after the last one, to passes of one rank.
    void fit_surroundings() {
        for (const auto pass : {Pass::forward, Pass::backward}) {
            std::vector<double> rows_q, rows_all, begins, ends;
            for (const auto& one : passes_) {
                if (one.transport != "loopback" || one.ranks() > 1 || one.pass != pass) continue;
                const auto& problem = one.plan->problem;
                const auto q = problem.query_heads * problem.head_dim * layouts::bytes_of(problem.dtype);
                const auto kv =
                    problem.kv_heads * (problem.head_dim + problem.value_dim) * layouts::bytes_of(problem.dtype);
                const auto computing = one.computing();
                rows_q.push_back(bytes_of_rows(*one.plan, q));
                rows_all.push_back(bytes_of_rows(*one.plan, q + kv));
                begins.push_back(std::max(1e-7, computing.front().begin));
                ends.push_back(std::max(1e-7, one.seconds - computing.back().begin - computing.back().seconds - seam_));
            }
            auto& cost = this->cost(pass);
            const auto memory = machine().memory_bytes_per_second;
            const auto begin = fit_line(rows_q, begins), end = fit_line(rows_all, ends);
            cost.begin_seconds = begin.constant;
            cost.begin_memory_ratio = begin.slope * memory;
            cost.end_seconds = end.constant;
            cost.end_memory_ratio = end.slope * memory;
            const auto section = fmt::format("attention.{}", to_string(pass));
            for (const auto* key : {"begin_us", "begin_memory_ratio", "end_us", "end_memory_ratio"})
                source(fmt::format("{}.{}", section, key), "fitted to passes of one rank by the executor");
            for (const auto& [line, key] : {std::pair(begin, "begin"), {end, "end"}})
                if (!line.has_slope)
                    source(fmt::format("{}.{}_memory_ratio", section, key), not_determined_by("passes of one size"));
        }
    }

    void fit_rates() {
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto section = fmt::format("attention.{}", to_string(pass));
            source(section, "fitted to attends of one GPU in short runs");
            for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys"})
                source(section + key, "the kernel: " + all_.kernels);
            source(section + ".groups", "the kernel, and what of it the GPU has room for");
            source(section + ".teraflops", "measured: visible pairs, the best of the timed attends");
            for (const auto& [key, why] : zeros_[pass]) source(fmt::format("{}.{}", section, key), why);
            double best = 0;
            for (const auto& attend : attends(pass)) {
                if (attend.plan->layout().ranks() > 1) continue;
                best = std::max(best, flops_of(attend, pass));
            }
            cost(pass).flops = best;
        }
    }

    /// Fits power. An attend that is repeated without rests takes longer than the fitted prices say, because its clock
    /// is lower.
    void fit_clocks() {
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto* call = pass == Pass::forward ? "forward_kept" : "backward_block";
            std::vector<double> found;
            std::string tokens;
            for (const auto* sample : of("sustained", call)) {
                const auto whole = plan(*sample);
                if (sample->rank > 0) continue;
                if (sample->tokens_per_rank <= short_pass) continue;
                const auto power = power_flops({whole, 0, 0, {}, sample->seconds}, pass, machine());
                if (!power) continue;
                found.push_back(*power);
                tokens += fmt::format("{}{}", tokens.empty() ? "" : ", ", sample->tokens_per_rank);
            }
            const auto key = fmt::format("attention.{}.power_teraflops", to_string(pass));
            source(key, "measured: attends that never rest run at the clock of those that do");
            if (found.empty()) continue;
            double sum = 0;
            for (const auto one : found) sum += one / static_cast<double>(found.size());
            const auto [low, high] = std::minmax_element(found.begin(), found.end());
            cost(pass).power_flops = sum;
            source(key, fmt::format("measured: rates of launches without rests times the square of their clocks, {} "
                                    "tokens, {:.4g} to {:.4g}",
                                    tokens, *low / 1e12, *high / 1e12));
        }
    }

    const GpuSamples& all_;
    const std::string transport_;
    const std::vector<ExecutedPass> passes_;
    std::map<Pass, std::vector<TimedAttend>> in_passes_;
    std::map<Pass, SourcesOfZeros> zeros_;
    std::map<Pass, double> longer_;  // seconds by which an attend takes longer in a pass than alone
    double seam_ = 0;                // seconds between two kernels, without what timing adds
    FittedMachine fitted_;
    std::map<std::string, std::shared_ptr<const Plan>> plans_;
};

}  // namespace

FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport) {
    return GpuFit(samples, transport).fit();
}

}  // namespace ringlab::experiments
