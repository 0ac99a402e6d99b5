#include "experiments/prediction/predictor.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/options/values.hpp"
#include "experiments/prediction/causes.hpp"
#include "experiments/prediction/machines.hpp"
#include "experiments/study/describe.hpp"
#include "sim/cost/cost.hpp"
#include "sim/machine/topology.hpp"
#include "sim/report/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace ringlab::experiments {
namespace {

/// Columns for a pass, or for "both", whose times are sums.
void describe_percentiles(RunWriter& run, const std::vector<double>& seconds, const char* passes,
                          const std::string& machine) {
    for (const auto percent : disturbed_percents)
        run.attribute(fmt::format("seconds_p{}_predicted_{}_{}", percent, passes, machine),
                      percentile(seconds, percent), "s",
                      fmt::format("{} % of the repeats of predicted/disturbed_makespan are quicker", percent));
}

constexpr const char* end_time_description = "end of the rank's last operation";
constexpr const char* makespan_description = "end of the last operation of any rank";

void write_scalar(RunWriter& run, const std::vector<Dimension>& place, const char* name, double value, const char* unit,
                  const char* description) {
    run.dataset(fmt::format("predicted/{}", name), std::vector<double>{value}, place, unit, description);
}

std::vector<std::string> lane_names(const layouts::Schedule& schedule) {
    std::vector<std::string> names;
    for (layouts::Lane lane = 0; lane < schedule.lanes(); ++lane) names.push_back(schedule.lane_name(lane));
    return names;
}

}  // namespace

Record::Labels prediction_labels(const std::string& machine, layouts::Pass pass) {
    return {{"machine", machine}, {"pass", to_string(pass)}};
}

void describe_prediction_errors(RunWriter& run, const std::vector<Predictor::Figures>& predicted,
                                const std::vector<RingRun>& rings) {
    for (const auto& [machine, pass, seconds, balance, compute, overlapped, serial, disturbed] : predicted) {
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
    for (const auto& name : config.prediction.machines) {
        files_.push_back(find_resource(name, "machines", ".toml"));
        names_.push_back(std::filesystem::path(files_.back()).stem());
        machines_.push_back(described_machine(files_.back(), config.execution));
        require(std::count(names_.begin(), names_.end(), names_.back()) == 1,
                "two machine files are named '{}'; the record needs different names", names_.back());
        for (const auto ranks : config.sweep.ranks)  // refuse now, not midway
            require_machine_gpus(machines_.back(), ranks, fmt::format("--ranks {}", ranks));
    }
}

void Predictor::predict_as_configured(int threads) {
    options_.replicas = config_.execution.replicas;
    rings_side_by_side_ = true;
    disturbs_ = config_.prediction.disturbs();
    threads_ = threads;
    for (const auto ranks : config_.sweep.ranks) {  // refuse now, not midway
        constexpr auto most = std::int64_t{1} << 20;
        const auto all = std::int64_t{ranks} * config_.execution.replicas;
        require(all <= most, "{} rings of {} ranks are more than 2^20 GPUs", config_.execution.replicas, ranks);
        sim::Draws(config_.prediction.disturbance(config_.problem.seed), static_cast<int>(all), layouts::Pass::forward);
        for (const auto& machine : machines_)
            require_machine_gpus(machine, all, fmt::format("{} rings of {} ranks", config_.execution.replicas, ranks));
        auto options = options_;
        options.placement = gpu_placement(config_.execution, ranks);
        for (const auto& machine : machines_) sim::Topology(static_cast<int>(all), machine, options);
    }
}

void Predictor::add_provenance(Provenance& provenance) const {
    for (std::size_t i = 0; i < files_.size(); ++i)
        experiments::add_provenance(provenance, names_[i], files_[i], machines_[i]);
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
                       sim::rotation_seconds(*schedule, machines_[machine], schedule->layout().largest_shard()), "s",
                       "what rotates q and k before the forward pass, dq and dk behind the backward pass, on the rank "
                       "with most tokens; no part of seconds_predicted");
        }
    for (std::size_t i = 0; disturbs_ && plan.backward && i < all.size(); i += 2) {
        auto both = all[i].disturbed;
        for (std::size_t k = 0; k < both.size(); ++k) both[k] += all[i + 1].disturbed[k];
        describe_percentiles(run, both, "both", all[i].machine);
    }
    return all;
}

std::vector<Dimension> Predictor::place_of(std::size_t machine, layouts::Pass pass) const {
    return {Dimension::at("machine", names_[machine]), Dimension::at("pass", to_string(pass))};
}

void Predictor::write_by_rank(RunWriter& run, std::vector<Dimension> place, const char* name,
                              const std::vector<layouts::Picoseconds>& times, const char* description) const {
    std::vector<double> seconds;
    for (const auto time : times) seconds.push_back(layouts::to_seconds(time));
    const auto rings = std::int64_t{options_.replicas};
    if (rings > 1) place.push_back({"replica", rings});
    place.push_back({"rank", static_cast<std::int64_t>(times.size()) / rings});
    run.dataset(fmt::format("predicted/{}", name), std::move(seconds), place, "s", description);
}

/// Writes how the ranks spend their time, when the pass ends, and the naive guesses.
void Predictor::write_totals(RunWriter& run, const std::vector<Dimension>& place,
                             const sim::Prediction& predicted) const {
    const auto total = [&](const char* name, auto member, const char* description) {
        std::vector<layouts::Picoseconds> times;
        for (const auto& rank : predicted.ranks) times.push_back(rank.*member);
        write_by_rank(run, place, name, times, description);
    };
    total("compute_time", &layouts::RankTotals::compute, "time of the rank's compute lane at work");
    total("communication_time", &layouts::RankTotals::communication, "time during which the rank transfers anything");
    total("waiting_time", &layouts::RankTotals::waiting,
          "time during which some transfer of the rank waits for its peer, and none moves");
    total("exposed_time", &layouts::RankTotals::exposed, "time up to the rank's end during which nothing computes");
    total("end_time", &layouts::RankTotals::end, end_time_description);
    write_scalar(run, place, "makespan", layouts::to_seconds(predicted.makespan), "s", makespan_description);
    write_scalar(run, place, "clock", predicted.clock, "1", "of attends, against that of the calibration");
    write_scalar(run, place, "naive_overlapped", layouts::to_seconds(predicted.naive_overlapped), "s",
                 "guess without a simulator: of the slowest rank, sum over steps of max(compute, transfer)");
    write_scalar(run, place, "naive_serial", layouts::to_seconds(predicted.naive_serial), "s",
                 "guess without a simulator: of the slowest rank, sum over steps of compute + transfer");
    run.dataset("predicted/notes", std::vector<std::string>{fmt::format("{}", fmt::join(predicted.notes, "; "))}, place,
                "1", "what the prediction had to assume");
}

/// For the trace; takes the prediction's timeline.
void Predictor::keep_predicted(std::string name, const layouts::Schedule& schedule, sim::Prediction& predicted) {
    kept_.push_back(
        {std::move(name), std::move(predicted.timeline), std::move(predicted.host_issue), lane_names(schedule)});
}

Predictor::Figures Predictor::predict(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule,
                                      std::size_t machine) {
    const auto pass = schedule.options().pass;
    const auto place = place_of(machine, pass);
    write_scalar(run, place, "flop", pass_flop(schedule), "FLOP", "of the visible pairs, all ranks and heads");
    const bool keeps_trace = traces(run_name);
    auto options = options_;
    if (rings_side_by_side_) options.placement = gpu_placement(config_.execution, schedule.ranks());
    const bool keeps_spans = schedule.ranks() * options.replicas <= config_.prediction.span_ranks;
    options.trace = keeps_trace || keeps_spans;
    auto predicted = sim::simulate(schedule, machines_[machine], options);
    write_totals(run, place, predicted);
    if (schedule.ranks() * options.replicas <= config_.prediction.cause_ranks)
        describe_causes(run, place, sim::break_down(schedule, machines_[machine], options, predicted));
    if (keeps_spans) run.timeline(names_[machine], to_string(pass), predicted.timeline);
    if (keeps_trace)
        keep_predicted(fmt::format("predicted on {}: {}, {}", names_[machine], run_name, to_string(pass)), schedule,
                       predicted);
    std::vector<double> disturbed;
    if (disturbs_) disturbed = predict_disturbed(run, schedule, machine, options);
    if (disturbs_ && keeps_trace) {
        options.jitter = config_.prediction.disturbance(config_.problem.seed);
        auto first = sim::simulate(schedule, machines_[machine], options);
        keep_predicted(fmt::format("disturbed on {}: {}, {}", names_[machine], run_name, to_string(pass)), schedule,
                       first);
    }
    std::vector<double> compute;
    for (const auto& rank : predicted.ranks) compute.push_back(layouts::to_seconds(rank.compute));
    return {names_[machine],
            pass,
            layouts::to_seconds(predicted.makespan),
            layouts::imbalance(compute),
            *std::max_element(compute.begin(), compute.end()),
            layouts::to_seconds(predicted.naive_overlapped),
            layouts::to_seconds(predicted.naive_serial),
            std::move(disturbed)};
}

std::vector<double> Predictor::predict_disturbed(RunWriter& run, const layouts::Schedule& schedule, std::size_t machine,
                                                 const sim::SimOptions& options) const {
    const auto* pass = to_string(schedule.options().pass);
    auto disturbed = options;
    disturbed.jitter = config_.prediction.disturbance(config_.problem.seed);
    std::vector<double> seconds;
    for (const auto makespan :
         sim::simulate_repeatedly(schedule, machines_[machine], disturbed, config_.execution.repeats, threads_))
        seconds.push_back(layouts::to_seconds(makespan));
    run.dataset(
        "predicted/disturbed_makespan", seconds,
        {Dimension::at("machine", names_[machine]), Dimension::at("pass", pass), {"repeat", config_.execution.repeats}},
        "s", "end of the last operation of any rank, with stragglers and noise drawn anew in each repeat");
    describe_percentiles(run, seconds, pass, names_[machine]);
    return seconds;
}

void Predictor::keep_measured(const std::string& run_name, const layouts::Schedule& schedule,
                              const layouts::Timeline& timeline) {
    const auto* pass = to_string(schedule.options().pass);
    if (traces(run_name))
        kept_.push_back({fmt::format("measured: {}, {}", run_name, pass), timeline, {}, lane_names(schedule)});
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

std::array<double, 2> least_seconds(Case which, const layouts::Problem& problem, const sim::Machine& machine,
                                    sim::SimOptions options) {
    which.layout = "contiguous";
    which.schedule = "seen";
    options.free = sim::Cause::links;
    options.replicas = 1;
    options.placement.clear();
    options.trace = false;
    const auto plan = make_plan(which, problem);
    std::array<double, 2> seconds{};
    for (std::size_t pass = 0; pass < both_passes.size(); ++pass) {
        for (const auto& rank : sim::simulate(*plan.schedule(both_passes[pass]), machine, options).ranks)
            seconds[pass] += layouts::to_seconds(rank.compute);
        seconds[pass] /= which.ranks;
    }
    return seconds;
}

}  // namespace ringlab::experiments
