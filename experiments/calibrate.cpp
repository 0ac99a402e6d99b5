// What does attention cost on this computer? Times single-rank passes of the CPU backend, fits the simulator's cost
// model to them, and writes a machine file, so that what compare_layouts predicts and what it measures are about the
// same machine. Nothing measured on more than one rank enters the fit.

#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/record_files.hpp"
#include "experiments/study/case.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/least_squares.hpp"
#include "reference/cpu/cpu_attention.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "calibrate",
    "Times attention of a single rank on the CPU backend at several sizes and masks, fits the cost model of the "
    "simulator\n"
    "(time = launch + full tile * n + partial tile * m), checks it on "
    "sizes\n"
    "that were held out, and writes a machine file (TOML, to be read and edited; every figure says where it comes "
    "from)\n"
    "for --machines of the other experiments. It describes ranks that have a processor each and messages that cost\n"
    "nothing: compute and balance, not communication.",
    "calibrate --arithmetic bf16 && compare_layouts --machines ./this_cpu.toml",
    {.measures = true},
    FileKind::machine};

Config defaults() {
    Config config;
    config.inputs = {"normal"};
    config.tokens = {128, 192, 256, 384, 512};
    config.masks = {"causal", "full", "window:100,0"};
    config.layouts = {"contiguous"};
    config.algorithms = {"ring"};
    config.ranks = {1};
    config.arithmetic = "bf16";
    config.judge = false;
    config.output = "this_cpu.toml";
    return config;
}

// launch, full tile, partial tile. A row of tiles costs nothing by itself here: what the backend does besides tiles, it
// does for a block's keys, also where most rows do not see them.
constexpr std::size_t parameters = 3;

/// One timed case: how often each parameter enters, and the seconds it took.
struct Sample {
    Case which;
    std::array<double, parameters> counts{};
    std::array<double, 2> seconds{};  // by pass
    bool held_out = false;
};

std::array<double, parameters> count_tiles(const Plan& plan) {
    const reference::TileSizes tiles;
    std::array<double, parameters> counts{1, 0, 0};
    const auto heads = static_cast<double>(plan.problem.query_heads * plan.problem.batch);
    const auto shard = plan.layout().shard(0);
    for (const auto& row : layouts::tile_work(plan.mask(), shard, shard, tiles.rows, tiles.keys)) {
        counts[1] += heads * static_cast<double>(row.full);
        counts[2] += heads * static_cast<double>(row.partial);
    }
    return counts;
}

double predicted(const Sample& sample, const std::vector<double>& fit) {
    double seconds = 0;
    for (std::size_t i = 0; i < parameters; ++i) seconds += sample.counts[i] * fit[i];
    return seconds;
}

/// Least squares of relative errors, over the samples that are not held out.
std::vector<double> fit(const std::vector<Sample>& samples, std::size_t pass) {
    std::vector<double> rows, ones;
    for (const auto& sample : samples) {
        if (sample.held_out) continue;
        for (const auto count : sample.counts) rows.push_back(count / sample.seconds[pass]);
        ones.push_back(1);
    }
    return nonnegative_least_squares(rows, ones, parameters);
}

std::string attention_section(const char* pass, const layouts::Problem& problem, const std::vector<double>& fit,
                              double flops) {
    const reference::TileSizes tiles;
    return fmt::format(R"(
[attention.{0}]
head_dim = {{ value = {1}, source = "calibration runs" }}
value_dim = {{ value = {2}, source = "calibration runs" }}
tile_rows = {{ value = {3}, source = "tiles of the CPU backend" }}
tile_keys = {{ value = {4}, source = "tiles of the CPU backend" }}
launch_us = {{ value = {5:.4f}, source = "fitted" }}
query_tile_us = {{ value = 0, source = "none: see launch_us" }}
full_tile_us = {{ value = {6:.4f}, source = "fitted" }}
partial_tile_us = {{ value = {7:.4f}, source = "fitted" }}
teraflops = {{ value = {8:.6f}, source = "measured: visible pairs, the best of the timed runs" }}
)",
                       pass, problem.head_dim, problem.value_dim, tiles.rows, tiles.keys, fit[0] * 1e6, fit[1] * 1e6,
                       fit[2] * 1e6, flops / 1e12);
}

std::string machine_file(const Config& config, const layouts::Problem& problem, const std::string& attention,
                         const std::string& accuracy) {
    return fmt::format(R"(# This computer, as `calibrate` found it with {0} arithmetic, heads {1}:{2}; {3}.
# Ranks have a processor each, and messages cost nothing: it predicts compute and balance, not communication.
# How to read a machine file: see h200_nvswitch_copy_engine.toml.

name = "this CPU, {0}"
description = "CPU backend: compute of a rank calibrated on single-rank runs; messages cost nothing"

[topology]
hosts = {{ value = 1, source = "one computer" }}
gpus_per_host = {{ value = 1048576, source = "any number of ranks, each with a processor of its own" }}
nics_per_host = {{ value = 1, source = "of no effect on one host" }}

[gpu]
multiprocessors = {{ value = 1, source = "a rank computes on one thread" }}
memory_gigabytes_per_second = {{ value = inf, source = "not calibrated" }}
attention_memory_gigabytes_per_second = {{ value = 0, source = "not calibrated" }}
sustained_clock_factor = {{ value = 1.0, source = "not calibrated" }}

[host]
compute_issue_us = {{ value = 0, source = "not calibrated" }}
transfer_issue_us = {{ value = 0, source = "not calibrated" }}
{4}
[accumulate]
launch_us = {{ value = 0, source = "not calibrated" }}
merge_memory_ratio = {{ value = 0, source = "not calibrated" }}
add_memory_ratio = {{ value = 0, source = "not calibrated" }}
carry_exposed_ratio = {{ value = 0, source = "not calibrated" }}

[inside_host]
latency_us = {{ value = 0, source = "not calibrated" }}
link_gigabytes_per_second = {{ value = inf, source = "not calibrated" }}
channel_gigabytes_per_second = {{ value = inf, source = "not calibrated" }}
channels = {{ up_to_mebibytes = [inf], value = [1], source = "not calibrated" }}
messages_per_block = {{ value = 1, source = "not calibrated" }}
busy_speed_ratio = {{ value = 1.0, source = "not calibrated" }}
multiprocessors_per_channel = {{ value = 0, source = "not calibrated" }}
send_memory_ratio = {{ value = 0, source = "not calibrated" }}
receive_memory_ratio = {{ value = 0, source = "not calibrated" }}
)",
                       config.arithmetic, problem.query_heads, problem.kv_heads, accuracy, attention);
}

int body(int argc, char** argv) {
    // 1. What to time: every second case is held out, so that the fit is judged on sizes it has not seen.
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    say_notes(*config);
    Source source(*config);
    const auto backend = make_backend(*config, 1);
    const auto plan_of = [&](const Case& which) {
        return make_plan(which, source.inspect(which.input).problem, *config, {});
    };
    std::vector<Sample> samples;
    Forecast forecast(*config);
    for (const auto& which : all_cases(*config, source.tokens())) {
        forecast.add_executed(which, plan_of(which));  // refuse now, not midway
        samples.push_back({which, {}, {}, false});
    }
    require(samples.size() >= 2 * parameters, "{} timed cases do not determine {} figures; give more tokens or masks",
            samples.size(), parameters);
    for (std::size_t i = 1; i < samples.size(); i += 3) samples[i].held_out = true;
    forecast.announce();

    // 2. Time them.
    say_when_interrupted("interrupted; no machine file was written");
    double flops[2] = {0, 0};
    {
        Progress progress(samples.size(), false);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            auto& sample = samples[i];
            progress.start(sample.which.name(), forecast.seconds_of(i));
            const auto plan = plan_of(sample.which);
            sample.counts = count_tiles(plan);
            const auto& inputs = source.get(sample.which, plan.problem.tokens);
            auto repeats = backend->run(plan, {}, std::span(&inputs.front().inputs, 1), config->repeats + 1);
            repeats.erase(repeats.begin());  // warm-up
            for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
                const auto way = static_cast<std::size_t>(pass);
                sample.seconds[way] = median_attend_seconds(repeats, pass).front();
                const auto& schedule = pass == layouts::Pass::forward ? *plan.forward : *plan.backward;
                auto ops = schedule.ops(0);  // one rank: the whole pass is one attend
                flops[way] = std::max(flops[way], schedule.flop(*ops.next()) / sample.seconds[way]);
            }
            progress.finish();
        }
    }

    // 3. Fit, check on what was held out, write.
    std::string attention;
    Table table({"mask", "tokens", "pass", "measured ms", "fitted ms", "error", ""});
    double worst_held_out = 0;
    for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
        const auto i = static_cast<std::size_t>(pass);
        const auto found = fit(samples, i);
        attention +=
            attention_section(to_string(pass), source.inspect(config->inputs.front()).problem, found, flops[i]);
        for (const auto& sample : samples) {
            const auto error = predicted(sample, found) / sample.seconds[i] - 1;
            if (sample.held_out) worst_held_out = std::max(worst_held_out, std::abs(error));
            table.add({sample.which.mask, fmt::format("{}", sample.which.tokens), to_string(pass),
                       fmt::format("{:.3f}", sample.seconds[i] * 1e3),
                       fmt::format("{:.3f}", predicted(sample, found) * 1e3), fmt::format("{:+.1f} %", error * 100),
                       sample.held_out ? "held out" : ""});
        }
    }
    const auto accuracy = fmt::format("held-out runs are predicted within {:.1f} %", worst_held_out * 100);
    const auto text = machine_file(*config, source.inspect(config->inputs.front()).problem, attention, accuracy);
    replace_file(followed(config->output), std::as_bytes(std::span(text)));
    fmt::print("{}\n{}.\nMachine file: {}\n", table.text(), accuracy, config->output);
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
