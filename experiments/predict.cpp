// What will it cost? The simulator alone: any machine file, layouts x masks x schedules x ring sizes x sequence
// lengths, up to thousands of ranks.

#include "experiments/command_line/command_line.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/main/run_main.hpp"
#include "experiments/memory/memory.hpp"
#include "experiments/options/values.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/in_order.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "predict",
    "Predicts what schedules cost on described machines, without executing them: time of both passes, TFLOP/s per "
    "GPU,\n"
    "balance, and where the time goes. Beside the prediction stand the two guesses that need no\n"
    "simulator, so one sees what it explains. For thousands of ranks use --compute-model rate, and for the largest "
    "rings\n"
    "--engine symmetric.",
    "predict --preset llama-3.1-70b --ranks 8 64 --tokens-per-rank 8192 --machines h200_cluster --trace trace.json",
    {.predicts = true, .policies = true, .disturbs = true}};

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
    config.cause_ranks = 16;
    config.repeats = 100;
    config.jitter.slow_gpu_factor = 1.2;
    config.jitter.slow_link_factor = 2;
    config.output = "predict.h5";
    return config;
}

/// Percentiles of disturbed times as cells.
void add_percentiles(std::vector<std::string>& row, const std::vector<double>& seconds) {
    for (const auto percent : disturbed_percents)
        row.push_back(seconds.empty() ? "-" : fmt::format("{:.4g}", percentile(seconds, percent) * 1e3));
}

class Summary {
public:
    Summary(const Config& config, const Record& record)
        : config_(config), record_(record), table_(header(config)), causes_(beginning_of_header(config)) {}

    void add(const std::string& machine, const Case& which) {
        double seconds = 0;
        std::vector<double> disturbed;
        for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
            const auto one = add(machine, which, pass);
            seconds += values(machine, which, pass, "makespan").front();
            disturbed.resize(one.size());
            for (std::size_t i = 0; i < one.size(); ++i) disturbed[i] += one[i];
        }
        if (!config_.disturbs()) return;
        auto row = beginning(machine, which, "both", seconds);
        add_percentiles(row, disturbed);
        row.insert(row.end(), {"-", "-", "-", "-", "-"});
        table_.add(row);
    }

    std::string text() const { return table_.text(); }
    std::string causes() const { return causes_.text(); }

private:
    static std::vector<std::string> beginning_of_header(const Config& config) {
        std::vector<std::string> columns{"machine", "mask", "layout", "algorithm", "P", "tokens", "pass", "ms"};
        if (!config.policies.empty()) columns.insert(columns.begin() + 4, "policy");
        return columns;
    }

    static std::vector<std::string> header(const Config& config) {
        auto columns = beginning_of_header(config);
        if (config.disturbs())
            for (const auto percent : disturbed_percents) columns.push_back(fmt::format("{} % ms", percent));
        columns.insert(columns.end(), {"TFLOP/s/GPU", "balance", "max(c,t) ms", "c+t ms", "memory"});
        return columns;
    }

    std::vector<double> values(const std::string& machine, const Case& which, layouts::Pass pass,
                               const char* name) const {
        return record_.numbers(which.name(), fmt::format("predicted/{}", name), prediction_labels(machine, pass));
    }

    std::vector<std::string> beginning(const std::string& machine, const Case& which, const char* pass,
                                       double seconds) const {
        std::vector<std::string> row{machine,
                                     which.mask,
                                     which.layout,
                                     which.algorithm,
                                     fmt::format("{}", which.ranks),
                                     fmt::format("{}", which.tokens),
                                     pass,
                                     fmt::format("{:.4g}", seconds * 1e3)};
        if (!config_.policies.empty()) row.insert(row.begin() + 4, which.policy);
        return row;
    }

    /// Returns the times of the disturbed repeats, if any.
    std::vector<double> add(const std::string& machine, const Case& which, layouts::Pass pass) {
        const auto of = [&](const char* name) { return values(machine, which, pass, name); };
        const auto flop = record_.number(which.name(), fmt::format("flop_{}", to_string(pass)));
        const auto makespan = of("makespan").front();
        auto row = beginning(machine, which, to_string(pass), makespan);
        causes_.add(row, record_, which.name(), prediction_labels(machine, pass));
        std::vector<double> disturbed;
        if (config_.disturbs()) add_percentiles(row, disturbed = of("disturbed_makespan"));
        row.push_back(quotient(flop / which.ranks / 1e12, makespan, "{:.0f}"));
        if (config_.engine == "symmetric") {
            row.insert(row.end(), {"-", "-", "-"});
        } else {
            row.insert(row.end(), {fmt::format("{:.3f}", layouts::imbalance(of("compute_time"))),
                                   fmt::format("{:.4g}", of("naive_overlapped").front() * 1e3),
                                   fmt::format("{:.4g}", of("naive_serial").front() * 1e3)});
        }
        row.push_back(memory_text(static_cast<std::int64_t>(record_.number(which.name(), "memory_predicted"))));
        table_.add(row);
        return disturbed;
    }

    const Config& config_;
    const Record& record_;
    Table table_;
    CauseTable causes_;
};

int body(int argc, char** argv) {
    // 1. Configuration, machines, cases, record.
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    say_notes(*config);
    const auto threads = config->trace.empty() ? threads_of(*config) : 1;  // of a trace the first runs come first
    const auto cases = all_cases(*config, 0);
    Predictor predictor(*config);
    Forecast forecast(*config);
    forecast.require_ranks_to_predict();
    for (const auto& which : cases)  // refuse now, not midway
        forecast.add_predicted(which, make_plan(which, problem_from(*config), *config, {}), predictor.machines().size(),
                               threads);
    forecast.announce();
    // Cases are independent; where they are fewer than threads, the repeats of each have several.
    const auto fit = std::max(1.0, free_memory() / forecast.bytes());
    const auto at_once =
        static_cast<int>(std::min({fit, static_cast<double>(cases.size()), static_cast<double>(threads)}));
    predictor.predict_as_configured(threads / at_once);
    auto provenance = collect_provenance(argc, argv);
    predictor.add_provenance(provenance);
    Record record(config->output, record_opening(*config), {experiment.name, experiment.purpose, config->text},
                  std::move(provenance));

    // 2. Predict each case that the record lacks.
    std::vector<std::size_t> lacking;
    for (std::size_t i = 0; i < cases.size(); ++i)
        if (!record.has(cases[i].name())) lacking.push_back(i);
    const auto predicted = [&](std::size_t i) {
        const auto& which = cases[lacking[i]];
        const auto plan = make_plan(which, problem_from(*config), *config, {});
        RunWriter run;
        describe_case(run, which, plan);
        predictor.predict(run, which.name(), plan);
        describe_predicted_memory(run, plan,
                                  memory_model(*config, policy_from(which.policy, plan.problem.dtype), false));
        return run;
    };
    {
        Progress progress(lacking.size(), false);
        const auto start = [&](std::size_t i) {
            say_when_interrupted(interrupted_text(record, cases.size() - lacking.size() + i, cases.size()));
            if (i < lacking.size()) progress.start(cases[lacking[i]].name(), forecast.seconds_of(lacking[i]));
        };
        start(0);
        make_in_parallel(lacking.size(), at_once, predicted, [&](std::size_t i, RunWriter run) {
            record.commit(cases[lacking[i]].name(), run);
            progress.finish();
            start(i + 1);
        });
    }
    record.finish();
    predictor.write_trace();

    // 3. The table.
    Summary summary(*config, record);
    for (const auto& machine : predictor.machines())
        for (const auto& which : cases) summary.add(machine, which);
    fmt::print(
        "{}\nBalance: largest compute time over mean. max(c,t) and c+t: the slowest rank's steps without a simulator.\n"
        "Memory: of the rank that needs most, both passes.\n"
        "{}\n{}Record: {}\n",
        summary.text(),
        config->disturbs()
            ? fmt::format("ms: undisturbed. N %: so many of {} disturbed repeats are quicker.\n", config->repeats)
            : "",
        summary.causes(), record.name());
    return 0;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
