#include "experiments/calibration/calibrate.hpp"

#include "experiments/console/progress.hpp"
#include "experiments/options/source.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

using Kind = SampleKind;
using sim::AttentionKernel;

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

GpuSample first_of(const AttentionKernel& kernel, Kind kind) {
    constexpr double some_cap = 50;  // any value: the time does not depend on it
    return {.kind = kind,
            .layout = "contiguous",
            .head_dim = kernel.forward.head_dim,
            .value_dim = kernel.forward.value_dim,
            .soft_cap = kernel.scores == sim::Scores::capped ? some_cap : 0};
}

std::vector<GpuSample> with_calls(const GpuSample& one, std::initializer_list<const char*> calls) {
    std::vector<GpuSample> all;
    for (const auto* call : calls) {
        all.push_back(one);
        all.back().call = call;
    }
    return all;
}

/// Samples to be timed of the machine's other kernels, without seconds yet, in groups of one plan each. `tokens`:
/// largest number of tokens of a rank.
std::vector<std::vector<GpuSample>> wanted_of_kernels(const sim::Machine& machine, std::int64_t tokens) {
    std::vector<std::vector<GpuSample>> all;
    for (const auto& kernel : machine.kernels) {
        const auto add = [&](const std::string& mask, const char* layout, int ranks, int rank, int block,
                             std::int64_t tokens_per_rank, bool every_turn) {
            auto one = first_of(kernel, Kind::kernel);
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
        auto one = first_of(kernel, Kind::kernel_without_rests);
        one.mask = "causal";
        one.tokens_per_rank = tokens;
        all.push_back(with_calls(one, {"forward_kept", "backward_block"}));
    }
    return all;
}

class GpuMeasurement {
public:
    GpuMeasurement(const ProblemConfig& config, const SweepConfig& sweep, Backend& gpus,
                   const std::function<void(const GpuSamples&)>& keep)
        : sweep_(sweep), gpus_(gpus), keep_(keep) {
        const auto problem = problem_from(config);
        all_.machine = gpus.bare_machine(problem);
        all_.device = gpus.devices().front();
        all_.kernels = gpus.kernels(problem);
        all_.heads = config.heads;
        all_.arithmetic = config.arithmetic;
        all_.head_dim = problem.head_dim;
        all_.value_dim = problem.value_dim;
        all_.gpus = static_cast<int>(gpus.devices().size());
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
            steps.push_back(
                {fmt::format("{}: dims {}/{}, soft cap {}, {} {}, {} tokens", to_string(one.kind), one.head_dim,
                             one.value_dim, one.soft_cap, one.mask, one.layout, one.tokens_per_rank),
                 [=, this] { time_kernel(wanted); }});
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
        for (int device = 1; device < all_.gpus; ++device)
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
        for (const auto& transport : gpus_.transports()) {
            // Only one token of each rank is valid, so whole blocks travel but next to nothing is computed.
            const auto mask = fmt::format("valid:0-{}", all_.gpus);
            for (const std::int64_t tokens : {16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768}) {
                const Spot spot{mask, "striped", all_.gpus, 0, 0, tokens};
                steps.push_back({fmt::format("messages over {}: {} tokens", transport, tokens),
                                 [=, this] { time_passes(spot, "ring", transport); }});
            }
            // Messages of several pieces: parts of rows and keys that are not adjacent in memory.
            for (const std::int64_t tokens : {64, 512, 2048, 8192})
                for (const auto* algorithm : {"ulysses", "pass-q"}) {
                    const Spot spot{mask, "striped", all_.gpus, 0, 0, tokens};
                    steps.push_back({fmt::format("messages over {}: {}, {} tokens", transport, algorithm, tokens),
                                     [=, this] { time_passes(spot, algorithm, transport); }});
                }
            // Many short runs, because the host's time of a transfer varies more from run to run than within a run.
            for (const std::int64_t tokens : {16, 64, 256})
                for (const auto* algorithm : {"all-gather", "pull", "joined-ring", "bidirectional"}) {
                    const Spot little{mask, "striped", all_.gpus, 0, 0, tokens};
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

    static GpuSample sample(const Spot& spot, Kind kind, const std::string& call = "", const Typical& timed = {}) {
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

    /// Calls of a plan in milliseconds of work with a rest of four times as many: far from where power limits clocks.
    std::vector<Typical> in_short_runs(const Plan& plan, int rank, int block, const std::vector<std::string>& calls) {
        const auto found = gpus_.time_calls({.plan = &plan, .rank = rank, .block = block, .names = calls},
                                            {.rounds = 5, .seconds = 0.0015, .warm_up_seconds = 0, .rest = 4});
        std::vector<Typical> all;
        for (const auto& call : found.calls) all.push_back(typical(call.all()));
        return all;
    }

    /// A call of a plan without any rest, at the clock that the power of the GPU then allows.
    void time_without_rests(GpuSample one, const Plan& plan, int device) {
        const auto found = gpus_.time_calls({.plan = &plan, .names = {one.call}, .device = device},
                                            {.rounds = 4, .seconds = 0.15, .warm_up_seconds = 0.4, .rest = 0});
        one.take(typical(found.calls.front().all()));
        for (const auto& clock : found.clocks)
            one.clock_hertz += clock.sm_mhz * 1e6 / static_cast<double>(found.clocks.size());
        all_.samples.push_back(std::move(one));
    }

    /// Both passes of a plan by the executor: by "loopback" all ranks in turns on the first GPU; by "copy" and "nccl" a
    /// GPU for each.
    RingRun executed(const Plan& plan, const std::string& transport, Timelines timelines) {
        auto rings = gpus_.run(plan, {.ring = plan.layout().ranks()},
                               {.keep_results = false,
                                .round_results = true,
                                .transport = transport,
                                .timelines = timelines,
                                .warm_up = 4,
                                .repeats = 12});
        return std::move(rings.front());
    }

    void time_attends(const Spot& spot) {
        std::vector<std::string> calls{"forward",      "forward_first",     "forward_carried",
                                       "forward_kept", "forward_last_kept", "backward_block"};
        if (spot.ranks == 1 && spot.mask == "causal")
            calls.insert(calls.end(), {"backward_prepare", "backward_add", "backward_round"});
        const auto plan = all_.plan(sample(spot, Kind::attend));
        const auto timed = in_short_runs(*plan, spot.rank, spot.block, calls);
        for (std::size_t i = 0; i < calls.size(); ++i)
            all_.samples.push_back(sample(spot, Kind::attend, calls[i], timed[i]));
    }

    void time_sustained(std::int64_t tokens, int device) {
        const Spot spot{"causal", "contiguous", 1, device, 0, tokens};
        const auto plan = all_.plan(sample(spot, Kind::sustained));
        for (const auto* call : {"forward_kept", "backward_block"}) {
            if (device == 0)
                all_.samples.push_back(sample(spot, Kind::attend, call, in_short_runs(*plan, 0, 0, {call}).front()));
            time_without_rests(sample(spot, Kind::sustained, call), *plan, device);
        }
    }

    /// Times a group of samples of another kernel.
    void time_kernel(std::vector<GpuSample> wanted) {
        const auto& first = wanted.front();
        const auto plan = all_.plan(first);
        if (first.kind == Kind::kernel_without_rests) {
            for (const auto& one : wanted) time_without_rests(one, *plan, 0);
            return;
        }
        std::vector<std::string> calls;
        for (const auto& one : wanted) calls.push_back(one.call);
        const auto timed = in_short_runs(*plan, first.rank, first.block, calls);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            wanted[i].take(timed[i]);
            all_.samples.push_back(wanted[i]);
        }
    }

    void time_rotations(std::int64_t tokens) {
        auto one = sample({"full", "contiguous", 1, 0, 0, tokens}, Kind::rotation);
        const auto found = executed(*all_.plan(one), "loopback", Timelines::none);
        for (const auto pass : both_passes) {
            one.call = to_string(pass);
            one.take(typical(slowest(found.of(pass).rotation)));
            all_.samples.push_back(one);
        }
    }

    /// Adds a sample like `one`, with the time of the only attend of a pass of one rank that the executor ran.
    void add_attend(GpuSample one, const layouts::Schedule& schedule, const PassRun& pass) {
        for (const auto& operation : executed_operations(schedule, pass)) {
            if (operation.op.kind != layouts::OpKind::attend) continue;
            one.take(operation.seconds);
            all_.samples.push_back(one);
        }
    }

    void time_split_kv(std::int64_t keys, std::int64_t queries) {
        auto one = sample({"causal", "contiguous", 1, 0, 0, keys}, Kind::few_rows, "forward");
        one.queries = queries;
        const auto plan = all_.plan(one);
        add_attend(one, *plan->forward, executed(*plan, "loopback", Timelines::all).forward);
    }

    void time_dropout(const std::string& mask, std::int64_t tokens) {
        auto one = sample({mask, "contiguous", 1, 0, 0, tokens}, Kind::dropout);
        const auto plan = all_.plan(one);
        const auto found = executed(*plan, "loopback", Timelines::all);
        for (const auto pass : both_passes) {
            one.call = to_string(pass);
            add_attend(one, *plan->schedule(pass), found.of(pass));
        }
    }

    void time_products() {
        const auto found = gpus_.time_calls({.names = {"matrix_product"}},
                                            {.rounds = 4, .seconds = 0.1, .warm_up_seconds = 0.2, .rest = 0});
        if (found.calls.empty()) return;
        const auto timed = typical(found.calls.front().all());
        all_.samples.push_back(
            {.kind = Kind::product, .seconds = matrix_product_flop / timed.median, .spread = timed.spread});
    }

    void time_passes(const Spot& spot, const std::string& algorithm, const std::string& transport) {
        auto one = sample(spot, Kind::pass);
        one.algorithm = algorithm;
        one.transport = transport;
        const auto plan = all_.plan(one);
        // Passes whose operations are timed take longer: the whole is timed without.
        const auto whole = executed(*plan, transport, Timelines::none),
                   parts = executed(*plan, transport, Timelines::all);
        for (const auto pass : both_passes) {
            const auto add = [&](Kind kind, const Typical& timed) -> GpuSample& {
                auto& added = all_.samples.emplace_back(one);
                added.kind = kind;
                added.call = to_string(pass);
                added.take(timed);
                return added;
            };
            add(Kind::pass, typical(slowest(whole.of(pass).seconds)));
            add(Kind::period, {whole.of(pass).period, 0});
            for (const auto& operation : executed_operations(*plan->schedule(pass), parts.of(pass))) {
                auto& added = add(Kind::operation, operation.seconds);
                added.rank = operation.rank;
                added.op = operation.index;
                added.posted = operation.posted;
                added.begin = operation.begin;
            }
        }
    }

    void time_busy(const std::string& transport) {
        auto one = sample({"causal", "contiguous", 1, 0, 0, largest_tokens()}, Kind::message, "forward_carried");
        one.transport = transport;
        const auto plan = all_.plan(one);
        constexpr std::int64_t mebibyte = 1 << 20;
        for (const auto bytes : {2 * mebibyte, 8 * mebibyte, 32 * mebibyte, 128 * mebibyte}) {
            one.bytes = bytes;
            for (const auto& times :
                 gpus_.time_busy_links({.plan = plan.get(), .names = {one.call}}, transport, bytes)) {
                one.kind = times.name == "message" ? Kind::message : times.name == "alone" ? Kind::alone : Kind::beside;
                one.take(typical(times.all()));
                all_.samples.push_back(one);
            }
        }
    }

    const SweepConfig& sweep_;
    Backend& gpus_;
    const std::function<void(const GpuSamples&)>& keep_;
    GpuSamples all_;
};

}  // namespace

GpuSamples measure_gpus(const ProblemConfig& problem, const SweepConfig& sweep, Backend& gpus,
                        const std::function<void(const GpuSamples&)>& keep) {
    return GpuMeasurement(problem, sweep, gpus, keep).measure();
}

}  // namespace ringlab::experiments
