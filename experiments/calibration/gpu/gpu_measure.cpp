#include "experiments/calibration/gpu/gpu_measure.hpp"

#include "experiments/calibration/fit/timed_attends.hpp"
#include "experiments/calibration/gpu/gpu_kernels.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/options/source.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

/// An attend of a rank's rows to a block of keys, with the shapes that it has in a ring. It is timed alone; no ring is
/// timed.
struct Spot {
    std::string mask, layout;
    int ranks, rank, block;
    std::int64_t tokens_per_rank;
};

std::vector<Spot> spots(const SweepConfig& sweep) {
    std::vector<Spot> all;
    for (const auto tokens : sweep.tokens) {
        for (const auto& mask : sweep.masks) all.push_back({mask, "contiguous", 1, 0, 0, tokens});
        if (tokens < 512) continue;
        // Rank 0: half of the rows see all keys of the block. Rank 1: all rows see half of the keys.
        all.push_back({"causal", "zigzag", 2, 0, 1, tokens});
        all.push_back({"causal", "zigzag", 2, 1, 0, tokens});
        all.push_back({"causal", "zigzag", 4, 2, 1, tokens});
        all.push_back({"causal", "striped:64", 4, 1, 2, tokens});
        // Windows in which only the first half, quarter or eighth of the rows see any key of the block.
        for (const auto part : {2, 4, 8}) {
            const auto window = tokens / part;
            if (window < 128) continue;
            all.push_back({fmt::format("window:{},0", window), "contiguous", 2, 1, 0, tokens});
        }
        all.push_back(
            {"causal+documents:" + fmt::format("{0},{1},{1}", tokens / 2, tokens / 4), "contiguous", 1, 0, 0, tokens});
    }
    return all;
}

/// Whole passes that are timed on one GPU: of one rank, and of ranks that take turns and carry their rows from block to
/// block.
std::vector<Spot> turns(const SweepConfig& sweep) {
    std::vector<Spot> all;
    for (const auto tokens : sweep.tokens) {
        for (const auto& mask : sweep.masks) {
            all.push_back({mask, "contiguous", 1, 0, 0, tokens});
            all.push_back({mask, "contiguous", 2, 0, 0, tokens});
        }
        all.push_back({"causal", "zigzag", 2, 0, 0, tokens});
    }
    return all;
}

class GpuMeasurement {
public:
    GpuMeasurement(const ProblemConfig& config, const SweepConfig& sweep, GpuProbe& probe,
                   const std::function<void(const GpuSamples&)>& keep)
        : sweep_(sweep), probe_(probe), keep_(keep) {
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
        for (const auto& spot : spots(sweep_))
            steps.push_back({"attends: " + name_of(spot), [=, this] { time_attends(spot); }});
        for (const auto& wanted : wanted_of_kernels(all_.machine, largest_tokens())) {
            const auto& one = wanted.front();
            steps.push_back({fmt::format("{}: dims {}/{}, soft cap {}, {} {}, {} tokens", one.kind, one.head_dim,
                                         one.value_dim, one.soft_cap, one.mask, one.layout, one.tokens_per_rank),
                             [=, this] { time_kernel(wanted, probe_, all_); }});
        }
        for (const auto& spot : turns(sweep_))
            steps.push_back(
                {"passes on one GPU: " + name_of(spot), [=, this] { time_passes(spot, "ring", "loopback"); }});
        // Schedules whose passes also contain copies, merges and sums.
        const auto turn = [&](const Spot& spot, const char* algorithm) {
            steps.push_back({fmt::format("passes on one GPU: {}, {}", algorithm, name_of(spot)),
                             [=, this] { time_passes(spot, algorithm, "loopback"); }});
        };
        for (const auto tokens : sweep_.tokens)
            for (const auto* algorithm : {"ulysses", "pass-q", "pull", "all-gather"})
                turn({"causal", "zigzag", 2, 0, 0, tokens}, algorithm);
        for (const auto tokens : sweep_.tokens)
            steps.push_back({fmt::format("rotations: {} tokens", tokens), [=, this] { time_rotations(tokens); }});
        for (const auto tokens : sustained_tokens())
            steps.push_back(
                {fmt::format("sustained clock: {} tokens", tokens), [=, this] { time_sustained(tokens, 0); }});
        const auto largest = largest_tokens();
        for (int device = 1; device < probe_.gpus(); ++device)
            for (const auto tokens : {largest, 4 * largest})
                steps.push_back({fmt::format("sustained clock of GPU {}: {} tokens", device, tokens),
                                 [=, this] { time_sustained(tokens, device); }});
        for (const std::int64_t keys : {8192, 65536, 262144})
            for (const std::int64_t queries : {1, 16})
                steps.push_back({fmt::format("split-KV: {} rows after {} tokens", queries, keys),
                                 [=, this] { time_split_kv(keys, queries); }});
        for (const auto& mask : sweep_.masks)
            for (const auto tokens : {largest / 4, largest})
                steps.push_back(
                    {fmt::format("dropout: {}, {} tokens", mask, tokens), [=, this] { time_dropout(mask, tokens); }});
        steps.push_back({"matrix products", [this] { time_products(); }});
        for (const auto& transport : probe_.transports()) {
            // Only one token of each rank is valid, so whole blocks travel but next to nothing is computed.
            const auto mask = fmt::format("valid:0-{}", probe_.gpus());
            for (const std::int64_t tokens : {16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768}) {
                const Spot spot{mask, "striped", probe_.gpus(), 0, 0, tokens};
                steps.push_back({fmt::format("messages over {}: {} tokens", transport, tokens),
                                 [=, this] { time_passes(spot, "ring", transport); }});
            }
            // Messages of several pieces: parts of rows and keys that are not adjacent in memory.
            for (const std::int64_t tokens : {64, 512, 2048, 8192})
                for (const auto* algorithm : {"ulysses", "pass-q"}) {
                    const Spot spot{mask, "striped", probe_.gpus(), 0, 0, tokens};
                    steps.push_back({fmt::format("messages over {}: {}, {} tokens", transport, algorithm, tokens),
                                     [=, this] { time_passes(spot, algorithm, transport); }});
                }
            // Many short runs, because the host's time of a transfer varies more from run to run than within a run.
            for (const std::int64_t tokens : {16, 64, 256})
                for (const auto* algorithm : {"all-gather", "pull", "joined-ring", "bidirectional"}) {
                    const Spot little{mask, "striped", probe_.gpus(), 0, 0, tokens};
                    steps.push_back({fmt::format("host over {}: {}, {} tokens", transport, algorithm, tokens),
                                     [=, this] { time_passes(little, algorithm, transport); }});
                }
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

    std::int64_t largest_tokens() const { return *std::max_element(sweep_.tokens.begin(), sweep_.tokens.end()); }

    std::vector<std::int64_t> sustained_tokens() const {
        const auto largest = largest_tokens();
        return {std::max<std::int64_t>(1, largest / 4), largest, 2 * largest, 4 * largest};
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

    void time_sustained(std::int64_t tokens, int device) {
        const Spot spot{"causal", "contiguous", 1, device, 0, tokens};
        const auto whole = plan(spot);
        for (const auto* call : {"forward_kept", "backward_block"}) {
            if (device == 0)
                all_.samples.push_back(sample(spot, "attend", call, probe_.attends(*whole, 0, 0, {call}).front()));
            const auto found = probe_.sustained(*whole, call, device);
            auto one = sample(spot, "sustained", call, found.seconds);
            one.clock_hertz = found.clock_hertz;
            all_.samples.push_back(std::move(one));
        }
    }

    void time_rotations(std::int64_t tokens) {
        auto one = sample({"full", "contiguous", 1, 0, 0, tokens}, "rotation", "", {});
        const auto both = probe_.rotations(*plan_of(one, all_));
        for (const auto pass : both_passes) {
            const auto& timed = both.at(static_cast<std::size_t>(pass));
            one.call = to_string(pass);
            one.seconds = timed.median;
            one.spread = timed.spread;
            all_.samples.push_back(one);
        }
    }

    /// Adds a sample like `one`, with the time of the only attend of a pass of one rank that the executor ran.
    void add_attend(GpuSample one, const layouts::Schedule& schedule, const TimedPass& pass) {
        auto ops = schedule.ops(0);
        for (layouts::OpIndex i = 0; const auto* op = ops.next(); ++i) {
            if (op->kind != layouts::OpKind::attend) continue;
            const auto found = std::ranges::find(pass.operations, i, &TimedOperation::op);
            require(found != pass.operations.end(), "the executor has timed no attend");
            one.seconds = found->seconds.median;
            one.spread = found->seconds.spread;
            all_.samples.push_back(one);
        }
    }

    void time_split_kv(std::int64_t keys, std::int64_t queries) {
        auto one = sample({"causal", "contiguous", 1, 0, 0, keys}, "few_rows", "forward", {});
        one.queries = queries;
        const auto whole = plan_of(one, all_);
        add_attend(one, *whole->forward, probe_.passes(*whole, "loopback").at(0));
    }

    void time_dropout(const std::string& mask, std::int64_t tokens) {
        auto one = sample({mask, "contiguous", 1, 0, 0, tokens}, "dropout", "", {});
        const auto whole = plan_of(one, all_);
        const auto both = probe_.passes(*whole, "loopback");
        for (const auto pass : both_passes) {
            one.call = to_string(pass);
            add_attend(one, *whole->schedule(pass), both.at(static_cast<std::size_t>(pass)));
        }
    }

    void time_products() {
        if (const auto found = probe_.matrix_product())
            all_.samples.push_back({.kind = "product", .seconds = found->median, .spread = found->spread});
    }

    void time_passes(const Spot& spot, const std::string& algorithm, const std::string& transport) {
        const auto whole = plan(spot, algorithm);
        const auto both = probe_.passes(*whole, transport);
        for (const auto pass : both_passes) {
            const auto& timed = both.at(static_cast<std::size_t>(pass));
            const auto add = [&](const char* kind, const Timed& seconds) -> GpuSample& {
                auto& one = all_.samples.emplace_back(sample(spot, kind, to_string(pass), seconds));
                one.algorithm = algorithm;
                one.transport = transport;
                return one;
            };
            add("pass", timed.seconds);
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
        const Spot spot{"causal", "contiguous", 1, 0, 0, largest_tokens()};
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

    const SweepConfig& sweep_;
    GpuProbe& probe_;
    const std::function<void(const GpuSamples&)>& keep_;
    GpuSamples all_;
};

}  // namespace

std::shared_ptr<const Plan> plan_of(const GpuSample& sample, const GpuSamples& all) {
    ProblemConfig config;
    config.heads = all.heads;
    config.head_dim = sample.head_dim > 0 ? sample.head_dim : all.head_dim;
    config.value_dim = sample.head_dim > 0 ? sample.value_dim : all.value_dim;
    config.soft_cap = sample.soft_cap;
    config.arithmetic = all.arithmetic;
    if (sample.kind == "rotation") config.rotary.base = 10000;
    if (sample.kind == "dropout") config.dropout = {0.1, 1};
    const Case which{"normal",
                     sample.mask,
                     sample.layout,
                     sample.algorithm.empty() ? "ring" : sample.algorithm,
                     "carry",
                     sample.ranks,
                     sample.ranks * sample.tokens_per_rank,
                     sample.queries};
    return std::make_shared<Plan>(make_plan(which, problem_from(config)));
}

GpuSamples measure_gpus(const ProblemConfig& problem, const SweepConfig& sweep, GpuProbe& probe,
                        const std::function<void(const GpuSamples&)>& keep) {
    return GpuMeasurement(problem, sweep, probe, keep).measure();
}

}  // namespace ringlab::experiments
