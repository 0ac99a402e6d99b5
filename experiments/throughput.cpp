// How fast is it? Rings over GPUs and kernels alone, beside the same work on one GPU, a matrix product and
// the links, all in one run: sizes x layouts x masks x schedules x transports, forward and backward.

#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

void add_compared(Options& options, TimingConfig& timing) {
    options
        .add("beside", &timing.beside, "NAME",
             "what is timed for comparison: work (as much work on one GPU), ceilings (matrix products and links), or "
             "none")
        .one_of({"work", "ceilings", "none"});
    options
        .add("protocol", &timing.protocols, "NAME",
             "how kernels alone are timed: sustained (back to back, at the clock that power then allows), burst (ten "
             "separate passes with new inputs, L2 cleared before each; the median of the last five)")
        .one_of({"sustained", "burst"});
    options.add_flag("deterministic", timing.deterministic,
                     "time rings with deterministic dQ: contributions are added in a fixed order");
}

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_heads(options, config.problem);
    add_scores(options, config.problem);
    add_sinks(options, config.problem);
    add_dropout(options, config.problem);
    add_sweep(options, config.sweep);
    options.section("How it is timed");
    options
        .add(
            "backend", &config.execution.backend, "NAME",
            "what runs the ranks: cuda (a GPU each) or cpu (a processor of this machine each), which times rings alone")
        .one_of({"cuda", "cpu"});
    add_timed_rings(options, config);
    add_compared(options, config.timing);
}

const Experiment experiment{
    "throughput",
    "Times attention on GPUs: TFLOP/s per GPU over visible pairs, of the slowest rank, once clocks and "
    "power are steady.\n"
    "Rings are compared with a sequence of as much work on one GPU, while all GPUs are busy. With "
    "--ranks 1, kernels are\n"
    "timed alone, in turns. Both are compared with a matrix product. With --protocol sustained burst, "
    "kernels alone are\n"
    "also timed in separate single passes, as in cuDNN's published tables. The table has the median and "
    "spread, the HDF5\n"
    "record every sample, clocks and power. Results are not judged here: gradient_equivalence does that.\n"
    "Other systems' kernels are timed in the same way by python -m ringlab.peers.",
    "throughput --ranks 4 --tokens-per-rank 2048 8192 32768 --layouts zigzag striped --transports copy nccl",
    add_options};

Config defaults() {
    Config config;
    config.problem.heads = "32:8";
    config.problem.head_dim = 128;
    config.sweep.tokens_per_rank = {2048, 8192, 32768};
    config.sweep.layouts = {"zigzag"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {1};
    config.timing.transports = {"copy"};
    config.timing.kernels = {"auto"};
    config.timing.beside = {"work", "ceilings"};
    config.execution.backend = "cuda";
    config.problem.arithmetic = "bf16";
    config.execution.repeats = 5;
    config.execution.timeout_seconds = 60;
    config.output.path = "throughput.h5";
    return config;
}

void time_case(const ThroughputCase& timed, const Config& config, Backend& backend, RunWriter& run) {
    using Kind = ThroughputCase::Kind;
    constexpr int rounds = 5;
    const CallTiming timing{.rounds = rounds,
                            .seconds = config.timing.repeat_seconds / rounds,
                            .warm_up_seconds = config.timing.warm_up_seconds,
                            .sustained = asks_protocol(config.timing, "sustained"),
                            .bursts = asks_protocol(config.timing, "burst")};
    if (timed.kind == Kind::ceilings) {
        if (!backend.is_root()) return;
        constexpr std::int64_t mebibyte = 1 << 20;
        auto times = backend.time_calls({.names = {"matrix_product"}}, timing);
        times.links = backend.time_links(timed.gpus, {8 * mebibyte, 32 * mebibyte, 128 * mebibyte});
        return describe_ceilings(run, times, matrix_product_flop);
    }
    const auto plan = make_plan(timed, config.problem);
    if (timed.kind == Kind::device) {
        if (!backend.is_root()) return;
        const std::vector<std::string> calls{"forward", "forward_carried", "backward", "backward_kernel",
                                             "backward_deterministic"};
        return describe_device(run, timed, plan,
                               backend.time_calls({.plan = &plan, .names = calls, .kernels = timed.kernels}, timing));
    }
    auto options = timed_options(config.execution, config.timing, config.problem.seed);
    options.transport = timed.transport;
    options.kernels = timed.kernels;
    const auto ring = side_by_side(backend.run(plan, timed.group(), options));
    if (backend.is_root()) describe_ring(run, timed, plan, ring);
}

/// What the backend can do, where the user does not say. Throws Error if it lacks a transport that is asked for.
void settle(Config& config) {
    const auto kind = backend_kind(config.execution);
    const auto known = kind->transports();
    auto& transports = config.timing.transports;
    if (!config.given.contains("transports")) transports = {known.front()};
    for (const auto& transport : transports)
        require(std::ranges::count(known, transport) > 0, "--transports {}: rings of --backend {} have {}", transport,
                config.execution.backend, fmt::join(known, ", "));
    if (kind->on_processors() && !config.given.contains("beside")) config.timing.beside = {"none"};
}

int study(Config& config, int argc, char** argv) {
    settle(config);
    // 1. Lay out every case; find the GPUs; open the record.
    const auto cases = throughput_cases(config.problem, config.sweep, config.timing);
    for (const auto& timed : cases)
        if (timed.kind != ThroughputCase::Kind::ceilings) make_plan(timed, config.problem);  // refuse now, not midway
    const auto backend =
        make_backend(config.execution,
                     {.ranks = config.sweep.ranks, .arithmetic = config.problem.arithmetic, .device_per_rank = true});
    std::unique_ptr<Record> record;
    if (backend->is_root()) {
        auto provenance = collect_provenance(argc, argv);
        backend->add_provenance(provenance);
        record = make_record(experiment, config, std::move(provenance));
    }

    // 2. Time each case that the record lacks.
    {
        Progress progress(cases.size(), !record);
        for (const auto& timed : cases) {
            progress.start(timed.name());
            if (!is_recorded(config.execution, *backend, record && record->has(timed.name()))) {
                RunWriter run;
                time_case(timed, config, *backend, run);
                if (record) record->commit(timed.name(), run);
            }
            progress.finish();
        }
    }

    // 3. The tables.
    if (!record) return 0;
    record->finish();
    fmt::print(
        "{}\n"
        "TFLOP/s per GPU of the slowest rank, over visible pairs. Spread: distance of the quartiles divided "
        "by the median.\n"
        "One GPU: a sequence with as much work, on every GPU at the same time. Extra: memory beyond Q, K, V, "
        "dO and gradients\n"
        "in the shape's arithmetic.\n"
        "Record: {}\n",
        throughput_tables(*record, cases), record->name());
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program_in_session(experiment, defaults(), study, argc, argv);
}
