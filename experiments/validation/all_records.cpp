#include "experiments/validation/all_records.hpp"

#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/console/resources.hpp"
#include "experiments/console/table.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/files_read.hpp"
#include "experiments/validation/score.hpp"
#include "sim/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

constexpr std::array scored_passes{Pass::forward, Pass::backward};

/// Errors of the model of its day, where a record keeps any: by column of its runs.
class KeptErrors {
public:
    explicit KeptErrors(const std::string& path) : file_(hdf5::File::open(path)) { note_read(path); }

    double of(std::size_t run, Pass pass, const std::string& machine) const {
        const auto column = fmt::format("runs/error_{}_{}", to_string(pass), machine);
        return file_.contains(column) ? file_.dataset(column).doubles()[run] : NAN;
    }

private:
    hdf5::File file_;
};

std::string percent(const std::vector<double>& errors) {
    if (errors.empty()) return "";
    const auto found = score(errors);
    return fmt::format("{:.1f} / {:.1f} / {:.1f}", 100 * found.mean, 100 * found.p95, 100 * found.most);
}

/// Tokens of a rank from which on rings are scored together, and what that is called.
constexpr std::pair<std::int64_t, const char*> sizes[] = {{8192, "from 8Ki"}, {2048, "2Ki to 8Ki"}, {0, "below 2Ki"}};

}  // namespace

MeasuredPass measured_pass(const RingSamples& samples, Pass pass) {
    const auto& measured = pass == Pass::forward ? samples.forward : samples.backward;
    const auto [seconds, spread] = typical(slowest(measured.seconds));
    const auto before = pass == Pass::backward ? typical(slowest(samples.forward.seconds)).median : 0;
    return {seconds, spread, {measured.period, seconds, before}};
}

void describe_errors(RunWriter& run, Pass pass, const std::string& machine, double measured, double predicted,
                     double overlapped, double serial) {
    const auto column = [&](const char* what, double value, const char* unit, const char* description) {
        run.attribute(fmt::format("{}_{}_{}", what, to_string(pass), machine), value, unit, description);
    };
    column("seconds_predicted", predicted, "s", "end of the last operation of any rank");
    column("error", predicted / measured - 1, "1", "of the predicted time of the pass");
    column("error_overlapped", overlapped / measured - 1, "1", "of the guess that transfers hide behind compute");
    column("error_serial", serial / measured - 1, "1", "of the guess that nothing hides");
}

std::string scored_name(const ScoredRecord& record, const ThroughputCase& ring) {
    return fmt::format("{}: {}", record.name, ring.name());
}

void score_record(Record& scores, const ScoredRecord& record, Progress& progress) {
    RecordedRings rings(record.path);
    const KeptErrors kept(record.path);
    std::map<std::string, sim::Machine> machines;
    for (const auto& [transport, name] : record.machines)
        machines.emplace(transport, sim::load_machine(find_resource(name, "machines", ".toml")));
    for (std::size_t i = 0; i < rings.cases().size(); ++i) {
        const auto& ring = rings.cases()[i];
        progress.start(scored_name(record, ring));
        const auto shaped = with_shape(ring.shape, Config{});
        const auto plan = make_plan(ring.which, problem_from(shaped), shaped, {});
        const auto samples = rings.ring(plan, ring.group(), ring.transport, ring.kernels);
        const auto& machine = record.machines.at(ring.transport);
        RunWriter run;
        run.attribute("measured_record", record.name, "1", "where the ring was measured");
        run.attribute("machine", machine, "1", "machine file that it is scored on");
        run.attribute("transport", ring.transport, "1", "what carries messages");
        run.attribute("mask", plan.mask().name(), "1", "who sees whom");
        run.attribute("layout", plan.layout().name(), "1", "which rank owns which tokens");
        run.attribute("algorithm", ring.which.algorithm, "1", "schedule that brings queries and keys together");
        run.attribute("shape", ring.shape, "1", "query heads:kv heads/head dims/arithmetic");
        run.attribute("ranks", ring.which.ranks, "1", "ring size P");
        run.attribute("tokens", plan.problem.tokens, "1", "of the whole sequence");
        for (const auto pass : scored_passes) {
            const auto measured = measured_pass(samples, pass);
            run.attribute(fmt::format("rate_{}_seconds", to_string(pass)), measured.seconds, "s",
                          "measured: median, slowest rank");
            run.attribute(fmt::format("rate_{}_spread", to_string(pass)), measured.spread, "1",
                          "distance of the quartiles over the median");
            run.attribute(fmt::format("recorded_error_{}", to_string(pass)), kept.of(rings.row(i), pass, machine), "1",
                          "of the prediction that the record keeps, by the model of its day");
            sim::SimOptions options;
            repeat(options, measured.repetition);
            const auto predicted = sim::simulate(*plan.schedule(pass), machines.at(ring.transport), options);
            describe_errors(run, pass, machine, measured.seconds, layouts::to_seconds(predicted.makespan),
                            layouts::to_seconds(predicted.naive_overlapped), layouts::to_seconds(predicted.naive_serial));
        }
        scores.commit(scored_name(record, ring), run);
        progress.finish();
    }
}

std::string scores_text(const Record& scores, const std::vector<ScoredRecord>& records) {
    Table table({"record", "machine file", "tokens per rank", "rings", "today", "max(c,t)", "c+t", "in the record"});
    std::string others;
    for (const auto& record : records) {
        if (!record.why_not.empty()) others += fmt::format("{}: {}\n", record.name, record.why_not);
        for (const auto& [transport, machine] : record.machines)
            for (const auto& [least, size] : sizes) {
                std::map<std::string, std::vector<double>> errors;
                for (const auto& run : scores.runs()) {
                    if (scores.text(run, "measured_record") != record.name || scores.text(run, "transport") != transport)
                        continue;
                    const auto tokens = static_cast<std::int64_t>(scores.number(run, "tokens") / scores.number(run, "ranks"));
                    const auto bin = std::find_if(std::begin(sizes), std::end(sizes),
                                                  [&](const auto& one) { return tokens >= one.first; });
                    if (bin->first != least) continue;
                    for (const auto pass : scored_passes) {
                        for (const auto* what : {"error", "error_overlapped", "error_serial"})
                            errors[what].push_back(
                                scores.number(run, fmt::format("{}_{}_{}", what, to_string(pass), machine)));
                        const auto kept = scores.number(run, fmt::format("recorded_error_{}", to_string(pass)));
                        if (std::isfinite(kept)) errors["recorded"].push_back(kept);
                    }
                }
                if (errors.empty()) continue;
                const auto mean = [&](const char* what) {
                    return fmt::format("{:.1f}", 100 * score(errors[what]).mean);
                };
                table.add({record.name, machine, size, fmt::format("{}", errors["error"].size() / scored_passes.size()),
                           percent(errors["error"]), mean("error_overlapped"), mean("error_serial"),
                           percent(errors["recorded"])});
            }
    }
    return fmt::format(
        "{}\nErrors of a pass's time, %: mean / 95 of 100 / largest. max(c,t), c+t: of naive guesses, mean. In the "
        "record: of what it\nkeeps, by the model of its day.\n{}",
        table.text(), others.empty() ? "" : fmt::format("\nNot scored:\n{}", others));
}

}  // namespace ringlab::experiments
