// How well do layouts balance packed documents? Many packings of documents with real lengths, each laid out in several
// ways: visible pairs of each rank, predicted times on machines and, of some, processor time as executed.

#include "experiments/command_line/command_line.hpp"
#include "experiments/config/source.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/inputs/packed_documents.hpp"
#include "experiments/main/run_main.hpp"
#include "experiments/options/values.hpp"
#include "experiments/prediction/bound.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/forecast.hpp"
#include "experiments/study/in_order.hpp"
#include "experiments/study/study.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace ringlab::experiments {
namespace {

const Experiment experiment{
    "packings",
    "Packs documents of real lengths into sequences, drawn anew for each packing, and lays each packing "
    "out in several\n"
    "ways. Says how evenly the ranks share the work: in visible pairs, in predicted time on each machine "
    "and, for the\n"
    "first packings, in measured processor time. Balance is the busiest rank's work divided by the mean: "
    "1 is perfect.",
    "packings --layouts zigzag striped:64 balanced --ranks 8 --tokens 64Ki --packings 1000 --measured-packings 0",
    {.measures = true, .predicts = true, .packs = true}};

Config defaults() {
    Config config;
    config.sweep.inputs = {"normal"};
    config.sweep.layouts = {"contiguous", "zigzag", "striped", "striped:64", "balanced"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {8};
    config.sweep.tokens = {8192};
    config.problem.heads = "1:1";
    config.problem.head_dim = 64;
    config.execution.repeats = 1;
    config.judging.judge = false;
    config.problem.arithmetic = "fp32";
    config.prediction.machines = {"2cpus_calibrated"};
    config.output.path = "packings.h5";
    return config;
}

/// What one layout makes of one packing.
struct Outcome {
    double cells = 1;                      // balance in visible pairs
    std::vector<double> balance, seconds;  // by machine and pass
    std::vector<double> share;             // of the bound, likewise
};

Outcome outcome_of(const Plan& plan, const std::vector<sim::Machine>& machines, const sim::SimOptions& options,
                   const std::vector<double>& bounds) {
    Outcome outcome{layouts::imbalance(cells_by_rank(*plan.forward)), {}, {}, {}};
    for (const auto& machine : machines)
        for (const auto* schedule : plan.schedules()) {
            const auto predicted = sim::simulate(*schedule, machine, options);
            std::vector<double> compute;
            for (const auto& rank : predicted.ranks) compute.push_back(layouts::to_seconds(rank.compute));
            outcome.balance.push_back(layouts::imbalance(compute));
            outcome.seconds.push_back(layouts::to_seconds(predicted.makespan));
            outcome.share.push_back(bounds[outcome.share.size()] / outcome.seconds.back());
        }
    return outcome;
}

void describe_spread(RunWriter& run, const std::string& name, const std::vector<double>& values, const char* unit,
                     const char* what) {
    const auto mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    run.attribute(name + "_mean", mean, unit, fmt::format("{}: mean of the packings", what));
    run.attribute(name + "_p95", percentile(values, 95), unit, fmt::format("{}: 95 % of the packings are below", what));
    run.attribute(name + "_max", *std::max_element(values.begin(), values.end()), unit,
                  fmt::format("{}: the largest of the packings", what));
    run.attribute(name + "_min", *std::min_element(values.begin(), values.end()), unit,
                  fmt::format("{}: the smallest of the packings", what));
}

constexpr const char* cells_text = "largest over mean of the ranks' visible pairs";
constexpr const char* balance_text = "largest over mean of the ranks' predicted compute time";
constexpr const char* seconds_text = "predicted end of the last operation of any rank";
constexpr const char* share_text =
    "time over the predicted one: of the packing's work in contiguous shards under seen, shared evenly, links free";
constexpr const char* measured_text = "largest over mean of the ranks' measured processor time in attends";

void describe_layout(RunWriter& run, const Case& which, int packings) {
    run.attribute("mask", which.mask, "1", "joined with the documents of each packing");
    run.attribute("layout", which.layout);
    run.attribute("algorithm", which.schedule);
    run.attribute("ranks", which.ranks, "1", "ring size P");
    run.attribute("tokens", which.tokens, "1", "of each packing");
    run.attribute("packings", packings, "1", "drawn");
}

void describe_outcomes(RunWriter& run, const std::vector<Outcome>& outcomes, const std::vector<std::string>& machines) {
    const auto count = static_cast<std::int64_t>(outcomes.size());
    std::vector<double> cells;
    for (const auto& outcome : outcomes) cells.push_back(outcome.cells);
    describe_spread(run, "balance_cells", cells, "1", cells_text);
    run.dataset("work/packing_balance", std::move(cells), {{"packing", count}}, "1", cells_text);
    for (std::size_t machine = 0; machine < machines.size(); ++machine)
        for (const auto pass : both_passes) {
            const auto at = 2 * machine + static_cast<std::size_t>(pass);
            const auto add = [&](const char* name, const char* dataset, auto member, const char* unit,
                                 const char* what) {
                std::vector<double> values;
                for (const auto& outcome : outcomes) values.push_back((outcome.*member)[at]);
                describe_spread(run, fmt::format("{}_{}_{}", name, to_string(pass), machines[machine]), values, unit,
                                what);
                run.dataset(fmt::format("predicted/{}", dataset), std::move(values),
                            {Dimension::at("machine", machines[machine]),
                             Dimension::at("pass", to_string(pass)),
                             {"packing", count}},
                            unit, what);
            };
            add("balance_predicted", "packing_balance", &Outcome::balance, "1", balance_text);
            add("seconds_predicted", "packing_seconds", &Outcome::seconds, "s", seconds_text);
            add("share_of_bound", "packing_share_of_bound", &Outcome::share, "1", share_text);
        }
}

/// Balance of processor time, by pass and packing.
using MeasuredBalances = std::array<std::vector<double>, 2>;

void describe_measured(RunWriter& run, const MeasuredBalances& balances) {
    if (balances.front().empty()) return;
    for (const auto pass : both_passes) {
        const auto& values = balances[static_cast<std::size_t>(pass)];
        describe_spread(run, fmt::format("balance_measured_{}", to_string(pass)), values, "1", measured_text);
        run.dataset(
            "measured/packing_balance", values,
            {Dimension::at("pass", to_string(pass)), {"measured_packing", static_cast<std::int64_t>(values.size())}},
            "1", measured_text);
    }
}

std::string three(double value) { return fmt::format("{:.3f}", value); }

Table table_of(const Record& record, const std::vector<Case>& cases, const Config& config,
               const std::vector<std::string>& machines) {
    std::vector<std::string> header{"layout", "pairs: mean", "95 %", "worst"};
    for (const auto& machine : machines)
        header.insert(header.end(), {machine + ": balance", "fwd ms", "bwd ms", "of bound", "bwd"});
    if (config.packing.measured > 0) header.insert(header.end(), {"measured fwd bal.: mean", "worst"});
    Table table(header);
    for (const auto& which : cases) {
        const auto number = [&](const std::string& column) { return three(record.number(which.name(), column)); };
        std::vector<std::string> row{which.layout, number("balance_cells_mean"), number("balance_cells_p95"),
                                     number("balance_cells_max")};
        for (const auto& machine : machines) {
            row.push_back(number(fmt::format("balance_predicted_forward_{}_mean", machine)));
            for (const auto* pass : {"forward", "backward"})
                row.push_back(fmt::format(
                    "{:.4g}",
                    1e3 * record.number(which.name(), fmt::format("seconds_predicted_{}_{}_mean", pass, machine))));
            for (const auto* pass : {"forward", "backward"})
                row.push_back(number(fmt::format("share_of_bound_{}_{}_mean", pass, machine)));
        }
        if (config.packing.measured > 0)
            row.insert(row.end(), {number("balance_measured_forward_mean"), number("balance_measured_forward_max")});
        table.add(row);
    }
    return table;
}

/// All packings, and what can be done with them under one layout.
class Packings {
public:
    Packings(const Config& config, const std::string& lengths_file)
        : config_(config),
          predictor_(config),
          options_(predictor_.options()),
          source_(config.problem, config.sweep.inputs, config.execution.replicas) {
        const auto lengths = layouts::parse_lengths("@" + lengths_file, "document lengths");
        for (int i = 0; i < config.packing.count; ++i)
            masks_.push_back(packed_mask(
                config.sweep.masks[0],
                drawn_packing(lengths, config.sweep.tokens[0], config.problem.seed, static_cast<std::uint32_t>(i))));
    }

    const Predictor& predictor() const { return predictor_; }

    /// How many are executed.
    std::size_t measured() const { return std::min(static_cast<std::size_t>(config_.packing.measured), masks_.size()); }

    /// Throws Error if the layout cannot be made.
    void add_to(Forecast& forecast, const Case& which) const {
        const auto first = plan_of(which, 0);
        forecast.add_predicted(which, first, predictor_.machines().size(), threads_of(config_.prediction.threads),
                               masks_.size());
        if (measured() > 0) forecast.add_executed(which, first, measured());
    }

    std::vector<Outcome> predict(const Case& which) {
        std::vector<Outcome> outcomes;
        if (bounds_.empty())
            make_in_parallel(
                masks_.size(), threads_of(config_.prediction.threads),
                [&](std::size_t number) {
                    auto packing = which;
                    packing.mask = masks_[number];
                    std::vector<double> bounds;
                    for (const auto& machine : predictor_.descriptions())
                        for (const auto seconds :
                             least_seconds(packing, problem_from(config_.problem), machine, options_))
                            bounds.push_back(seconds);
                    return bounds;
                },
                [&](std::size_t, std::vector<double> bounds) { bounds_.push_back(std::move(bounds)); });
        make_in_parallel(
            masks_.size(), threads_of(config_.prediction.threads),
            [&](std::size_t number) {
                return outcome_of(plan_of(which, number), predictor_.descriptions(), options_, bounds_[number]);
            },
            [&](std::size_t, Outcome outcome) { outcomes.push_back(std::move(outcome)); });
        return outcomes;
    }

    void execute(const Case& which, std::size_t number, Backend& backend, MeasuredBalances& balances) {
        const auto plan = plan_of(which, number);
        const auto& inputs = source_.get(which, plan.problem).front().inputs;
        const auto repeats =
            backend.run(plan, policy_from("", plan.problem.dtype), std::span(&inputs, 1), config_.execution.repeats);
        for (const auto pass : both_passes)
            balances[static_cast<std::size_t>(pass)].push_back(balance_of(median_attend_seconds(repeats, pass)));
    }

private:
    Plan plan_of(Case which, std::size_t number) const {
        which.mask = masks_[number];
        return make_plan(which, problem_from(config_.problem));
    }

    const Config& config_;
    Predictor predictor_;
    sim::SimOptions options_;
    Source source_;
    std::vector<std::string> masks_;           // of each packing
    std::vector<std::vector<double>> bounds_;  // of each packing, by machine and pass; empty: not asked for yet
};

int study(const Config& config, int argc, char** argv) {
    // 1. Lengths, packings, machines, record.
    require(config.sweep.masks.size() == 1 && config.sweep.ranks.size() == 1 && config.sweep.schedules.size() == 1 &&
                config.sweep.tokens.size() == 1,
            "packings takes one mask, ring size, schedule and number of tokens at a time");
    const auto path = find_resource(config.packing.lengths, "data", ".txt");
    Packings packings(config, path);
    const auto measured = packings.measured();
    const auto cases = all_cases(config.sweep, config.prediction.machines, config.sweep.tokens[0]);
    Forecast forecast(config);
    forecast.require_ranks_to_predict();
    if (measured > 0) forecast.require_ranks_to_execute();
    for (const auto& which : cases) packings.add_to(forecast, which);  // refuse now, not midway
    const auto backend = make_backend(config.execution, config.problem.arithmetic, config.sweep.ranks[0]);
    say_notes(config.notes);
    forecast.announce();
    auto provenance = collect_provenance(argc, argv);
    packings.predictor().add_provenance(provenance);
    provenance.set("seed", static_cast<std::int64_t>(config.problem.seed));
    provenance.set_file("document_lengths", path);
    const auto record = make_record(experiment, config, std::move(provenance));

    // 2. Every layout: predict all packings, execute some.
    Progress progress(cases.size() * (1 + measured), false);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto& which = cases[i];
        say_when_interrupted(interrupted_text(*record, i, cases.size()));
        const auto forecasts = measured > 0 ? 2 * i : i;  // of this layout: where they begin
        const bool is_missing = !record->has(which.name());
        std::vector<Outcome> outcomes;
        progress.start(fmt::format("{}, {} packings predicted", which.name(), config.packing.count),
                       forecast.seconds_of(forecasts));
        if (is_missing) outcomes = packings.predict(which);
        progress.finish();
        MeasuredBalances balances;
        for (std::size_t number = 0; number < measured; ++number) {
            progress.start(fmt::format("{}, packing {} executed", which.name(), number + 1),
                           forecast.seconds_of(forecasts + 1) / static_cast<double>(measured));
            if (is_missing) packings.execute(which, number, *backend, balances);
            progress.finish();
        }
        if (is_missing) {
            RunWriter run;
            describe_layout(run, which, config.packing.count);
            describe_outcomes(run, outcomes, packings.predictor().machines());
            describe_measured(run, balances);
            record->commit(which.name(), run);
        }
    }
    record->finish();

    // 3. The table.
    fmt::print(
        "{}\nBalance: largest rank over mean, in visible pairs, and in processor time of the first {} of {} packings.\n"
        "After a machine's name: predicted, mean of the packings; balance of the forward pass in compute "
        "time.\nRecord: {}\n",
        table_of(*record, cases, config, packings.predictor().machines()).text(), measured, config.packing.count,
        record->name());
    return 0;
}

int body(int argc, char** argv) {
    const auto config = parse(experiment, defaults(), argc, argv);
    if (!config) return 0;
    require(!config->execution.mpi, "--mpi: packings run in one process");
    return run_in_session(config->execution, config->output.text, argc, argv,
                          [&] { return study(*config, argc, argv); });
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_main(experiment.name, body, argc, argv);
}
