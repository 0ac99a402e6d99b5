#include "experiments/validation/kineto/kineto_study.hpp"

#include "experiments/console/table.hpp"
#include "experiments/main/run_study.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/study.hpp"
#include "experiments/validation/kineto/kineto_trace.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using layouts::Picoseconds;

/// Of a timeline that has the forward pass and, behind it, the backward pass; perhaps of several attentions.
constexpr const char* every_pass = "all";

/// Seconds of one attention, forward and perhaps backward: of the rank with most of each, but for balance.
struct Summary {
    double time = 0, compute = 0, communication = 0, exposed = 0, idle = 0;
    double balance = 1;
};

template <class Member>
std::vector<double> seconds_of(const std::vector<RankShare>& shares, Member member) {
    std::vector<double> seconds;
    for (const auto& share : shares) seconds.push_back(layouts::to_seconds(share.*member));
    return seconds;
}

Summary summary_of(const layouts::Timeline& timeline, Picoseconds end) {
    const auto shares = rank_shares(timeline);
    const auto most = [&](auto member) { return std::ranges::max(seconds_of(shares, member)); };
    return {layouts::to_seconds(end),        most(&RankShare::compute),
            most(&RankShare::communication), most(&RankShare::exposed),
            most(&RankShare::idle),          layouts::imbalance(seconds_of(shares, &RankShare::compute))};
}

Summary operator/(Summary sum, int count) {
    for (auto* one : {&sum.time, &sum.compute, &sum.communication, &sum.exposed, &sum.idle}) *one /= count;
    return sum;
}

std::string ms(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

bool has_pass(const MeasuredRanks& measured, Pass pass) {
    return std::ranges::any_of(measured.attention,
                               [&](const auto& times) { return times[pass == Pass::backward ? 1 : 0] > 0; });
}

std::string ranks_text(const MeasuredRanks& measured, const std::vector<RankShare>& shares) {
    Table table({"rank", "compute ms", "attention forward ms", "attention backward ms", "communication ms",
                 "exposed ms", "idle ms"});
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const auto cell = [](Picoseconds time) { return ms(layouts::to_seconds(time)); };
        table.add({fmt::format("{}", measured.ranks[i]), cell(shares[i].compute), cell(measured.attention[i][0]),
                   cell(measured.attention[i][1]), cell(shares[i].communication), cell(shares[i].exposed),
                   cell(shares[i].idle)});
    }
    return table.text();
}

/// Both passes on one timeline, one after the other.
layouts::Timeline behind(layouts::Timeline first, const layouts::Timeline& second, Picoseconds end) {
    for (auto span : second.spans) {
        for (auto* time : {&span.posted, &span.begin, &span.end}) *time += end;
        first.spans.push_back(span);
    }
    first.ranks = second.ranks;
    return first;
}

struct Predicted {
    layouts::Timeline timeline;
    Summary summary;
};

/// The passes that were measured, as they are predicted.
Predicted predicted(const Plan& plan, const MeasuredRanks& measured, const sim::Machine& machine,
                    sim::SimOptions options) {
    options.trace = true;
    layouts::Timeline both;
    Picoseconds end = 0;
    for (const auto pass : both_passes) {
        if (!has_pass(measured, pass)) continue;
        const auto prediction = sim::simulate(*plan.schedule(pass), machine, options);
        both = behind(std::move(both), prediction.timeline, end);
        end += prediction.makespan;
    }
    const auto summary = summary_of(both, end);
    return {std::move(both), summary};
}

std::string comparison(const Summary& measured, const Summary& predicted) {
    Table table({"", "measured", "predicted", "predicted / measured"});
    const auto row = [&](const char* what, double a, double b, bool is_time) {
        table.add({what, is_time ? ms(a) : fmt::format("{:.3f}", a), is_time ? ms(b) : fmt::format("{:.3f}", b),
                   quotient(b, a, "{:.3f}")});
    };
    row("time ms", measured.time, predicted.time, true);
    row("compute ms", measured.compute, predicted.compute, true);
    row("communication ms", measured.communication, predicted.communication, true);
    row("exposed ms", measured.exposed, predicted.exposed, true);
    row("idle ms", measured.idle, predicted.idle, true);
    row("balance", measured.balance, predicted.balance, false);
    return table.text();
}

/// The configuration of what is predicted beside the traces; none if no option asks for it.
std::optional<Config> compared(Config config, int ranks) {
    static const std::set<std::string> own{"kineto", "kineto-passes", "output", "overwrite", "config", "force"};
    static const std::set<std::string> predicting{
        "preset",   "batch",   "heads",      "head-dim",    "value-dim",        "latent",          "scale",
        "soft-cap", "sinks",   "rotary",     "rotary-dims", "rotary-first",     "rotary-pairs",    "rotary-scaling",
        "layouts",  "masks",   "schedules",  "tokens",      "rotary-positions", "tokens-per-rank", "ranks",
        "machines", "queries", "arithmetic", "dropout",     "compute-model"};
    bool asked = false;
    for (const auto& option : config.given) {
        require(own.contains(option) || predicting.contains(option),
                "--kineto reads what was measured elsewhere and runs nothing; leave out --{}", option);
        asked |= predicting.contains(option);
    }
    if (!asked) return {};
    for (const auto* option : {"machines", "tokens"})
        require(config.given.contains(option) ||
                    (option == std::string("tokens") && config.given.contains("tokens-per-rank")),
                "a prediction beside --kineto needs --{}; give it, or no options of a prediction", option);
    if (config.given.contains("ranks"))
        require(config.sweep.ranks == std::vector<int>{ranks},
                "--ranks {}, but there are traces of {} ranks; leave out --ranks", fmt::join(config.sweep.ranks, " "),
                ranks);
    config.sweep.ranks = {ranks};
    if (!config.given.contains("layouts")) config.sweep.layouts = {"zigzag"};
    if (!config.given.contains("masks")) config.sweep.masks = {"causal"};
    return config;
}

void describe_shares(RunWriter& run, const MeasuredRanks& measured, const std::vector<RankShare>& shares) {
    const auto by_rank = [&](const char* name, std::vector<double> seconds, const char* description) {
        run.dataset(fmt::format("kineto/{}", name), std::move(seconds),
                    {{"rank", static_cast<std::int64_t>(shares.size())}}, "s", description);
    };
    by_rank("compute", seconds_of(shares, &RankShare::compute), "during which the rank computes");
    by_rank("communication", seconds_of(shares, &RankShare::communication), "during which a message is under way");
    by_rank("exposed", seconds_of(shares, &RankShare::exposed),
            "during which a message is under way and nothing computes");
    by_rank("idle", seconds_of(shares, &RankShare::idle),
            "during which the rank does neither, up to the last rank's end");
    std::vector<std::int64_t> numbers(measured.ranks.begin(), measured.ranks.end());
    run.dataset("kineto/number", numbers, {{"rank", static_cast<std::int64_t>(numbers.size())}}, "1",
                "of the rank in its job");
}

void describe_summary(RunWriter& run, const Summary& summary, const char* source) {
    const auto column = [&](const char* what, double value, const char* unit, const char* description) {
        run.attribute(fmt::format("kineto_{}_{}", what, source), value, unit, description);
    };
    column("time", summary.time, "s", "of one attention, from its begin to the end of the last rank");
    column("compute", summary.compute, "s", "of the rank that computes longest");
    column("communication", summary.communication, "s", "of the rank whose messages are under way longest");
    column("exposed", summary.exposed, "s", "communication that no compute covers, of the rank with most");
    column("idle", summary.idle, "s", "of the rank with most");
    column("balance", summary.balance, "1", "largest over mean of the ranks' compute");
}

}  // namespace

int study_kineto(const Config& config, const Experiment& experiment, int argc, char** argv) {
    // 1. What was measured, and what is predicted; the record.
    const int passes = config.scoring.kineto_passes;
    std::vector<KinetoTrace> traces;
    for (const auto& file : config.scoring.kineto) traces.push_back(read_kineto(file));
    const auto measured = join_ranks(std::move(traces));
    const auto shares = rank_shares(measured.timeline);
    const auto summary = summary_of(measured.timeline, measured.timeline.makespan());
    const auto beside = compared(config, measured.timeline.ranks);
    std::optional<Predictor> predictor;
    if (beside) predictor.emplace(*beside);
    auto provenance = collect_provenance(argc, argv);
    if (predictor) predictor->add_provenance(provenance);
    const auto record = make_record(experiment, config, std::move(provenance));

    // 2. The ranks.
    RunWriter run;
    describe_shares(run, measured, shares);
    describe_summary(run, summary / passes, "measured");
    run.timeline("measured", every_pass, measured.timeline);
    record->commit("measured", run);
    if (measured.clocks_disagree)
        fmt::print(stderr,
                   "[note] the clocks of the ranks disagree by more than the traces last: each rank begins at 0\n");
    fmt::print("{}Balance of compute, slowest rank over mean: {:.3f}. From the first to the last event: {} ms\n",
               ranks_text(measured, shares), summary.balance, ms(summary.time));

    // 3. Beside predictions.
    if (predictor) {
        for (const auto& which : all_cases(beside->sweep, beside->prediction.machines, 0))
            for (std::size_t machine = 0; machine < predictor->machines().size(); ++machine) {
                const auto plan = make_plan(which, problem_from(beside->problem));
                auto other = predicted(plan, measured, predictor->descriptions()[machine], predictor->options());
                const auto name = fmt::format("{} on {}", which.name(), predictor->machines()[machine]);
                RunWriter of_case;
                describe_case(of_case, which, plan);
                describe_summary(of_case, other.summary, "predicted");
                of_case.timeline(predictor->machines()[machine], every_pass, std::move(other.timeline));
                record->commit(name, of_case);
                fmt::print("\n{}{}\n{}", name,
                           passes > 1 ? fmt::format(", measured times divided by {}", passes) : std::string(),
                           comparison(summary / passes, other.summary));
            }
    }
    record->finish();
    fmt::print(
        "\nCompute: attention and other kernels. Communication: a message is under way, or waits for its other side. "
        "Exposed:\nthat, while nothing computes. Idle: neither, up to the end of the last rank.\nRecord: {}\n",
        record->name());
    return 0;
}

}  // namespace ringlab::experiments
