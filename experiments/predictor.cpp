#include "experiments/predictor.hpp"

#include "experiments/describe.hpp"
#include "experiments/record_files.hpp"
#include "sim/chrome_trace.hpp"
#include "sim/max_plus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>

namespace ringlab::experiments {
namespace {

constexpr int most_ranks_for_spans = 64;  // spans go to the record up to this many ranks

/// Of the visible pairs of all ranks and heads.
double total_flop(const layouts::Schedule& schedule) {
    const auto cells = cells_by_rank(schedule);
    const auto& problem = schedule.problem();
    const auto per_cell = schedule.options().pass == layouts::Pass::forward ? problem.forward_flop_per_cell()
                                                                            : problem.backward_flop_per_cell();
    return std::accumulate(cells.begin(), cells.end(), 0.0) * per_cell *
           static_cast<double>(problem.query_heads * problem.batch);
}

}  // namespace

std::string prediction_group(const std::string& machine, layouts::Pass pass) {
    return fmt::format("predicted/{}/{}", machine, to_string(pass));
}

Predictor::Predictor(const Config& config) : config_(config) {
    options_.compute = config.compute_model == "tiles" ? sim::ComputeModel::tiles : sim::ComputeModel::rate;
    for (const auto& name : config.machines) {
        files_.push_back(find_resource(name, "machines", ".toml"));
        names_.push_back(std::filesystem::path(files_.back()).stem());
        machines_.push_back(sim::load_machine(files_.back()));
        require(std::count(names_.begin(), names_.end(), names_.back()) == 1,
                "two machine files are named '{}'; the record needs different names", names_.back());
    }
}

void Predictor::add_provenance(Provenance& provenance) const {
    for (std::size_t i = 0; i < files_.size(); ++i)
        provenance.set_file(fmt::format("machine_{}", names_[i]), files_[i]);
}

bool Predictor::traces(const std::string& run_name) {
    if (config_.trace.empty()) return false;
    if (std::find(traced_runs_.begin(), traced_runs_.end(), run_name) != traced_runs_.end()) return true;
    if (static_cast<int>(traced_runs_.size()) >= config_.trace_runs) return false;
    traced_runs_.push_back(run_name);
    return true;
}

void Predictor::predict(RunWriter& run, const std::string& run_name, const Plan& plan) {
    for (std::size_t machine = 0; machine < machines_.size(); ++machine)
        for (const auto* schedule : {plan.forward.get(), plan.backward.get()})
            predict(run, run_name, *schedule, machine);
}

void Predictor::predict(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule,
                        std::size_t machine) {
    const auto group = prediction_group(names_[machine], schedule.options().pass);
    const auto scalar = [&](const char* name, double value, const char* unit, const char* description) {
        run.scalar(fmt::format("{}/{}", group, name), value, unit, description);
    };
    const auto by_rank = [&](const char* name, const std::vector<layouts::Picoseconds>& times,
                             const char* description) {
        std::vector<double> seconds;
        for (const auto time : times) seconds.push_back(layouts::to_seconds(time));
        run.dataset(fmt::format("{}/{}", group, name), seconds, {{"rank", schedule.ranks()}}, "s", description);
    };
    scalar("flop", total_flop(schedule), "FLOP", "of the visible pairs, all ranks and heads");
    run.attribute_at(group, "machine", machines_[machine].name);
    run.attribute_at(group, "compute_model", config_.compute_model);
    run.attribute_at(group, "engine", config_.engine);
    const char* end_time = "end of the rank's last operation";
    const char* makespan = "end of the last operation of any rank";

    if (config_.engine == "symmetric") {
        auto options = options_;
        options.sharing = false;
        const auto ends = sim::max_plus_symmetric(schedule, machines_[machine], options);
        by_rank("end_time", ends, end_time);
        scalar("makespan", layouts::to_seconds(*std::max_element(ends.begin(), ends.end())), "s", makespan);
        return;
    }

    const bool keeps_trace = traces(run_name);
    auto options = options_;
    options.trace = keeps_trace || schedule.ranks() <= most_ranks_for_spans;
    auto predicted = sim::simulate(schedule, machines_[machine], options);
    const auto total = [&](const char* name, auto member, const char* description) {
        std::vector<layouts::Picoseconds> times;
        for (const auto& rank : predicted.ranks) times.push_back(rank.*member);
        by_rank(name, times, description);
    };
    total("compute_time", &layouts::RankTotals::compute, "time of the rank's compute lane at work");
    total("communication_time", &layouts::RankTotals::communication, "time during which the rank transfers anything");
    total("exposed_time", &layouts::RankTotals::exposed, "time up to the rank's end during which nothing computes");
    total("end_time", &layouts::RankTotals::end, end_time);
    scalar("makespan", layouts::to_seconds(predicted.makespan), "s", makespan);
    scalar("naive_overlapped", layouts::to_seconds(predicted.naive_overlapped), "s",
           "guess without a simulator: of the slowest rank, sum over steps of max(compute, transfer)");
    scalar("naive_serial", layouts::to_seconds(predicted.naive_serial), "s",
           "guess without a simulator: of the slowest rank, sum over steps of compute + transfer");
    run.attribute_at(group, "notes", fmt::format("{}", fmt::join(predicted.notes, "; ")));
    if (schedule.ranks() <= most_ranks_for_spans) run.timeline(group + "/spans", predicted.timeline);
    if (keeps_trace)
        kept_.push_back(
            {fmt::format("predicted on {}: {}, {}", names_[machine], run_name, to_string(schedule.options().pass)),
             std::move(predicted.timeline), std::move(predicted.host_issue)});
}

void Predictor::keep_measured(const std::string& run_name, layouts::Pass pass, const layouts::Timeline& timeline) {
    if (traces(run_name)) kept_.push_back({fmt::format("measured: {}, {}", run_name, to_string(pass)), timeline, {}});
}

void Predictor::write_trace() const {
    if (config_.trace.empty()) return;
    std::vector<sim::TraceGroup> groups;
    for (const auto& kept : kept_) groups.push_back({kept.name, &kept.timeline, kept.host_issue});
    std::ostringstream trace;
    sim::write_chrome_trace(
        trace, groups,
        {parse_range(config_.trace_ranks, "--trace-ranks"), parse_range(config_.trace_steps, "--trace-steps")});
    replace_file(followed(config_.trace), std::as_bytes(std::span(trace.view())));
    fmt::print("Trace: {} (open it in https://ui.perfetto.dev)\n", config_.trace);
}

}  // namespace ringlab::experiments
