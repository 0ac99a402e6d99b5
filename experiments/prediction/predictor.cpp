#include "experiments/prediction/predictor.hpp"

#include "experiments/prediction/causes.hpp"
#include "experiments/study/describe.hpp"
#include "sim/cost/cost.hpp"
#include "sim/machine/topology.hpp"
#include "sim/report/chrome_trace.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace ringlab::experiments {
namespace {

/// The place of a machine's and a pass's numbers in the datasets predicted/....
std::vector<Dimension> place_of(const std::string& machine, layouts::Pass pass) {
    return {Dimension::at("machine", machine), Dimension::at("pass", to_string(pass))};
}

/// Writes when the pass ends, the naive guesses, and what was assumed.
void describe_totals(RunWriter& run, const std::vector<Dimension>& place, const layouts::Schedule& schedule,
                     const sim::Prediction& predicted) {
    const auto number = [&](const char* name, double value, const char* unit, const char* description) {
        run.dataset(fmt::format("predicted/{}", name), std::vector<double>{value}, place, unit, description);
    };
    number("flop", pass_flop(schedule), "FLOP", "of the visible pairs, all ranks and heads");
    number("makespan", layouts::to_seconds(predicted.makespan), "s", "end of the last operation of any rank");
    number("clock", predicted.clock, "1", "of attends, against that of the calibration");
    number("naive_overlapped", layouts::to_seconds(predicted.naive_overlapped), "s",
           "guess without a simulator: of the slowest rank, sum over steps of max(compute, transfer)");
    number("naive_serial", layouts::to_seconds(predicted.naive_serial), "s",
           "guess without a simulator: of the slowest rank, sum over steps of compute + transfer");
    run.dataset("predicted/notes", std::vector<std::string>{fmt::format("{}", fmt::join(predicted.notes, "; "))}, place,
                "1", "what the prediction had to assume");
}

}  // namespace

Record::Labels prediction_labels(const std::string& machine, layouts::Pass pass) {
    return {{"machine", machine}, {"pass", to_string(pass)}};
}

void describe_prediction_errors(RunWriter& run, const std::vector<Predictor::Figures>& predicted,
                                const std::vector<RingRun>& rings) {
    for (const auto& [machine, pass, seconds, balance, compute, overlapped, serial] : predicted) {
        const auto add = [&](const char* what, double predicted_value, double measured_value) {
            run.attribute(
                fmt::format("prediction_error_{}_{}_{}", what, to_string(pass), machine),
                predicted_value / measured_value - 1, "1",
                fmt::format("{0}_predicted_{1}_{2} over {0}_measured_{1}, less 1; it says something where the "
                            "machine is the one measured",
                            what, to_string(pass), machine));
        };
        const auto attends = median_attend_seconds(rings.front().of(pass));
        add("balance", balance, balance_of(attends));
        add("compute", compute, *std::max_element(attends.begin(), attends.end()));
        add("seconds", seconds, median_pass_seconds(rings, pass));
    }
}

Predictor::Predictor(const Config& config) : config_(config) {
    options_.compute = config.prediction.compute_model == "tiles" ? sim::ComputeModel::tiles : sim::ComputeModel::rate;
    options_.sharing = config.prediction.engine == "events";
    options_.clock = config.prediction.attend_clock();
    for (auto& described : described_machines(config)) {
        names_.push_back(described.name);
        machines_.push_back(std::move(described));
    }
}

void Predictor::predict_as_configured(int threads) {
    options_.replicas = config_.execution.replicas;
    as_configured_ = true;
    threads_ = threads;
    for (const auto ranks : config_.sweep.ranks) {  // refuse now, not midway
        constexpr auto most = std::int64_t{1} << 20;
        const auto all = std::int64_t{ranks} * config_.execution.replicas;
        require(all <= most, "{} rings of {} ranks are more than 2^20 GPUs", config_.execution.replicas, ranks);
        sim::Draws(config_.prediction.disturbance(config_.problem.seed), static_cast<int>(all), layouts::Pass::forward);
        for (const auto& [name, file, given, machine] : machines_)
            require_machine_gpus(machine, all, fmt::format("{} rings of {} ranks", config_.execution.replicas, ranks));
        auto options = options_;
        options.placement = gpu_placement(config_.execution, ranks);
        for (const auto& [name, file, given, machine] : machines_)
            sim::Topology(static_cast<int>(all), machine, options);
    }
}

void Predictor::add_provenance(Provenance& provenance) const {
    for (const auto& described : machines_) experiments::add_provenance(provenance, described);
}

bool Predictor::traces(const std::string& run_name) {
    if (config_.trace.file.empty()) return false;
    if (traced_run_.empty()) traced_run_ = run_name;
    return traced_run_ == run_name;
}

std::vector<Predictor::Figures> Predictor::predict(RunWriter& run, const std::string& run_name, const Plan& plan) {
    if (!machines_.empty()) {
        run.attribute("compute_model", config_.prediction.compute_model, "1", "of the predictions");
        run.attribute("engine", config_.prediction.engine, "1", "of the predictions");
        if (options_.replicas > 1) {
            run.attribute("replicas", options_.replicas, "1", "rings side by side, each with a sequence of its own");
            run.attribute("placement", config_.execution.placement, "1", "of the rings' ranks on GPUs");
        }
    }
    std::vector<Figures> all;
    for (std::size_t machine = 0; machine < machines_.size(); ++machine)
        for (const auto* schedule : plan.schedules()) {
            const auto& figures = all.emplace_back(predict(run, run_name, *schedule, machine));
            const auto column = [&](const char* what, double value, const char* unit, const char* description) {
                run.attribute(fmt::format("{}_predicted_{}_{}", what, to_string(figures.pass), figures.machine), value,
                              unit, description);
            };
            column("balance", figures.balance, "1", "largest over mean of the ranks' predicted compute_time");
            column("compute", figures.compute, "s", "largest of the ranks' predicted compute_time");
            column("seconds", figures.seconds, "s", "predicted end of the last operation of any rank");
            if (plan.problem.rotary.rotates())
                column("rotation",
                       sim::rotation_seconds(*schedule, machines_[machine].machine, schedule->layout().largest_shard()),
                       "s",
                       "what rotates q and k before the forward pass, dq and dk behind the backward pass, on the rank "
                       "with most tokens; no part of seconds_predicted");
        }
    return all;
}

Predictor::Figures Predictor::predict(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule,
                                      std::size_t machine_index) {
    const auto pass = schedule.options().pass;
    const auto& [name, file, given, machine] = machines_[machine_index];
    const auto gpus = schedule.ranks() * options_.replicas;
    const auto place = place_of(name, pass);
    const bool keeps_trace = traces(run_name), keeps_spans = gpus <= config_.prediction.span_ranks;
    auto options = options_;
    if (as_configured_) options.placement = gpu_placement(config_.execution, schedule.ranks());
    options.trace = keeps_trace || keeps_spans;
    auto predicted = sim::simulate(schedule, machine, options);
    std::vector<double> compute;
    for (const auto& rank : predicted.ranks) compute.push_back(layouts::to_seconds(rank.compute));
    describe_totals(run, place, schedule, predicted);
    auto by_rank = place;
    if (options.replicas > 1) by_rank.push_back({"replica", options.replicas});
    by_rank.push_back({"rank", schedule.ranks()});
    run.dataset("predicted/compute_time", compute, by_rank, "s", "time of the rank's compute lane at work");
    if (gpus <= config_.prediction.cause_ranks)
        describe_causes(run, place, sim::break_down(schedule, machine, options, predicted));
    if (keeps_spans) run.timeline(name, to_string(pass), predicted.timeline);
    if (keeps_trace)
        keep("predicted on " + name, run_name, schedule, std::move(predicted.timeline),
             std::move(predicted.host_issue));
    if (as_configured_ && config_.prediction.disturbs())
        predict_disturbed(run, run_name, schedule, machines_[machine_index], options);
    return {name,
            pass,
            layouts::to_seconds(predicted.makespan),
            layouts::imbalance(compute),
            std::ranges::max(compute),
            layouts::to_seconds(predicted.naive_overlapped),
            layouts::to_seconds(predicted.naive_serial)};
}

void Predictor::predict_disturbed(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule,
                                  const DescribedMachine& on, sim::SimOptions options) {
    options.jitter = config_.prediction.disturbance(config_.problem.seed);
    const auto repeats = config_.execution.repeats;
    std::vector<double> seconds;
    for (const auto makespan : sim::simulate_repeatedly(schedule, on.machine, options, repeats, threads_))
        seconds.push_back(layouts::to_seconds(makespan));
    auto place = place_of(on.name, schedule.options().pass);
    place.push_back({"repeat", repeats});
    run.dataset("predicted/disturbed_makespan", std::move(seconds), place, "s",
                "end of the last operation of any rank, with stragglers and noise drawn anew in each repeat");
    if (!traces(run_name)) return;
    auto first = sim::simulate(schedule, on.machine, options);
    keep("disturbed on " + on.name, run_name, schedule, std::move(first.timeline), std::move(first.host_issue));
}

void Predictor::keep(const std::string& what, const std::string& run_name, const layouts::Schedule& schedule,
                     layouts::Timeline timeline, std::vector<layouts::Interval> host_issue) {
    std::vector<std::string> lane_names;
    for (layouts::Lane lane = 0; lane < schedule.lanes(); ++lane) lane_names.push_back(schedule.lane_name(lane));
    kept_.push_back({fmt::format("{}: {}, {}", what, run_name, to_string(schedule.options().pass)), std::move(timeline),
                     std::move(host_issue), std::move(lane_names)});
}

void Predictor::keep_measured(const std::string& run_name, const layouts::Schedule& schedule,
                              const layouts::Timeline& timeline) {
    if (traces(run_name)) keep("measured", run_name, schedule, timeline, {});
}

void Predictor::write_trace() const {
    if (config_.trace.file.empty()) return;
    std::vector<sim::TraceGroup> groups;
    for (const auto& kept : kept_) groups.push_back({kept.name, &kept.timeline, kept.host_issue, kept.lane_names});
    std::ostringstream trace;
    constexpr std::int64_t most_ranks = 64;  // viewers fail on large files
    sim::write_chrome_trace(trace, groups, {0, most_ranks});
    const auto file = config_.output.files.write(config_.trace.file, std::as_bytes(std::span(trace.view())));
    fmt::print("Trace: {} (open it in https://ui.perfetto.dev)\n", file.string());
}

bool packs_documents(const std::string& mask) { return mask.find("documents") != std::string::npos; }

std::array<double, 2> least_seconds(Case setup, const layouts::Problem& problem, const sim::Machine& machine,
                                    sim::SimOptions options) {
    setup.layout = "contiguous";
    setup.schedule = "seen";
    options.free = sim::Cause::links;
    options.replicas = 1;
    options.placement.clear();
    options.trace = false;
    const auto plan = make_plan(setup, problem);
    std::array<double, 2> seconds{};
    for (std::size_t pass = 0; pass < both_passes.size(); ++pass) {
        for (const auto& rank : sim::simulate(*plan.schedule(both_passes[pass]), machine, options).ranks)
            seconds[pass] += layouts::to_seconds(rank.compute);
        seconds[pass] /= setup.ranks;
    }
    return seconds;
}

}  // namespace ringlab::experiments
