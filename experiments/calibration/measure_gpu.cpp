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
using Calls = std::vector<std::string>;

const Calls every_turn{"forward_first", "forward_carried", "forward_kept", "forward_last_kept", "backward_block"};
const Calls both_whole{"forward_kept", "backward_block"};

/// A sample that is not timed yet, and the calls of its plan that are timed with it, each of which becomes a sample.
struct Wanted {
    GpuSample sample;
    Calls calls = {};
};

/// Rows of a rank with a block of keys, with the shapes that they have in a ring. No ring is timed.
GpuSample sample_of(Kind kind, const std::string& mask, const std::string& layout, int ranks, int rank, int block,
                    std::int64_t tokens_per_rank) {
    return {.kind = kind,
            .mask = mask,
            .layout = layout,
            .ranks = ranks,
            .rank = rank,
            .block = block,
            .tokens_per_rank = tokens_per_rank};
}

/// The same of all tokens on one rank.
GpuSample sample_of(Kind kind, const std::string& mask, std::int64_t tokens) {
    return sample_of(kind, mask, "contiguous", 1, 0, 0, tokens);
}

std::string documents(std::int64_t tokens) {
    return fmt::format("causal+documents:{0},{1},{1}", tokens / 2, tokens / 4);
}

std::string window(std::int64_t tokens) { return fmt::format("window:{},0", tokens); }

/// Attends by the machine's own kernels.
void add_attends(std::vector<Wanted>& wanted, const SweepConfig& sweep) {
    Calls calls = every_turn;
    calls.insert(calls.begin(), "forward");
    for (const auto tokens : sweep.tokens) {
        for (const auto& mask : sweep.masks) {
            auto& one = wanted.emplace_back(Wanted{sample_of(Kind::attend, mask, tokens), calls});
            if (mask == "causal")
                one.calls.insert(one.calls.end(), {"backward_prepare", "backward_add", "backward_round"});
        }
        if (tokens < 512) continue;
        // Rank 0: half of the rows see all keys of the block. Rank 1: all rows see half of the keys.
        wanted.push_back({sample_of(Kind::attend, "causal", "zigzag", 2, 0, 1, tokens), calls});
        wanted.push_back({sample_of(Kind::attend, "causal", "zigzag", 2, 1, 0, tokens), calls});
        wanted.push_back({sample_of(Kind::attend, "causal", "zigzag", 4, 2, 1, tokens), calls});
        wanted.push_back({sample_of(Kind::attend, "causal", "striped:64", 4, 1, 2, tokens), calls});
        // Windows in which only the first half, quarter or eighth of the rows see any key of the block.
        for (const auto part : {2, 4, 8})
            if (tokens / part >= 128)
                wanted.push_back(
                    {sample_of(Kind::attend, window(tokens / part), "contiguous", 2, 1, 0, tokens), calls});
        wanted.push_back({sample_of(Kind::attend, documents(tokens), tokens), calls});
    }
}

/// Attends by one of the machine's other kernels. `most`: largest number of tokens of a rank.
void add_attends(std::vector<Wanted>& wanted, const AttentionKernel& kernel, std::int64_t most) {
    constexpr double some_cap = 50;  // any value: the time does not depend on it
    const auto add = [&](GpuSample sample, const Calls& calls) {
        sample.head_dim = kernel.forward.head_dim;
        sample.value_dim = kernel.forward.value_dim;
        sample.soft_cap = kernel.scores == sim::Scores::capped ? some_cap : 0;
        wanted.push_back({sample, calls});
    };
    for (const auto part : {16, 8, 4, 2, 1})
        add(sample_of(Kind::attend, "causal", most / part), part == 8 || part == 2 ? both_whole : every_turn);
    for (const auto part : {8, 4, 2})
        add(sample_of(Kind::attend, "full", most / part), part == 4 ? every_turn : both_whole);
    add(sample_of(Kind::attend, "causal", "zigzag", 2, 0, 1, most / 4), every_turn);
    add(sample_of(Kind::attend, "causal", "zigzag", 2, 1, 0, most / 4), every_turn);
    for (const auto part : {4, 2})
        for (const auto of_window : {most / part / 2, most / part / 8})
            add(sample_of(Kind::attend, window(of_window), "contiguous", 2, 1, 0, most / part), every_turn);
    // Held out of the fit.
    add(sample_of(Kind::attend, "causal", "zigzag", 4, 2, 1, most / 2), every_turn);
    add(sample_of(Kind::attend, documents(most / 4), most / 4), every_turn);
    add(sample_of(Kind::attend, window(most / 8), "contiguous", 2, 1, 0, most / 2), every_turn);
    if (kernel.scores == sim::Scores::plain)  // power does not limit kernels with capped scores
        add(sample_of(Kind::sustained, "causal", most), both_whole);
}

/// Whole passes, and single things, on one GPU.
void add_passes_on_one_gpu(std::vector<Wanted>& wanted, const SweepConfig& sweep) {
    const auto add = [&](GpuSample sample, const char* schedule) {
        sample.schedule_name = schedule;
        sample.transport = "loopback";
        wanted.push_back({sample});
    };
    // Of one rank, and of ranks that take turns and carry their rows from block to block.
    for (const auto tokens : sweep.tokens) {
        for (const auto& mask : sweep.masks) {
            add(sample_of(Kind::pass, mask, tokens), "ring");
            add(sample_of(Kind::pass, mask, "contiguous", 2, 0, 0, tokens), "ring");
        }
        // The other schedules' passes also contain copies, merges and sums.
        for (const auto* schedule : {"ring", "ulysses", "pass-q", "pull", "all-gather"})
            add(sample_of(Kind::pass, "causal", "zigzag", 2, 0, 0, tokens), schedule);
    }
}

void add_single_things(std::vector<Wanted>& wanted, const SweepConfig& sweep, int gpus) {
    const auto largest = std::ranges::max(sweep.tokens);
    for (const auto tokens : sweep.tokens) wanted.push_back({sample_of(Kind::rotation, "full", tokens)});
    for (const auto tokens : {std::max<std::int64_t>(1, largest / 4), largest, 2 * largest, 4 * largest}) {
        wanted.push_back({sample_of(Kind::attend, "causal", tokens), both_whole});
        wanted.push_back({sample_of(Kind::sustained, "causal", tokens), both_whole});
    }
    for (int gpu = 1; gpu < gpus; ++gpu)
        for (const auto tokens : {largest, 4 * largest})
            wanted.push_back({sample_of(Kind::sustained, "causal", "contiguous", 1, gpu, 0, tokens), both_whole});
    for (const std::int64_t keys : {8192, 65536, 262144})
        for (const std::int64_t queries : {1, 16}) {
            wanted.push_back({sample_of(Kind::few_rows, "causal", keys)});
            wanted.back().sample.queries = queries;
        }
    for (const auto& mask : sweep.masks)
        for (const auto tokens : {largest / 4, largest}) wanted.push_back({sample_of(Kind::dropout, mask, tokens)});
    wanted.push_back({{.kind = Kind::product}});
}

void add_links(std::vector<Wanted>& wanted, const std::string& transport, int gpus, std::int64_t largest) {
    // Only one token of each rank is valid, so whole blocks travel but next to nothing is computed.
    const auto add = [&](std::initializer_list<const char*> schedules, std::initializer_list<std::int64_t> lengths) {
        for (const auto tokens : lengths)
            for (const auto* schedule : schedules) {
                auto& one = wanted.emplace_back(
                    Wanted{sample_of(Kind::pass, fmt::format("valid:0-{}", gpus), "striped", gpus, 0, 0, tokens)});
                one.sample.schedule_name = schedule;
                one.sample.transport = transport;
            }
    };
    add({"ring"}, {16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768});
    // Messages of several pieces: parts of rows and keys that are not adjacent in memory.
    add({"ulysses", "pass-q"}, {64, 512, 2048, 8192});
    // Many short runs, because the host's time of a transfer varies more from run to run than within a run.
    add({"all-gather", "pull", "joined-ring", "bidirectional"}, {16, 64, 256});
    if (transport != "nccl") return;  // nothing else takes SMs from attends
    constexpr std::int64_t mebibyte = 1 << 20;
    for (const auto bytes : {2 * mebibyte, 8 * mebibyte, 32 * mebibyte, 128 * mebibyte}) {
        auto& one = wanted.emplace_back(Wanted{sample_of(Kind::message, "causal", largest)});
        one.sample.call = "forward_carried";
        one.sample.transport = transport;
        one.sample.bytes = bytes;
    }
}

std::string name_of(const GpuSample& sample) {
    return fmt::format("{}: {} {} rank {} of {}, block {}, {} tokens, dims {}/{} {} {}", to_string(sample.kind),
                       sample.mask, sample.layout, sample.rank, sample.ranks, sample.block, sample.tokens_per_rank,
                       sample.head_dim, sample.value_dim, sample.schedule_name, sample.transport);
}

class GpuMeasurement {
public:
    GpuMeasurement(const ProblemConfig& config, Backend& gpus) : gpus_(gpus) {
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

    const GpuSamples& all() const { return all_; }

    std::vector<Wanted> wanted(const SweepConfig& sweep) const {
        const auto largest = std::ranges::max(sweep.tokens);
        std::vector<Wanted> wanted;
        add_attends(wanted, sweep);
        for (const auto& kernel : all_.machine.kernels) add_attends(wanted, kernel, largest);
        add_passes_on_one_gpu(wanted, sweep);
        add_single_things(wanted, sweep, all_.gpus);
        for (const auto& transport : gpus_.transports()) add_links(wanted, transport, all_.gpus, largest);
        return wanted;
    }

    void time(const Wanted& wanted) {
        const auto& sample = wanted.sample;
        switch (sample.kind) {
            case Kind::attend: return time_in_short_runs(wanted);
            case Kind::sustained: return time_without_rests(wanted);
            case Kind::pass: return time_passes(sample);
            case Kind::rotation: return time_rotations(sample);
            case Kind::product: return time_products(sample);
            case Kind::message: return time_beside_attends(sample);
            default: return time_attend_by_executor(sample);
        }
    }

private:
    void keep(GpuSample sample, const Typical& timed) {
        sample.take(timed);
        all_.samples.push_back(std::move(sample));
    }

    /// Calls of a plan in milliseconds of work with a rest of four times as many: far from where power limits clocks.
    void time_in_short_runs(const Wanted& wanted) {
        auto sample = wanted.sample;
        const auto plan = all_.plan(sample);
        const auto found =
            gpus_.time_calls({.plan = plan.get(), .rank = sample.rank, .block = sample.block, .names = wanted.calls},
                             {.rounds = 5, .seconds = 0.0015, .warm_up_seconds = 0, .rest = 4});
        for (std::size_t i = 0; i < wanted.calls.size(); ++i) {
            sample.call = wanted.calls[i];
            keep(sample, typical(found.calls[i].all()));
        }
    }

    /// Calls of a plan without any rest, each at the clock that the power of the GPU then allows.
    void time_without_rests(const Wanted& wanted) {
        auto sample = wanted.sample;
        const auto plan = all_.plan(sample);
        for (const auto& call : wanted.calls) {
            sample.call = call;
            const auto found = gpus_.time_calls({.plan = plan.get(), .names = {call}, .device = sample.rank},
                                                {.rounds = 4, .seconds = 0.15, .warm_up_seconds = 0.4, .rest = 0});
            sample.clock_hertz = 0;
            for (const auto& clock : found.clocks)
                sample.clock_hertz += clock.sm_mhz * 1e6 / static_cast<double>(found.clocks.size());
            keep(sample, typical(found.calls.front().all()));
        }
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

    void time_rotations(GpuSample sample) {
        const auto found = executed(*all_.plan(sample), "loopback", Timelines::none);
        for (const auto pass : both_passes) {
            sample.call = to_string(pass);
            keep(sample, typical(slowest(found.of(pass).rotation)));
        }
    }

    /// The only attend of a pass of one rank: of few rows, which have no backward pass, or with dropout.
    void time_attend_by_executor(GpuSample sample) {
        const auto plan = all_.plan(sample);
        const auto found = executed(*plan, "loopback", Timelines::all);
        for (const auto pass : both_passes) {
            sample.call = to_string(pass);
            if (sample.kind == Kind::few_rows && pass == layouts::Pass::backward) continue;
            for (const auto& operation : executed_operations(*plan->schedule(pass), found.of(pass)))
                if (operation.op.kind == layouts::OpKind::attend) keep(sample, operation.seconds);
        }
    }

    void time_products(const GpuSample& sample) {
        const auto found = gpus_.time_calls({.names = {"matrix_product"}},
                                            {.rounds = 4, .seconds = 0.1, .warm_up_seconds = 0.2, .rest = 0});
        if (found.calls.empty()) return;
        const auto timed = typical(found.calls.front().all());
        keep(sample, {matrix_product_flop / timed.median, timed.spread});
    }

    void time_passes(GpuSample sample) {
        const auto plan = all_.plan(sample);
        // Passes whose operations are timed take longer: the whole is timed without.
        const auto whole = executed(*plan, sample.transport, Timelines::none),
                   parts = executed(*plan, sample.transport, Timelines::all);
        for (const auto pass : both_passes) {
            sample.call = to_string(pass);
            sample.kind = Kind::pass;
            keep(sample, typical(slowest(whole.of(pass).seconds)));
            sample.kind = Kind::period;
            keep(sample, {whole.of(pass).period, 0});
            auto part = sample;
            part.kind = Kind::operation;
            for (const auto& operation : executed_operations(*plan->schedule(pass), parts.of(pass))) {
                part.rank = operation.rank;
                part.op = operation.index;
                part.posted = operation.posted;
                part.begin = operation.begin;
                keep(part, operation.seconds);
            }
        }
    }

    void time_beside_attends(GpuSample sample) {
        const auto plan = all_.plan(sample);
        for (const auto& times :
             gpus_.time_busy_links({.plan = plan.get(), .names = {sample.call}}, sample.transport, sample.bytes)) {
            sample.kind = times.name == "message" ? Kind::message : times.name == "alone" ? Kind::alone : Kind::beside;
            keep(sample, typical(times.all()));
        }
    }

    Backend& gpus_;
    GpuSamples all_;
};

}  // namespace

GpuSamples measure_gpus(const ProblemConfig& problem, const SweepConfig& sweep, Backend& gpus,
                        const std::function<void(const GpuSamples&)>& keep) {
    GpuMeasurement measurement(problem, gpus);
    const auto wanted = measurement.wanted(sweep);
    Progress progress(wanted.size(), false);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        progress.start(name_of(wanted[i].sample));
        measurement.time(wanted[i]);
        if (i % 10 == 9) keep(measurement.all());
        progress.finish();
    }
    keep(measurement.all());
    return measurement.all();
}

}  // namespace ringlab::experiments
