#include "experiments/validation/scores.hpp"

#include "experiments/console/table.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

namespace ringlab::experiments {
namespace {

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

/// Columns of a pass: what was measured, what is predicted, and how far that and the naive guesses are off.
void describe_pass(RunWriter& run, const RingRun& ring, layouts::Pass pass, const sim::Prediction& predicted,
                   double error_recorded) {
    const auto column = [&](const char* what, double value, const char* unit, const char* description) {
        run.attribute(fmt::format("{}_{}", what, to_string(pass)), value, unit, description);
    };
    const auto measured = measured_pass(ring, pass);
    const auto error = [&](layouts::Picoseconds time) { return layouts::to_seconds(time) / measured.seconds - 1; };
    column("seconds_measured", measured.seconds, "s", "median, slowest rank");
    column("spread_measured", measured.spread, "1", "distance of the quartiles over the median");
    column("error_recorded", error_recorded, "1", "of the prediction that the record keeps, by the model of its day");
    column("seconds_predicted", layouts::to_seconds(predicted.makespan), "s", "end of the last operation of any rank");
    column("error", error(predicted.makespan), "1", "of the predicted time of the pass");
    column("error_overlapped", error(predicted.naive_overlapped), "1",
           "of the guess that transfers hide behind compute");
    column("error_serial", error(predicted.naive_serial), "1", "of the guess that nothing hides");
    const auto attends = attend_seconds(ring.of(pass).timeline());
    std::vector<double> compute;
    for (const auto& rank : predicted.ranks) compute.push_back(layouts::to_seconds(rank.compute));
    column("error_compute", std::ranges::max(compute) / std::ranges::max(attends) - 1, "1",
           "of the predicted compute of the busiest rank");
    column("error_balance", layouts::imbalance(compute) - balance_of(attends), "1",
           "predicted less measured: the busiest rank's compute over the mean");
}

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

Ranking ranking(const std::vector<ScoredRing>& rings) {
    Ranking ranking;
    const auto key_of = [](const ScoredRing& ring) {
        return std::tie(ring.record, ring.mask, ring.schedule, ring.transport, ring.shape, ring.tokens_per_rank);
    };
    for (std::size_t i = 0; i < rings.size(); ++i)
        for (std::size_t j = i + 1; j < rings.size(); ++j)
            for (std::size_t pass = 0; pass < 2 && key_of(rings[i]) == key_of(rings[j]); ++pass) {
                const auto &a = rings[i].passes[pass], &b = rings[j].passes[pass];
                if (std::abs(a.measured / b.measured - 1) <= a.spread + b.spread) continue;
                ++ranking.all;
                ranking.right += (a.measured < b.measured) == (a.predicted < b.predicted);
            }
    return ranking;
}

std::string ring_text(const std::vector<ScoredRing>& rings) {
    Table runs, scores;
    std::map<std::string, std::map<std::string, std::vector<double>>> errors;  // by transport, then predictor
    std::map<std::string, std::vector<ScoredRing>> by_transport;
    for (const auto& ring : rings) {
        by_transport[ring.transport].push_back(ring);
        for (const auto pass : both_passes) {
            const auto& one = ring.passes[static_cast<std::size_t>(pass)];
            const auto add = [&](const char* kind, double error) {
                if (std::isfinite(error)) errors[ring.transport][kind].push_back(error);
            };
            add("predicted", one.error());
            add("predicted compute of the busiest rank", one.compute);
            add("predicted balance, difference", one.balance);
            add("max(compute, transfer)", one.overlapped);
            add("compute + transfer", one.serial);
            add("spread of the measurements", one.spread);
            const auto percent = [&](const char* header, double part) { runs.cell(header, 100 * part, "{:+.1f} %"); };
            runs.start().cell("transport", ring.transport).cell("mask", ring.mask).cell("schedule", ring.schedule);
            runs.cell("layout", ring.layout).cell("tokens/rank", ring.tokens_per_rank).cell("pass", to_string(pass));
            runs.cell("measured ms", one.measured * 1e3, "{:.4g}").cell("spread", 100 * one.spread, "{:.1f} %");
            runs.cell("predicted ms", one.predicted * 1e3, "{:.4g}");
            percent("error", one.error());
            percent("max(c,t)", one.overlapped);
            percent("c+t", one.serial);
        }
    }
    std::string rankings;
    for (const auto& [transport, kinds] : errors) {
        for (const auto& [kind, values] : kinds) {
            const auto found = score(values);
            scores.start().cell("transport", transport).cell("", kind);
            scores.cell("mean", 100 * found.mean, "{:.1f} %").cell("95th", 100 * found.p95, "{:.1f} %");
            scores.cell("largest", 100 * found.most, "{:.1f} %");
        }
        const auto ranked = ranking(by_transport[transport]);
        rankings += fmt::format("{}: {} of {} pairs of layouts that differ by more than the spread are ranked right.\n",
                                transport, ranked.right, ranked.all);
    }
    return fmt::format("{}\n{}\n{}", runs.text(), scores.text(), rankings);
}

std::string score_all(Record& scores, const std::vector<ScoredRecord>& records) {
    const bool keeps_spans = records.size() == 1;
    for_each_ring(records, true, [&](const auto& record, const auto& ring, const auto& plan, const auto& machine) {
        RunWriter run;
        describe_scored_ring(run, record.name, ring.timed);
        const auto name = std::filesystem::path(record.machines.at(ring.timed.transport)).stem().string();
        run.attribute("machine", name, "1", "machine file that it is scored on");
        run.attribute("density", density(plan.mask()), "1", "visible pairs over those of a causal mask");
        run.attribute("warm", ring.is_hot ? 1 : 0, "1",
                      "1: a GPU was slowed down because of its temperature; the ring is in no margin");
        for (const auto pass : both_passes) {
            auto options = measured_pass(ring.run, pass).options();
            options.trace = keeps_spans;
            auto predicted = sim::simulate(*plan.schedule(pass), machine, options);
            const auto kept = ring.kept_errors.find(fmt::format("{}_{}", to_string(pass), name));
            describe_pass(run, ring.run, pass, predicted, kept == ring.kept_errors.end() ? NAN : kept->second);
            if (!keeps_spans) continue;
            run.timeline("measured", to_string(pass), ring.run.of(pass).timeline());
            run.timeline(name, to_string(pass), std::move(predicted.timeline));
        }
        scores.commit(scored_name(record, ring.timed), run);
    });
    scores.finish();
    auto found = load_scores(scores.name());
    if (records.size() > 1) return scores_text(found, records);
    std::ranges::move(found.warm, std::back_inserter(found.rings));
    return ring_text(found.rings);
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
        in_words(coverage(rings, false)), in_words(coverage(rings, true)),
        others.empty() ? "" : fmt::format("\nNot scored:\n{}", others));
}

}  // namespace ringlab::experiments
