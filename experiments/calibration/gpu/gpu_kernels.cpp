#include "experiments/calibration/gpu/gpu_kernels.hpp"

#include "experiments/calibration/fit/timed_attends.hpp"
#include "experiments/calibration/gpu/executed_passes.hpp"
#include "experiments/calibration/gpu/gpu_measure.hpp"
#include "sim/tiles/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using sim::AttentionCost;
using sim::AttentionKernel;

constexpr const char* never_rests = "kernel_without_rests";

GpuSample first_of(const AttentionKernel& kernel, const std::string& kind) {
    constexpr double some_cap = 50;  // any value: the time does not depend on it
    return {.kind = kind,
            .layout = "contiguous",
            .head_dim = kernel.forward.head_dim,
            .value_dim = kernel.forward.value_dim,
            .soft_cap = kernel.scores == sim::Scores::capped ? some_cap : 0};
}

bool is_of(const GpuSample& sample, const AttentionKernel& kernel) {
    const auto own = first_of(kernel, "");
    return sample.head_dim == own.head_dim && sample.value_dim == own.value_dim &&
           (sample.soft_cap > 0) == (own.soft_cap > 0);
}

std::vector<GpuSample> with_calls(const GpuSample& one, std::initializer_list<const char*> calls) {
    std::vector<GpuSample> all;
    for (const auto* call : calls) {
        all.push_back(one);
        all.back().call = call;
    }
    return all;
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

}  // namespace

std::vector<std::vector<GpuSample>> wanted_of_kernels(const sim::Machine& machine, std::int64_t tokens) {
    std::vector<std::vector<GpuSample>> all;
    for (const auto& kernel : machine.kernels) {
        const auto add = [&](const std::string& mask, const char* layout, int ranks, int rank, int block,
                             std::int64_t tokens_per_rank, bool every_turn) {
            auto one = first_of(kernel, "kernel");
            one.mask = mask;
            one.layout = layout;
            one.ranks = ranks;
            one.rank = rank;
            one.block = block;
            one.tokens_per_rank = tokens_per_rank;
            all.push_back(every_turn ? with_calls(one, {"forward_first", "forward_carried", "forward_kept",
                                                        "forward_last_kept", "backward_block"})
                                     : with_calls(one, {"forward_kept", "backward_block"}));
        };
        for (const auto part : {16, 8, 4, 2, 1})
            add("causal", "contiguous", 1, 0, 0, tokens / part, part != 8 && part != 2);
        for (const auto part : {8, 4, 2}) add("full", "contiguous", 1, 0, 0, tokens / part, part == 4);
        add("causal", "zigzag", 2, 0, 1, tokens / 4, true);
        add("causal", "zigzag", 2, 1, 0, tokens / 4, true);
        for (const auto part : {4, 2})
            for (const auto window : {tokens / part / 2, tokens / part / 8})
                add(fmt::format("window:{},0", window), "contiguous", 2, 1, 0, tokens / part, true);
        // Held out of the fit.
        add("causal", "zigzag", 4, 2, 1, tokens / 2, true);
        add(fmt::format("causal+documents:{0},{1},{1}", tokens / 8, tokens / 16), "contiguous", 1, 0, 0, tokens / 4,
            true);
        add(fmt::format("window:{},0", tokens / 8), "contiguous", 2, 1, 0, tokens / 2, true);
        if (kernel.scores != sim::Scores::plain) continue;  // power does not limit kernels with capped scores
        auto one = first_of(kernel, never_rests);
        one.mask = "causal";
        one.tokens_per_rank = tokens;
        all.push_back(with_calls(one, {"forward_kept", "backward_block"}));
    }
    return all;
}

void time_kernel(std::vector<GpuSample> wanted, GpuProbe& probe, GpuSamples& all) {
    const auto plan = plan_of(wanted.front(), all);
    std::vector<Timed> timed;
    std::vector<std::string> calls;
    for (const auto& one : wanted) calls.push_back(one.call);
    if (wanted.front().kind != never_rests)
        timed = probe.attends(*plan, wanted.front().rank, wanted.front().block, calls);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        auto& one = wanted[i];
        if (one.kind == never_rests) {
            const auto found = probe.sustained(*plan, one.call, 0);
            one.clock_hertz = found.clock_hertz;
            timed.push_back(found.seconds);
        }
        one.seconds = timed[i].median;
        one.spread = timed[i].spread;
        all.samples.push_back(one);
    }
}

void fit_kernels(FittedMachine& fitted, const GpuSamples& samples) {
    auto& machine = fitted.machine;
    std::erase_if(machine.kernels, [&](const AttentionKernel& kernel) {
        return std::ranges::none_of(samples.samples, [&](const GpuSample& one) {
            return one.kind == "kernel" && one.call == "backward_block" && is_of(one, kernel);
        });
    });
    std::ranges::sort(machine.kernels, {}, [](const AttentionKernel& kernel) {
        return std::tuple(kernel.forward.head_dim, kernel.forward.value_dim, kernel.scores);
    });
    for (auto& kernel : machine.kernels) {
        const auto section = "kernels." + kernel.name;
        fitted.sources[section] = "fitted to attends of one GPU in short runs, as those of the kernel above";
        for (const auto pass : both_passes) {
            auto& cost = cost_of(kernel, pass);
            cost = with_own(machine.attention(pass), cost);
            std::vector<TimedAttend> attends;
            std::vector<Timing> without_rests;
            for (const auto& sample : samples.samples) {
                if (!is_of(sample, kernel) || (sample.kind != "kernel" && sample.kind != never_rests)) continue;
                const auto plan = plan_of(sample, samples);
                const auto found = sampled_attend(sample, plan);
                if (!found || found->pass != pass) continue;
                if (sample.kind == never_rests)
                    without_rests.push_back(timing_without_rests(sample, plan, machine));
                else
                    attends.push_back(found->attend);
            }
            cost.flops = 0;
            for (auto& attend : attends) {
                attend.name += ", " + kernel.name;
                if (attend.plan->layout().ranks() == 1) cost.flops = std::max(cost.flops, flops_of(attend, pass));
            }
            auto timings = timings_of(attends, pass, machine);
            timings.insert(timings.end(), without_rests.begin(), without_rests.end());
            const auto zeros = fit_prices(cost, timings);
            // What is beside the attends of a pass is as for the main kernel.
            cost.begin_seconds = machine.attention(pass).begin_seconds;
            cost.begin_memory_ratio = machine.attention(pass).begin_memory_ratio;
            auto& shown = pass == Pass::forward ? fitted.forward : fitted.backward;
            shown.insert(shown.end(), attends.begin(), attends.end());
            const auto own = fmt::format("{}.{}", section, to_string(pass));
            for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys", ".groups"})
                fitted.sources[own + key] = "the kernel: " + samples.kernels;
            fitted.sources[own + ".teraflops"] = "measured: visible pairs, the best of the timed attends";
            for (const auto& [key, why] : zeros) fitted.sources[fmt::format("{}.{}", own, key)] = why;
            if (without_rests.empty()) {
                cost.power_flops = machine.attention(pass).power_flops;
                fitted.sources[own + ".power_teraflops"] = "as for the kernel without a cap, or of other dims";
            }
        }
        fitted.sources[section + ".scores"] = "the kernel: " + samples.kernels;
    }
    // Power was timed without a cap.
    for (auto& kernel : machine.kernels) {
        if (kernel.scores == sim::Scores::plain) continue;
        for (const auto& plain : machine.kernels)
            if (plain.scores == sim::Scores::plain && plain.forward.head_dim == kernel.forward.head_dim &&
                plain.forward.value_dim == kernel.forward.value_dim)
                for (const auto pass : both_passes)
                    cost_of(kernel, pass).power_flops = plain.attention(pass).power_flops;
    }
}

}  // namespace ringlab::experiments
