#include "experiments/calibration/gpu_measure.hpp"

#include "experiments/console/progress.hpp"
#include "experiments/inputs/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

/// Rows of a rank against keys of a block, as a ring would have them; nothing of a ring is timed.
struct Spot {
    std::string mask, layout;
    int ranks, rank, block;
    std::int64_t tokens_per_rank;
};

std::vector<Spot> spots(const Config& config) {
    std::vector<Spot> all;
    for (const auto tokens : config.tokens) {
        for (const auto& mask : config.masks) all.push_back({mask, "contiguous", 1, 0, 0, tokens});
        if (tokens < 512) continue;
        // Half of the rows see everything, and all rows see half of the keys.
        all.push_back({"causal", "zigzag", 2, 0, 1, tokens});
        all.push_back({"causal", "zigzag", 2, 1, 0, tokens});
        all.push_back({"causal", "zigzag", 4, 2, 1, tokens});
        all.push_back({"causal", "striped:64", 4, 1, 2, tokens});
        all.push_back({fmt::format("window:{},0", tokens / 2), "contiguous", 2, 1, 0, tokens});
        all.push_back(
            {"causal+documents:" + fmt::format("{0},{1},{1}", tokens / 2, tokens / 4), "contiguous", 1, 0, 0, tokens});
    }
    return all;
}

/// Whole passes: of one rank, and of ranks that take turns, whose rows go on from block to block.
std::vector<Spot> turns(const Config& config) {
    std::vector<Spot> all;
    for (const auto tokens : config.tokens) {
        for (const auto& mask : config.masks) {
            all.push_back({mask, "contiguous", 1, 0, 0, tokens});
            all.push_back({mask, "contiguous", 2, 0, 0, tokens});
        }
        all.push_back({"causal", "zigzag", 2, 0, 0, tokens});
    }
    return all;
}

class GpuMeasurement {
public:
    GpuMeasurement(const Config& config, GpuProbe& probe, const std::function<void(const GpuSamples&)>& keep)
        : config_(config), probe_(probe), keep_(keep) {
        const auto problem = problem_from(config);
        all_.machine = probe.machine(problem);
        all_.device = probe.device();
        all_.kernels = probe.kernels(problem);
        all_.heads = config.heads;
        all_.arithmetic = config.arithmetic;
        all_.head_dim = problem.head_dim;
        all_.value_dim = problem.value_dim;
        all_.gpus = probe.gpus();
    }

    GpuSamples measure() {
        struct Step {
            std::string name;
            std::function<void()> work;
        };
        std::vector<Step> steps;
        for (const auto& spot : spots(config_))
            steps.push_back({"attends: " + name_of(spot), [=, this] { time_attends(spot); }});
        for (const auto& spot : turns(config_))
            steps.push_back(
                {"passes on one GPU: " + name_of(spot), [=, this] { time_passes(spot, "ring", "loopback"); }});
        // Copies, merges and sums are there too, and attends that are one launch.
        for (const auto tokens : config_.tokens)
            for (const auto* algorithm : {"ulysses", "pass-q", "pull"}) {
                const Spot spot{"causal", "zigzag", 2, 0, 0, tokens};
                steps.push_back({fmt::format("passes on one GPU: {}, {} tokens", algorithm, tokens),
                                 [=, this] { time_passes(spot, algorithm, "loopback"); }});
            }
        for (const auto tokens : config_.tokens)
            steps.push_back({fmt::format("rotations: {} tokens", tokens), [=, this] { time_rotations(tokens); }});
        for (const auto tokens : sustained_tokens())
            steps.push_back({fmt::format("sustained clock: {} tokens", tokens), [=, this] { time_sustained(tokens); }});
        for (const auto& transport : probe_.transports()) {
            // A token of each rank is valid, the others travel for it: next to nothing is computed.
            const auto mask = fmt::format("valid:0-{}", probe_.gpus());
            for (const std::int64_t tokens : {16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768}) {
                const Spot spot{mask, "striped", probe_.gpus(), 0, 0, tokens};
                steps.push_back({fmt::format("messages over {}: {} tokens", transport, tokens),
                                 [=, this] { time_passes(spot, "ring", transport); }});
            }
            const Spot little{mask, "striped", probe_.gpus(), 0, 0, 64};
            for (const auto* algorithm : {"all-gather", "pull"})
                steps.push_back({fmt::format("host over {}: {}", transport, algorithm),
                                 [=, this] { time_passes(little, algorithm, transport); }});
            steps.push_back(
                {fmt::format("messages over {} beside attends", transport), [=, this] { time_busy(transport); }});
        }
        Progress progress(steps.size(), false);
        for (std::size_t i = 0; i < steps.size(); ++i) {
            progress.start(steps[i].name);
            steps[i].work();
            if (i % 10 == 9) keep_(all_);
            progress.finish();
        }
        keep_(all_);
        return std::move(all_);
    }

private:
    static std::string name_of(const Spot& spot) {
        return fmt::format("{} {} rank {} of {}, block {}, {} tokens", spot.mask, spot.layout, spot.rank, spot.ranks,
                           spot.block, spot.tokens_per_rank);
    }

    std::vector<std::int64_t> sustained_tokens() const {
        const auto largest = *std::max_element(config_.tokens.begin(), config_.tokens.end());
        return {std::max<std::int64_t>(1, largest / 4), largest, 4 * largest};
    }

    static GpuSample sample(const Spot& spot, const std::string& kind, const std::string& call, const Timed& timed) {
        return {.kind = kind,
                .call = call,
                .mask = spot.mask,
                .layout = spot.layout,
                .ranks = spot.ranks,
                .rank = spot.rank,
                .block = spot.block,
                .tokens_per_rank = spot.tokens_per_rank,
                .seconds = timed.median,
                .spread = timed.spread};
    }

    std::shared_ptr<const Plan> plan(const Spot& spot, const std::string& algorithm = "ring") const {
        auto one = sample(spot, "", "", {});
        one.algorithm = algorithm;
        return plan_of(one, all_);
    }

    void time_attends(const Spot& spot) {
        std::vector<std::string> calls{"forward",      "forward_first",     "forward_carried",
                                       "forward_kept", "forward_last_kept", "backward_block"};
        if (spot.ranks == 1 && spot.mask == "causal")
            calls.insert(calls.end(), {"backward_prepare", "backward_add", "backward_round"});
        const auto timed = probe_.attends(*plan(spot), spot.rank, spot.block, calls);
        for (std::size_t i = 0; i < calls.size(); ++i)
            all_.samples.push_back(sample(spot, "attend", calls[i], timed[i]));
    }

    void time_sustained(std::int64_t tokens) {
        const Spot spot{"causal", "contiguous", 1, 0, 0, tokens};
        const auto whole = plan(spot);
        for (const auto* call : {"forward_kept", "backward_block"}) {
            const auto quick = probe_.attends(*whole, 0, 0, {call}).front();
            all_.samples.push_back(sample(spot, "attend", call, quick));
            const auto found = probe_.sustained(*whole, call);
            auto one = sample(spot, "sustained", call, found.seconds);
            one.clock_hertz = found.clock_hertz;
            all_.samples.push_back(std::move(one));
        }
    }

    void time_rotations(std::int64_t tokens) {
        auto one = sample({"full", "contiguous", 1, 0, 0, tokens}, "rotation", "", {});
        const auto both = probe_.rotations(*plan_of(one, all_));
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto& timed = both.at(pass == Pass::forward ? 0 : 1);
            one.call = to_string(pass);
            one.seconds = timed.median;
            one.spread = timed.spread;
            all_.samples.push_back(one);
        }
    }

    void time_passes(const Spot& spot, const std::string& algorithm, const std::string& transport) {
        const auto whole = plan(spot, algorithm);
        const auto both = probe_.passes(*whole, transport);
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto& timed = both.at(pass == Pass::forward ? 0 : 1);
            const auto add = [&](const char* kind, const Timed& seconds) -> GpuSample& {
                auto& one = all_.samples.emplace_back(sample(spot, kind, to_string(pass), seconds));
                one.algorithm = algorithm;
                one.transport = transport;
                return one;
            };
            add("pass", timed.seconds);
            add("issue", timed.issue);
            add("period", {timed.period, 0});
            for (const auto& operation : timed.operations) {
                auto& one = add("operation", operation.seconds);
                one.rank = operation.rank;
                one.op = operation.op;
                one.posted = operation.posted;
                one.begin = operation.begin;
            }
        }
    }

    void time_busy(const std::string& transport) {
        const Spot spot{
            "causal", "contiguous", 1, 0, 0, *std::max_element(config_.tokens.begin(), config_.tokens.end())};
        constexpr std::int64_t mebibyte = 1 << 20;
        for (const auto& one : probe_.busy_links(*plan(spot), "forward_carried", transport,
                                                 {2 * mebibyte, 8 * mebibyte, 32 * mebibyte, 128 * mebibyte}))
            for (const auto& [kind, timed] :
                 {std::pair("message", one.message), {"alone", one.call_alone}, {"beside", one.call_beside}}) {
                auto& added = all_.samples.emplace_back(sample(spot, kind, "forward_carried", timed));
                added.transport = transport;
                added.bytes = one.bytes;
            }
    }

    const Config& config_;
    GpuProbe& probe_;
    const std::function<void(const GpuSamples&)>& keep_;
    GpuSamples all_;
};

}  // namespace

std::shared_ptr<const Plan> plan_of(const GpuSample& sample, const GpuSamples& all) {
    Config config;
    config.heads = all.heads;
    config.head_dim = all.head_dim;
    config.value_dim = all.value_dim;
    config.arithmetic = all.arithmetic;
    if (sample.kind == "rotation") config.rotary.base = 10000;
    const Case which{"normal",
                     sample.mask,
                     sample.layout,
                     sample.algorithm.empty() ? "ring" : sample.algorithm,
                     "carry",
                     sample.ranks,
                     sample.ranks * sample.tokens_per_rank};
    return std::make_shared<Plan>(make_plan(which, problem_from(config), config, {}));
}

GpuSamples measure_gpus(const Config& config, GpuProbe& probe, const std::function<void(const GpuSamples&)>& keep) {
    return GpuMeasurement(config, probe, keep).measure();
}

}  // namespace ringlab::experiments
