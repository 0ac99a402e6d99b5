// What will it cost? The simulator alone: any machine file, layouts x masks x schedules x ring sizes x sequence
// lengths, up to thousands of ranks.

#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/run_main.hpp"
#include "experiments/console/table.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/memory.hpp"
#include "experiments/study/predictor.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <numeric>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "predict",
    "Predicts what schedules cost on described machines, without executing them: time of both passes, TFLOP/s per "
    "GPU,\n"
    "communication that compute does not hide, balance. Beside the prediction stand the two guesses that need no\n"
    "simulator, so one sees what it explains. For thousands of ranks use --compute-model rate, and for the largest "
    "rings\n"
    "--engine symmetric.",
    "predict --preset llama-3.1-70b --ranks 8 64 --tokens-per-rank 8192 --machines h200_cluster --trace trace.json",
    {.predicts = true}};

Config defaults() {
    Config config;
    config.heads = "32:8";
    config.head_dim = 128;
    config.layouts = {"contiguous", "zigzag", "striped"};
    config.masks = {"causal"};
    config.algorithms = {"ring"};
    config.ranks = {8};
    config.tokens_per_rank = {512, 1024, 2048, 4096, 8192, 16384, 32768};
    config.machines = {"h200_nvswitch_copy_engine", "h200_nvswitch_nccl"};
    config.arithmetic = "bf16";
    config.output = "predict.h5";
    return config;
}

int body(int argc, char** argv) {
    // 1. Configuration, machines, cases, record.
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    say_notes(*config);
    Predictor predictor(*config);
    const auto cases = all_cases(*config, 0);
    Forecast forecast(*config);
    forecast.require_ranks_to_predict();
    for (const auto& which : cases)  // refuse now, not midway
        forecast.add_predicted(which, make_plan(which, problem_from(*config), *config, {}),
                               predictor.machines().size());
    forecast.announce();
    auto provenance = collect_provenance(argc, argv);
    predictor.add_provenance(provenance);
    Record record(config->output, record_mode(*config), {experiment.name, experiment.purpose, config->text},
                  std::move(provenance));

    // 2. Predict each case that the record lacks.
    {
        Progress progress(cases.size(), false);
        for (std::size_t i = 0; i < cases.size(); ++i) {
            const auto& which = cases[i];
            say_when_interrupted(interrupted_text(*config, i, cases.size()));
            progress.start(which.name(), forecast.seconds_of(i));
            if (!record.has(which.name())) {
                const auto plan = make_plan(which, problem_from(*config), *config, {});
                RunWriter run;
                describe_case(run, which, plan);
                predictor.predict(run, which.name(), plan);
                describe_predicted_memory(run, plan,
                                          memory_model(*config, policy_from(which.policy, plan.problem.dtype), false));
                record.commit(which.name(), run);
            }
            progress.finish();
        }
    }
    record.finish();
    predictor.write_trace();

    // 3. The table.
    Table table({"machine", "mask", "layout", "algorithm", "P", "tokens", "pass", "ms", "TFLOP/s/GPU", "exposed",
                 "balance", "max(c,t) ms", "c+t ms", "memory"});
    for (const auto& machine : predictor.machines())
        for (const auto& which : cases)
            for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
                const auto values = [&](const char* name) {
                    return record.numbers(which.name(), fmt::format("predicted/{}", name),
                                          prediction_labels(machine, pass));
                };
                const auto value = [&](const char* name) { return values(name).front(); };
                const auto flop = record.number(which.name(), fmt::format("flop_{}", to_string(pass)));
                const auto makespan = value("makespan");
                std::vector<std::string> row{machine,
                                             which.mask,
                                             which.layout,
                                             which.algorithm,
                                             fmt::format("{}", which.ranks),
                                             fmt::format("{}", which.tokens),
                                             to_string(pass),
                                             fmt::format("{:.4g}", makespan * 1e3),
                                             quotient(flop / which.ranks / 1e12, makespan, "{:.0f}")};
                if (config->engine == "symmetric") {
                    row.insert(row.end(), {"-", "-", "-", "-"});
                } else {
                    const auto exposed = values("exposed_time");
                    const auto compute = values("compute_time");
                    const auto mean_exposed =
                        std::accumulate(exposed.begin(), exposed.end(), 0.0) / static_cast<double>(exposed.size());
                    row.insert(row.end(), {quotient(100 * mean_exposed, makespan, "{:.1f} %"),
                                           fmt::format("{:.3f}", layouts::imbalance(compute)),
                                           fmt::format("{:.4g}", value("naive_overlapped") * 1e3),
                                           fmt::format("{:.4g}", value("naive_serial") * 1e3)});
                }
                row.push_back(memory_text(static_cast<std::int64_t>(record.number(which.name(), "memory_predicted"))));
                table.add(row);
            }
    fmt::print(
        "{}\nExposed: mean share of the time in which a rank computes nothing. Balance: largest compute time over "
        "mean.\n"
        "max(c,t) and c+t: the slowest rank's steps without a simulator. Memory: of the rank that needs most, both "
        "passes.\n"
        "Record: {}\n",
        table.text(), config->output);
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
