// Which layout should a long sequence have? Every layout x mask x ring size x sequence length: predicted on described
// machines, executed and measured on the backend, and judged against fp64.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/table.hpp"
#include "experiments/memory/memory.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/record/provenance.hpp"
#include "experiments/study/study.hpp"
#include "processes/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace ringlab::experiments {
namespace {

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_queries(options, config.sweep);
    add_attention(options, config.problem);
    add_inputs(options, config);
    add_sweep(options, config.sweep);
    add_padding(options, config.sweep);
    options.section("How it is measured");
    add_backends(options, config.execution);
    add_arithmetic(options, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    add_processes(options, config.execution);
    add_repeats(options, config.execution, "number of measurements of each run");
    add_fault(options, config.execution);
    add_judge_limit(options, config.judging);
    options.section("What it is predicted on");
    add_machines(options, config.prediction);
    add_span_ranks(options, config.prediction);
    add_trace(options, config.trace);
}

const Experiment experiment{
    "compare_layouts",
    "Lays a sequence out over P ranks in several ways. Predicts on each machine what the schedule costs, "
    "executes it,\n"
    "measures each rank's work, and judges o, lse, dq, dk and dv against fp64. The HDF5 record has "
    "predictions and\n"
    "measurements side by side. Balance is the busiest rank's work divided by the mean: 1 is perfect.",
    "compare_layouts --layouts contiguous zigzag striped:64 --masks causal --ranks 8 --machines h200_nvswitch_nccl",
    add_options};

Config defaults() {
    Config config;
    config.sweep.inputs = {"real"};
    config.sweep.layouts = {"contiguous", "zigzag", "striped"};
    config.sweep.masks = {"causal", "full", "causal+documents:input", "window:512,0"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {8};
    config.problem.arithmetic = "bf16";
    config.prediction.machines = {"2cpus_calibrated", "h200_nvswitch_copy_engine"};
    config.prediction.cause_ranks = 16;
    config.output.path = "compare_layouts.h5";
    return config;
}

using Words = std::vector<std::string>;

/// Begins a line with what a case is.
void start_line(Table& table, const Case& setup, const SweepConfig& sweep) {
    table.start().cell("mask", setup.mask).cell("layout", setup.layout);
    if (sweep.schedules.size() > 1) table.cell("schedule", setup.schedule);
    table.cell("P", setup.ranks).cell("tokens", setup.tokens);
    if (!sweep.queries.empty())
        table.cell("queries", setup.queries == 0 ? std::string("all") : fmt::format("last {}", setup.queries));
}

/// Whether the ranks of a run take turns on processors or devices. The time of a pass is then not that of P devices.
bool take_turns(const Record& record, const Case& setup, const ExecutionConfig& execution) {
    if (execution.backend != "cpu") return record.text(setup.name(), "transport") == "loopback";
    std::set<std::string> hosts{""};
    if (execution.mpi)
        for (const auto& host : processes::Session::current().hosts()) hosts.insert(host.name);
    const auto computers = std::max<std::size_t>(1, hosts.size() - 1);
    return setup.ranks * execution.replicas > usable_processors() * static_cast<std::int64_t>(computers);
}

/// The machines whose predictions are compared with what was measured here, and all others.
struct Machines {
    Words compared, others;

    Machines(const Predictor& predictor, const ExecutionConfig& execution) {
        for (std::size_t i = 0; i < predictor.machines().size(); ++i) {
            const bool has_gpus = predictor.descriptions()[i].machine.has_gpus();
            (has_gpus == (execution.backend != "cpu") ? compared : others).push_back(predictor.machines()[i]);
        }
    }
};

/// What is predicted on the machines: of the busiest rank's attends where `turns`, else of the pass.
void add_predicted(Table& table, const FinishedRun& run, const Words& machines, bool turns) {
    for (const auto& machine : machines) {
        table.cell(machine + ": balance", run.number("balance_predicted_forward_" + machine), "{:.3f}");
        for (const auto* pass : {"forward", "backward"})
            table.cell(
                pass == std::string("forward") ? "fwd ms" : "bwd ms",
                1e3 * run.number(fmt::format("{}_predicted_{}_{}", turns ? "compute" : "seconds", pass, machine)),
                turns ? "{:.3g}*" : "{:.3g}");
    }
}

/// The line of a case.
void add_line(Table& table, const FinishedRun& run, const Case& setup, const Config& config, const Words& machines,
              bool turns) {
    const auto seconds = [&](const char* pass) {
        return run.number(fmt::format("{}_measured_{}", turns ? "compute" : "seconds", pass));
    };
    const auto rate = [&](const char* pass) {
        return quotient(run.number(fmt::format("flop_{}", pass)) / setup.ranks * 1e-12, seconds(pass), "{:.3g}");
    };
    const auto memory = [&](const char* column) { return memory_text(static_cast<std::int64_t>(run.number(column))); };
    const auto* milliseconds = turns ? "{:.4g}*" : "{:.4g}";
    start_line(table, setup, config.sweep);
    table.cell("pairs", run.number("balance_pairs"), "{:.3f}")
        .cell("fwd bal.", run.number("balance_measured_forward"), "{:.3f}")
        .cell("bwd bal.", run.number("balance_measured_backward"), "{:.3f}")
        .cell("fwd ms", seconds("forward") * 1e3, milliseconds)
        .cell("bwd ms", seconds("backward") * 1e3, milliseconds)
        .cell("fwd TF/s", rate("forward"))
        .cell("bwd TF/s", rate("backward"))
        .cell("memory", memory("memory_measured"))
        .cell("predicted", memory("memory_predicted"));
    add_predicted(table, run, machines, turns);
    for (const auto* tensor : {"o", "dq", "dk", "dv"})
        table.cell(tensor, config.judging.judge ? format_error(run.number(fmt::format("error_rms_{}", tensor))) : "-");
}

/// What the machines that are compared with this one describe.
std::string comparison_text(const Predictor& predictor, const Machines& machines, const ExecutionConfig& execution) {
    std::string text;
    for (std::size_t i = 0; i < predictor.machines().size(); ++i) {
        const auto& name = predictor.machines()[i];
        const auto& described = predictor.descriptions()[i].machine.name;
        if (std::ranges::find(machines.compared, name) == machines.compared.end()) continue;
        text += fmt::format("{} describes '{}'", name, described);
        if (execution.backend == "cpu" && !described.starts_with(processor_name()))
            text += fmt::format(", not the processors of this computer ('{}'): `calibrate` makes a file of those",
                                processor_name());
        text += ".\n";
    }
    return text;
}

int study(Config& config, int argc, char** argv) {
    // 1. Lay out every case; read the machines; open the record.
    Predictor predictor(config);
    Study study(experiment, config, argc, argv, [&](Provenance& provenance) { predictor.add_provenance(provenance); });
    Judge judge(judge_limits(config));

    study.run([&](Trial& trial) {
        // 2. Execute and measure.
        if (!trial.measure(config.execution.repeats)) return;
        describe_case(trial.run, trial.setup, trial.plan);
        describe_measurements(trial.run, trial.rings);

        // 3. Predict.
        const auto name = trial.setup.name();
        describe_prediction_errors(trial.run, predictor.predict(trial.run, name, trial.plan), trial.rings);
        const auto& ring = trial.rings.front();
        const auto memory = describe_predicted_memory(trial.run, trial.plan,
                                                      memory_when_judged(config.execution.backend, trial.policy));
        describe_memory_error(trial.run, memory, ring);
        predictor.keep_measured(name, *trial.plan.forward, ring.forward.timeline());
        predictor.keep_measured(name, *trial.plan.backward, ring.backward.timeline());

        // 4. Judge.
        if (config.judging.judge) {
            const auto verdicts = trial.judge(judge);
            describe_verdicts(trial.run, verdicts, judge.extent());
        }
    });
    if (!study.record()) return 0;
    predictor.write_trace();

    // 5. The tables: one line a case, and one for each of its predicted passes.
    const auto& record = *study.record();
    const Machines machines(predictor, config.execution);
    Table table, others, causes;
    bool finite = true, any_turns = false;
    for (const auto& setup : study.cases()) {
        const FinishedRun run{record, setup.name()};
        const bool turns = take_turns(record, setup, config.execution);
        any_turns |= turns;
        add_line(table, run, setup, config, machines.compared, turns);
        start_line(others, setup, config.sweep);
        add_predicted(others, run, machines.others, false);
        for (const auto& machine : predictor.machines())
            for (const auto pass : both_passes) {
                const auto found = recorded_causes(record, run.name, prediction_labels(machine, pass));
                if (found.empty()) continue;
                const auto seconds = run.number(fmt::format("seconds_predicted_{}_{}", to_string(pass), machine));
                start_line(causes, setup, config.sweep);
                causes.cell("machine", machine).cell("pass", to_string(pass));
                causes.cell("ms", seconds * 1e3, "{:.3g}");
                add_cause_cells(causes, found, seconds);
            }
        if (!config.judging.judge) continue;
        for (const auto error : record.numbers(run.name, "judged/relative_rms")) finite &= std::isfinite(error);
    }
    fmt::print(
        "{}\nBalance (pairs: visible pairs; measured attends forward and backward; predicted compute time): busiest "
        "rank over mean.\n"
        "ms and TF/s on the left: measured, median, backend {}, per rank; memory of the rank\n"
        "with most, counted and predicted; after a machine's name: predicted. Errors:\n"
        "relative RMS against fp64, arithmetic {}.{}\n{}{}{}\n{}Record: {}\n",
        table.text(), config.execution.backend, config.problem.arithmetic, finite ? "" : " NOT FINITE in some runs.",
        any_turns
            ? "*: ranks take turns, so this is the time of the busiest rank's attends alone, measured and predicted.\n"
            : "",
        comparison_text(predictor, machines, config.execution),
        machines.others.empty()
            ? ""
            : fmt::format("\nPredicted on machines of another kind than this one:\n{}", others.text()),
        causes_text(causes), record.name());
    return finite ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program_in_session(experiment, defaults(), study, argc, argv);
}
