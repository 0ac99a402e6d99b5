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

std::string ratio(double value) { return std::isnan(value) ? "-" : fmt::format("{:.3f}", value); }

/// Balance of each rank's share, as the run's own datasets give it.
double measured_balance(const Record& record, const Case& which, layouts::Pass pass) {
    return record.number(which.name(), fmt::format("balance_measured_{}", to_string(pass)));
}

using Words = std::vector<std::string>;

/// What a case is, in the columns in front.
Words cells_of(const Case& which, const SweepConfig& sweep) {
    Words cells{which.mask, which.layout, fmt::format("{}", which.ranks), fmt::format("{}", which.tokens)};
    if (!sweep.queries.empty())
        cells.push_back(which.queries == 0 ? std::string("all") : fmt::format("last {}", which.queries));
    if (sweep.schedules.size() > 1) cells.insert(cells.begin() + 2, which.schedule);
    return cells;
}

Words columns_of_cases(const SweepConfig& sweep) {
    Words columns{"mask", "layout", "P", "tokens"};
    if (!sweep.queries.empty()) columns.emplace_back("queries");
    if (sweep.schedules.size() > 1) columns.insert(columns.begin() + 2, "schedule");
    return columns;
}

/// Whether the ranks of a run take turns on processors or devices. The time of a pass is then not that of P devices.
bool take_turns(const Record& record, const Case& which, const ExecutionConfig& execution) {
    if (execution.backend != "cpu") return record.text(which.name(), "transport") == "loopback";
    std::set<std::string> hosts{""};
    if (execution.mpi)
        for (const auto& host : processes::Session::current().hosts()) hosts.insert(host.name);
    const auto computers = std::max<std::size_t>(1, hosts.size() - 1);
    return which.ranks * execution.replicas > usable_processors() * static_cast<std::int64_t>(computers);
}

/// The machines whose predictions are compared with what was measured here, and all others.
struct Machines {
    Words compared, others;

    Machines(const Predictor& predictor, const ExecutionConfig& execution) {
        for (std::size_t i = 0; i < predictor.machines().size(); ++i) {
            const bool has_gpus = predictor.descriptions()[i].has_gpus();
            (has_gpus == (execution.backend != "cpu") ? compared : others).push_back(predictor.machines()[i]);
        }
    }
};

void add_machine_columns(Words& header, const Words& machines) {
    for (const auto& machine : machines) {
        header.push_back(machine + ": balance");
        header.push_back("fwd ms");
        header.push_back("bwd ms");
    }
}

/// What is predicted on the machines: of the busiest rank's attends where `turns`, else of the pass.
void add_machine_cells(Words& row, const Record& record, const Case& which, const Words& machines, bool turns) {
    for (const auto& machine : machines) {
        const auto column = [&](const char* what) {
            return record.number(which.name(), fmt::format("{}_{}", what, machine));
        };
        row.push_back(ratio(column("balance_predicted_forward")));
        for (const auto* pass : {"forward", "backward"})
            row.push_back(fmt::format(
                "{:.3g}{}", 1e3 * column(fmt::format("{}_predicted_{}", turns ? "compute" : "seconds", pass).c_str()),
                turns ? "*" : ""));
    }
}

Words header_of(const Config& config, const Machines& machines) {
    auto header = columns_of_cases(config.sweep);
    for (const auto* column :
         {"pairs", "fwd bal.", "bwd bal.", "fwd ms", "bwd ms", "fwd TF/s", "bwd TF/s", "memory", "predicted"})
        header.emplace_back(column);
    add_machine_columns(header, machines.compared);
    for (const auto* tensor : {"o", "dq", "dk", "dv"}) header.push_back(tensor);
    return header;
}

/// The line of a case.
Words row_of(const Record& record, const Case& which, const Config& config, const Machines& machines) {
    const auto name = which.name();
    const bool turns = take_turns(record, which, config.execution);
    const auto seconds = [&](const char* pass) {
        return record.number(name, fmt::format("{}_measured_{}", turns ? "compute" : "seconds", pass));
    };
    auto row = cells_of(which, config.sweep);
    row.push_back(ratio(record.number(name, "balance_cells")));
    for (const auto pass : both_passes) row.push_back(ratio(measured_balance(record, which, pass)));
    for (const auto* pass : {"forward", "backward"})
        row.push_back(fmt::format("{:.4g}{}", seconds(pass) * 1e3, turns ? "*" : ""));
    for (const auto* pass : {"forward", "backward"})
        row.push_back(
            quotient(record.number(name, fmt::format("flop_{}", pass)) / which.ranks * 1e-12, seconds(pass), "{:.3g}"));
    for (const auto* memory : {"memory_measured", "memory_predicted"})
        row.push_back(memory_text(static_cast<std::int64_t>(record.number(name, memory))));
    add_machine_cells(row, record, which, machines.compared, turns);
    const auto errors = config.judging.judge ? record.numbers(name, "judged/relative_rms") : std::vector<double>{};
    for (const std::size_t tensor : {0, 3, 4, 5})
        row.push_back(config.judging.judge ? format_error(errors[tensor]) : "-");
    return row;
}

/// Where the time of a predicted pass goes.
void add_causes(CauseTable& table, const Record& record, const Case& which, const Config& config,
                const std::string& machine, layouts::Pass pass) {
    auto cells = cells_of(which, config.sweep);
    const auto seconds = record.number(which.name(), fmt::format("seconds_predicted_{}_{}", to_string(pass), machine));
    cells.insert(cells.end(), {machine, to_string(pass), fmt::format("{:.3g}", seconds * 1e3)});
    table.add(std::move(cells), record, which.name(), prediction_labels(machine, pass));
}

/// What the machines that are compared with this one describe.
std::string comparison_text(const Predictor& predictor, const Machines& machines, const ExecutionConfig& execution) {
    std::string text;
    for (std::size_t i = 0; i < predictor.machines().size(); ++i) {
        const auto& name = predictor.machines()[i];
        const auto& described = predictor.descriptions()[i].name;
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
        describe_case(trial.run, trial.which, trial.plan);
        describe_measurements(trial.run, trial.repeats);

        // 3. Predict.
        const auto name = trial.which.name();
        describe_prediction_errors(trial.run, predictor.predict(trial.run, name, trial.plan), trial.repeats);
        const auto& last = trial.repeats.back().front();
        const auto memory = describe_predicted_memory(trial.run, trial.plan,
                                                      memory_model(config.execution.backend, trial.policy, true));
        describe_memory_error(trial.run, memory, last);
        predictor.keep_measured(name, *trial.plan.forward, last.forward);
        predictor.keep_measured(name, *trial.plan.backward, last.backward);

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
    Table table(header_of(config, machines));
    auto elsewhere = columns_of_cases(config.sweep);
    add_machine_columns(elsewhere, machines.others);
    Table others(elsewhere);
    auto passes = columns_of_cases(config.sweep);
    passes.insert(passes.end(), {"machine", "pass", "ms"});
    CauseTable causes(passes);
    bool finite = true, turns = false;
    for (const auto& which : study.cases()) {
        table.add(row_of(record, which, config, machines));
        turns |= take_turns(record, which, config.execution);
        auto row = cells_of(which, config.sweep);
        add_machine_cells(row, record, which, machines.others, false);
        others.add(row);
        for (const auto& machine : predictor.machines())
            for (const auto pass : both_passes) add_causes(causes, record, which, config, machine, pass);
        if (!config.judging.judge) continue;
        for (const auto error : record.numbers(which.name(), "judged/relative_rms")) finite &= std::isfinite(error);
    }
    fmt::print(
        "{}\nBalance (pairs: visible pairs; measured attends forward and backward; predicted compute time): busiest "
        "rank over mean.\n"
        "ms and TF/s on the left: measured, median, backend {}, per rank; memory of the rank\n"
        "with most, counted and predicted; after a machine's name: predicted. Errors:\n"
        "relative RMS against fp64, arithmetic {}.{}\n{}{}{}\n{}Record: {}\n",
        table.text(), config.execution.backend, config.problem.arithmetic, finite ? "" : " NOT FINITE in some runs.",
        turns
            ? "*: ranks take turns, so this is the time of the busiest rank's attends alone, measured and predicted.\n"
            : "",
        comparison_text(predictor, machines, config.execution),
        machines.others.empty()
            ? ""
            : fmt::format("\nPredicted on machines of another kind than this one:\n{}", others.text()),
        causes.text(), record.name());
    return finite ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program_in_session(experiment, defaults(), study, argc, argv);
}
