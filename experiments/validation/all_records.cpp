#include "experiments/validation/all_records.hpp"

#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/console/table.hpp"
#include "experiments/files/files_read.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "experiments/validation/score.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

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

std::string in_percent(double share) { return fmt::format("{:.1f}", 100 * share); }

/// Mean, 95th percentile and largest.
std::string percent(const std::vector<double>& errors) {
    if (errors.empty()) return "-";
    const auto found = score(errors);
    return fmt::format("{} / {} / {}", in_percent(found.mean), in_percent(found.p95), in_percent(found.most));
}

std::string lengths_text(const ChangedSchedule& change) {
    if (change.below == std::numeric_limits<std::int64_t>::max()) return "";
    return fmt::format(" below {} tokens per rank", change.below);
}

std::string in_words(const Coverage& found) {
    return fmt::format("{} of {} ({:.1f} %)", found.within, found.all,
                       found.all > 0 ? 100 * static_cast<double>(found.within) / static_cast<double>(found.all) : 0);
}

/// Of both passes of the record's rings, by today's model.
std::vector<double> errors_of(const std::vector<ScoredRing>& rings, const std::string& record) {
    std::vector<double> errors;
    for (const auto& ring : rings)
        for (const auto& pass : ring.passes)
            if (ring.record == record) errors.push_back(pass.error());
    return errors;
}

/// Record, machine file and length, in this order.
using ScoreKey = std::tuple<std::string, std::string, std::int64_t>;

std::string table_text(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
    Table table(header);
    for (const auto& row : rows) table.add(row);
    return table.text();
}

}  // namespace

MeasuredPass measured_pass(const RingSamples& samples, Pass pass) {
    const auto& measured = samples.of(pass);
    const auto [seconds, spread] = typical(slowest(measured.seconds));
    const auto before = pass == Pass::backward ? typical(slowest(samples.forward.seconds)).median : 0;
    return {seconds, spread, {measured.period, seconds, before}};
}

void describe_errors(RunWriter& run, const std::string& ending, double measured, double predicted, double overlapped,
                     double serial) {
    const auto column = [&](const char* what, double value, const char* unit, const char* description) {
        run.attribute(fmt::format("{}_{}", what, ending), value, unit, description);
    };
    column("seconds_predicted", predicted, "s", "end of the last operation of any rank");
    column("error", predicted / measured - 1, "1", "of the predicted time of the pass");
    column("error_overlapped", overlapped / measured - 1, "1", "of the guess that transfers hide behind compute");
    column("error_serial", serial / measured - 1, "1", "of the guess that nothing hides");
}

std::string scored_name(const ScoredRecord& record, const ThroughputCase& ring) {
    return fmt::format("{}: {}", record.name, ring.name());
}

void describe_scored_ring(RunWriter& run, const std::string& record, const ThroughputCase& ring) {
    run.attribute("measured_record", record, "1", "where the ring was measured");
    run.attribute("transport", ring.transport, "1", "what carries messages");
    run.attribute("mask", ring.which.mask, "1", "who sees whom");
    run.attribute("layout", ring.which.layout, "1", "which rank owns which tokens");
    run.attribute("algorithm", ring.which.schedule, "1", "schedule that brings queries and keys together");
    run.attribute("shape", ring.shape, "1", "query heads:kv heads/head dims/arithmetic");
    run.attribute("ranks", ring.which.ranks, "1", "ring size P");
    run.attribute("tokens", ring.which.tokens, "1", "of the whole sequence");
}

void score_record(Record& scores, const ScoredRecord& record, Progress& progress) {
    RecordedRings rings(record.path, {.changed = record.left_out.changed});
    const auto hot = hot_runs(hdf5::File::open(record.path));
    const KeptErrors kept(record.path);
    const auto machines = load_machines(record);
    for (std::size_t i = 0; i < rings.cases().size(); ++i) {
        const auto& ring = rings.cases()[i];
        progress.start(scored_name(record, ring));
        const auto plan = make_plan(ring);
        const auto samples = rings.ring(plan, ring.group(), ring.transport, ring.kernels);
        const auto& machine = record.machines.at(ring.transport);
        RunWriter run;
        describe_scored_ring(run, record.name, ring);
        run.attribute("machine", machine, "1", "machine file that it is scored on");
        run.attribute("density", density(plan.mask()), "1", "visible pairs over those of a causal mask");
        run.attribute("warm", static_cast<std::int64_t>(hot[rings.row(i)]), "1",
                      "1: a GPU was slowed down because of its temperature; the ring is in no margin");
        for (const auto pass : both_passes) {
            const auto measured = measured_pass(samples, pass);
            const std::string ending = to_string(pass);
            run.attribute("seconds_measured_" + ending, measured.seconds, "s", "median, slowest rank");
            run.attribute("spread_measured_" + ending, measured.spread, "1",
                          "distance of the quartiles over the median");
            run.attribute("error_recorded_" + ending, kept.of(rings.row(i), pass, machine), "1",
                          "of the prediction that the record keeps, by the model of its day");
            sim::SimOptions options;
            repeat(options, measured.repetition);
            const auto predicted = sim::simulate(*plan.schedule(pass), machines.at(ring.transport), options);
            describe_errors(run, ending, measured.seconds, layouts::to_seconds(predicted.makespan),
                            layouts::to_seconds(predicted.naive_overlapped),
                            layouts::to_seconds(predicted.naive_serial));
        }
        scores.commit(scored_name(record, ring), run);
        progress.finish();
    }
}

std::string score_all(Record& scores, const std::vector<ScoredRecord>& records, Progress& progress) {
    for (const auto& record : records)
        if (record.why_not.empty()) score_record(scores, record, progress);
    scores.finish();
    return scores_text(load_scores(scores.name()), records);
}

std::vector<std::vector<std::string>> score_rows(const std::vector<ScoredRing>& rings) {
    std::map<ScoreKey, std::vector<const ScoredRing*>> sets;
    for (const auto& ring : rings)
        sets[{ring.record, ring.machine, length_bin(ring.tokens_per_rank).least}].push_back(&ring);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [key, set] : sets) {
        std::vector<double> errors, overlapped, serial, recorded;
        for (const auto* ring : set)
            for (const auto& pass : ring->passes) {
                errors.push_back(pass.error());
                overlapped.push_back(pass.overlapped);
                serial.push_back(pass.serial);
                if (std::isfinite(pass.recorded)) recorded.push_back(pass.recorded);
            }
        const auto& [record, machine, least] = key;
        rows.push_back({record, machine, length_bin(least).name, fmt::format("{}", set.size()), percent(errors),
                        in_percent(score(overlapped).mean), in_percent(score(serial).mean), percent(recorded)});
    }
    return rows;
}

std::vector<std::vector<std::string>> margin_rows(const std::vector<ScoredRing>& rings) {
    std::map<std::string, std::vector<ScoredRing>> machines;
    for (const auto& ring : rings) machines[ring.machine].push_back(ring);
    std::vector<std::vector<std::string>> rows;
    for (const auto& [machine, own] : machines)
        for (const double share : {1.0, 0.0}) {
            auto& row = rows.emplace_back(std::vector<std::string>{machine, share >= dense_from ? "dense" : "sparse"});
            for (auto bin = length_bins.rbegin(); bin != length_bins.rend(); ++bin) {
                const auto count = std::ranges::count_if(own, [&](const ScoredRing& ring) {
                    return (ring.density >= dense_from) == (share >= dense_from) &&
                           length_bin(ring.tokens_per_rank).least == bin->least;
                });
                const auto u = margin(own, bin->least, share);
                row.push_back(u ? fmt::format("{} ({})", in_percent(*u), count) : "?");
            }
        }
    return rows;
}

std::string scores_text(const Scores& scores, const std::vector<ScoredRecord>& records) {
    const auto& rings = scores.rings;
    std::string others;
    for (const auto& record : records) {
        if (!record.why_not.empty()) others += fmt::format("{}: {}\n", record.name, record.why_not);
        if (record.hot_rings > 0)
            others += fmt::format(
                "{}: {} rings during which a GPU was slowed down because of its temperature; {} % off by today's "
                "model\n",
                record.name, record.hot_rings, percent(errors_of(scores.warm, record.name)));
        for (const auto& [schedule, change] : record.left_out.changed)
            others += fmt::format("{}, {}{}: {}\n", record.name, schedule, lengths_text(change), change.how);
    }
    return fmt::format(
        "{}\nErrors of a pass's time, %: mean / 95 of 100 / largest. max(c,t), c+t: of naive guesses, mean. In the "
        "record: of what it\nkeeps, by the model of its day.\n\n{}\n"
        "What nine of ten rings keep to, which advise prints as +-: the difference of measured and predicted time of "
        "both\npasses, % of the predicted one, by tokens per rank and by whether at least half of the causal pairs are "
        "visible\n(dense). In brackets: rings measured. Where these are fewer than {}, rings of all lengths or masks "
        "count too.\n?: no such mask was measured. {} rings lie within. With margins by other records of\nthe same "
        "machine file: {}.\n{}",
        table_text({"record", "machine file", "tokens per rank", "rings", "today", "max(c,t)", "c+t", "in the record"},
                   score_rows(rings)),
        table_text({"machine file", "mask", "below 2Ki", "2Ki to 8Ki", "from 8Ki"}, margin_rows(rings)), enough_rings,
        in_words(coverage(rings)), in_words(coverage_of_held_out_records(rings)),
        others.empty() ? "" : fmt::format("\nNot scored:\n{}", others));
}

}  // namespace ringlab::experiments
