#include "experiments/validation/scores.hpp"

#include "experiments/console/table.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

namespace ringlab::experiments {
namespace {

/// Counts how many sets of rings that differ only in their layout are ranked right. A set is ranked right if no layout
/// that is predicted to be faster than another was slower by more than the measurement noise.
struct Ranking {
    int right = 0, all = 0;
};

struct Ring {
    double measured, predicted, spread;
};

Ranking ranking(const std::map<std::string, std::vector<Ring>>& sets) {
    Ranking ranking;
    for (const auto& [name, rings] : sets)
        for (std::size_t i = 0; i < rings.size(); ++i)
            for (std::size_t j = i + 1; j < rings.size(); ++j) {
                const auto &a = rings[i], &b = rings[j];
                if (std::abs(a.measured / b.measured - 1) <= a.spread + b.spread) continue;
                ++ranking.all;
                ranking.right += (a.measured < b.measured) == (a.predicted < b.predicted);
            }
    return ranking;
}

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

Score score(std::vector<double> errors) {
    require(!errors.empty(), "there is nothing to score");
    double sum = 0;
    for (auto& error : errors) sum += error = std::abs(error);
    std::sort(errors.begin(), errors.end());
    const auto at = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(errors.size()))) - 1;
    return {sum / static_cast<double>(errors.size()), errors[at], errors.back()};
}

std::string score_text(const Record& record, const std::vector<ThroughputCase>& rings, const std::string& machine) {
    Table runs, scores;
    std::map<std::string, std::map<std::string, std::vector<double>>> errors;  // by transport, then predictor
    std::map<std::string, std::map<std::string, std::vector<Ring>>> sets;      // by transport
    for (const auto& ring : rings)
        for (const auto* pass : {"forward", "backward"}) {
            const auto name = ring.name();
            const auto number = [&](const std::string& column) { return record.number(name, column); };
            const auto predicted = [&](const char* what) {
                return number(fmt::format("{}_{}_{}", what, pass, machine));
            };
            const auto seconds = number(fmt::format("rate_{}_seconds", pass)),
                       spread = number(fmt::format("rate_{}_spread", pass));
            auto& kinds = errors[ring.transport];
            kinds["predicted"].push_back(predicted("error"));
            kinds["predicted compute of the busiest rank"].push_back(predicted("error_compute"));
            kinds["predicted balance, difference"].push_back(predicted("error_balance"));
            kinds["max(compute, transfer)"].push_back(predicted("error_overlapped"));
            kinds["compute + transfer"].push_back(predicted("error_serial"));
            kinds["spread of the measurements"].push_back(spread);
            auto others = ring;
            others.which.layout = "";
            sets[ring.transport][others.name() + pass].push_back({seconds, predicted("seconds_predicted"), spread});
            const auto percent = [&](const char* header, double part) { runs.cell(header, 100 * part, "{:+.1f} %"); };
            runs.start().cell("transport", ring.transport).cell("mask", ring.which.mask);
            runs.cell("schedule", ring.which.schedule).cell("layout", ring.which.layout);
            runs.cell("tokens", ring.which.tokens).cell("pass", pass).cell("measured ms", seconds * 1e3, "{:.4g}");
            runs.cell("spread", 100 * spread, "{:.1f} %");
            runs.cell("predicted ms", predicted("seconds_predicted") * 1e3, "{:.4g}");
            percent("error", predicted("error"));
            percent("max(c,t)", predicted("error_overlapped"));
            percent("c+t", predicted("error_serial"));
        }
    std::string rankings;
    for (const auto& [transport, kinds] : errors) {
        for (const auto& [kind, values] : kinds) {
            const auto found = score(values);
            scores.start().cell("transport", transport).cell("", kind);
            scores.cell("mean", 100 * found.mean, "{:.1f} %").cell("95th", 100 * found.p95, "{:.1f} %");
            scores.cell("largest", 100 * found.most, "{:.1f} %");
        }
        const auto ranked = ranking(sets[transport]);
        rankings += fmt::format("{}: {} of {} pairs of layouts that differ by more than the spread are ranked right.\n",
                                transport, ranked.right, ranked.all);
    }
    return fmt::format("{}\nPredicted on {}:\n{}\n{}", runs.text(), machine, scores.text(), rankings);
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

void score_record(Record& scores, const ScoredRecord& record, Progress& progress) {
    const auto machines = load_machines(record);
    for_each_ring(record, {.changed = record.left_out.changed}, progress, [&](MeasuredRing& ring) {
        const auto& which = ring.which();
        const auto& machine = record.machines.at(which.transport);
        RunWriter run;
        describe_scored_ring(run, record.name, which);
        run.attribute("machine", machine, "1", "machine file that it is scored on");
        run.attribute("density", density(ring.plan.mask()), "1", "visible pairs over those of a causal mask");
        run.attribute("warm", static_cast<std::int64_t>(ring.rings.is_hot(ring.index)), "1",
                      "1: a GPU was slowed down because of its temperature; the ring is in no margin");
        for (const auto pass : both_passes) {
            const auto measured = measured_pass(ring.run, pass);
            const std::string ending = to_string(pass);
            run.attribute("seconds_measured_" + ending, measured.seconds, "s", "median, slowest rank");
            run.attribute("spread_measured_" + ending, measured.spread, "1",
                          "distance of the quartiles over the median");
            run.attribute("error_recorded_" + ending, ring.rings.kept_error(ring.index, pass, machine), "1",
                          "of the prediction that the record keeps, by the model of its day");
            const auto predicted =
                sim::simulate(*ring.plan.schedule(pass), machines.at(which.transport), measured.options());
            describe_errors(run, ending, measured.seconds, layouts::to_seconds(predicted.makespan),
                            layouts::to_seconds(predicted.naive_overlapped),
                            layouts::to_seconds(predicted.naive_serial));
        }
        scores.commit(scored_name(record, which), run);
    });
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
