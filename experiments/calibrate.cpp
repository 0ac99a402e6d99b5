// What does attention cost on this computer? Times single-rank passes of the CPU backend, fits the simulator's cost
// model to them, and writes a machine file, so that what compare_layouts predicts and what it measures are about the
// same machine. Nothing measured on more than one rank enters the fit.

#include "experiments/calibration/calibrate_gpu.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/run_main.hpp"
#include "experiments/console/table.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/record_files.hpp"
#include "experiments/study/case.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/least_squares.hpp"
#include "reference/cpu/cpu_attention.hpp"
#include "sim/machine.hpp"

#include <fmt/format.h>

#include <array>
#include <map>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "calibrate",
    "Times parts of attention on this machine, none of them a ring, fits the cost model of the simulator, checks it "
    "on\n"
    "what was held out, and writes a machine file (TOML, to be read and edited; every figure says where it comes "
    "from)\n"
    "for --machines of the other experiments. --backend cpu times single ranks: time = launch + full tile * n + "
    "partial\n"
    "tile * m; ranks have a processor each there and messages cost nothing, so it is about compute and balance, not\n"
    "communication. --backend cuda times attends of one GPU, what surrounds them, clocks with and without rests, the\n"
    "host, and copies between GPUs beside attends; in a minute or two.",
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
    for (const auto& row : layouts::tile_work(plan.mask(), shard, shard, tiles.rows, tiles.keys).queries) {
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

/// Ranks that have a processor each, and messages that cost nothing.
std::string machine_file(const Config& config, const layouts::Problem& problem,
                         const std::array<std::vector<double>, 2>& fits, const double (&flops)[2],
                         const std::string& accuracy) {
    const reference::TileSizes tiles;
    sim::Machine machine;
    machine.name = fmt::format("this CPU, {}", config.arithmetic);
    machine.description = "CPU backend: compute of a rank calibrated on single-rank runs; messages cost nothing";
    std::map<std::string, std::string> sources{
        {"topology", "one computer"},     {"topology.gpus_per_host", "any number of ranks, a processor each"},
        {"gpu", "not calibrated"},        {"gpu.multiprocessors", "a rank computes on one thread"},
        {"host", "not calibrated"},       {"accumulate", "not calibrated"},
        {"inside_host", "not calibrated"}};
    for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
        const auto i = static_cast<std::size_t>(pass);
        auto& cost = pass == layouts::Pass::forward ? machine.forward : machine.backward;
        cost.head_dim = problem.head_dim;
        cost.value_dim = problem.value_dim;
        cost.tile_rows = tiles.rows;
        cost.tile_keys = tiles.keys;
        cost.launch_seconds = fits[i][0];
        cost.full_tile_seconds = fits[i][1];
        cost.partial_tile_seconds = fits[i][2];
        cost.flops = flops[i];
        const auto section = fmt::format("attention.{}", to_string(pass));
        sources[section] = "calibration runs, or tiles of the CPU backend";
        for (const auto* key : {".launch_us", ".full_tile_us", ".partial_tile_us"}) sources[section + key] = "fitted";
        sources[section + ".item_us"] = "none: what is done besides tiles is done for a block's keys";
        sources[section + ".teraflops"] = "measured: visible pairs, the best of the timed runs";
    }
    return sim::machine_text(
        machine, sources,
        fmt::format("This computer, as `calibrate` found it with {} arithmetic, heads {}:{}; {}.\n"
                    "Ranks have a processor each, and messages cost nothing: it predicts compute and balance, not "
                    "communication.\nHow to read a machine file: see h200_nvswitch_copy_engine.toml.",
                    config.arithmetic, problem.query_heads, problem.kv_heads, accuracy));
}

/// What the user left open, in sizes that suit GPUs.
Config with_gpu_defaults(Config config) {
    const auto open = [&](const char* option) { return !config.given.contains(option); };
    if (open("tokens") && open("tokens-per-rank")) config.tokens = {512, 1024, 2048, 4096, 8192};
    if (open("heads")) config.heads = "32:8";
    if (open("head-dim")) config.head_dim = 128;
    if (open("masks")) config.masks = {"causal", "full"};
    return config;
}

int body(int argc, char** argv) {
    // 1. What to time: every second case is held out, so that the fit is judged on sizes it has not seen.
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    say_notes(*config);
    if (const auto probe = backend_kind(*config)->probe(*config))
        return calibrate_gpu(with_gpu_defaults(*config), *probe);
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
    std::array<std::vector<double>, 2> fits;
    Table table({"mask", "tokens", "pass", "measured ms", "fitted ms", "error", ""});
    double worst_held_out = 0;
    for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
        const auto i = static_cast<std::size_t>(pass);
        const auto& found = fits[i] = fit(samples, i);
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
    const auto text = machine_file(*config, source.inspect(config->inputs.front()).problem, fits, flops, accuracy);
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
