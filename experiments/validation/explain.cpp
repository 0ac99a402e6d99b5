#include "experiments/validation/explain.hpp"

#include "experiments/prediction/uncertainty.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace ringlab::experiments {
namespace {

/// What the rank that ends last does up to its last span, and the rest of a pass of so many seconds.
Shares parts_of(const layouts::Timeline& timeline, double seconds) {
    const auto& last = *std::ranges::max_element(timeline.spans, {}, &layouts::Span::end);
    auto parts = shares_of(layouts::time_of_rank(timeline, last.rank), last.end);
    parts.emplace_back("rest", seconds - layouts::to_seconds(last.end));
    return parts;
}

ExplainedPass explained(const ScoredRecord& record, const MeasuredRing& ring, const layouts::Schedule& schedule,
                        const sim::Machine& machine) {
    const auto pass = schedule.options().pass;
    const auto measured = measured_pass(ring.run, pass);
    auto options = measured.options();
    options.trace = true;
    options.fold = false;
    const auto predicted = sim::simulate(schedule, machine, options);
    ExplainedPass found{record.name, ring.timed, pass, measured.seconds, layouts::to_seconds(predicted.makespan)};
    found.differences = parts_of(predicted.timeline, found.predicted);
    const auto parts = parts_of(ring.run.of(pass).timeline(), found.measured);
    for (std::size_t i = 0; i < parts.size(); ++i) found.differences[i].second -= parts[i].second;
    return found;
}

void describe(RunWriter& run, const ExplainedPass& found) {
    const std::string ending = to_string(found.pass);
    run.attribute("seconds_measured_" + ending, found.measured, "s", "median, slowest rank");
    run.attribute("seconds_predicted_" + ending, found.predicted, "s", "end of the last operation of any rank");
    run.attribute("owner_" + ending, found.owner(), "1", "the part with the largest difference");
    for (auto [name, seconds] : found.differences) {
        std::ranges::replace(name, ' ', '_');
        run.attribute(fmt::format("difference_{}_{}", name, ending), seconds, "s",
                      "predicted less measured time of the rank that ends last");
    }
}

/// A row for each pass.
std::string pass_table(const std::vector<ExplainedPass>& passes) {
    Table table;
    for (const auto& found : passes) {
        const auto& setup = found.ring.setup;
        table.start().cell("transport", found.ring.transport).cell("mask", setup.mask).cell("schedule", setup.schedule);
        table.cell("layout", setup.layout).cell("tokens", setup.tokens).cell("pass", to_string(found.pass));
        table.cell("measured ms", found.measured * 1e3, "{:.4g}");
        add_cells(table, {{"error", found.predicted - found.measured}}, found.measured, "{:+.1f}");
        table.cell("owner", found.owner());
        add_cells(table, found.differences, found.measured, "{:+.1f}");
    }
    return table.text();
}

/// A row for each record, transport, pass and length.
std::string sum_table(const std::vector<ExplainedPass>& passes) {
    std::map<std::tuple<std::string, std::string, layouts::Pass, std::int64_t>, std::vector<const ExplainedPass*>> sets;
    for (const auto& one : passes)
        sets[{one.record, one.ring.transport, one.pass, length_bin(one.ring.setup.tokens / one.ring.setup.ranks).least}]
            .push_back(&one);
    Table table;
    for (const auto& [key, set] : sets) {
        // Means of relative values: without sign, and with it.
        const auto mean = [&](auto value) {
            double signed_sum = 0, sum = 0;
            for (const auto* one : set) {
                signed_sum += value(*one) / one->measured;
                sum += std::abs(value(*one)) / one->measured;
            }
            const auto count = static_cast<double>(set.size());
            return fmt::format("{:.1f} ({:+.1f})", 100 * sum / count, 100 * signed_sum / count);
        };
        const auto& [record, transport, pass, least] = key;
        table.start().cell("record", record).cell("transport", transport).cell("pass", to_string(pass));
        table.cell("tokens per rank", length_bin(least).name).cell("passes", static_cast<std::int64_t>(set.size()));
        table.cell("error", mean([](const auto& one) { return one.predicted - one.measured; }));
        for (std::size_t i = 0; i < set.front()->differences.size(); ++i) {
            const auto& name = set.front()->differences[i].first;
            const auto owned = std::ranges::count(set, name, [](const auto* one) { return one->owner(); });
            table.cell(name,
                       fmt::format("{} {}", mean([&](const auto& one) { return one.differences[i].second; }), owned));
        }
    }
    return table.text();
}

}  // namespace

const std::string& ExplainedPass::owner() const {
    return std::ranges::max_element(differences, {}, [](const auto& part) { return std::abs(part.second); })->first;
}

std::vector<ExplainedPass> explained_passes(const std::vector<ScoredRecord>& records, Record* explained_record) {
    std::vector<ExplainedPass> all;
    std::set<std::string> with_spans;
    for_each_ring(records, false, [&](const auto& record, const auto& ring, const auto& plan, const auto& machine) {
        RunWriter run;
        describe_scored_ring(run, record.name, ring.timed);
        for (const auto pass : both_passes) {
            if (ring.run.of(pass).timeline().spans.empty()) continue;
            with_spans.insert(record.name);
            describe(run, all.emplace_back(explained(record, ring, *plan.schedule(pass), machine)));
        }
        if (explained_record) explained_record->commit(scored_name(record, ring.timed), run);
    });
    for (const auto& record : records)
        require(!record.why_not.empty() || with_spans.contains(record.name),
                "{}: no pass of its rings has measured spans, which --explain needs", record.path);
    return all;
}

std::string explain(Record& explained_record, const std::vector<ScoredRecord>& records) {
    const auto all = explained_passes(records, &explained_record);
    return fmt::format(
        "{}\n{}\nIn % of the measured time. error: predicted minus measured. The other columns add up to it: the time "
        "of the rank that\nends last, predicted minus measured; it computes, its host launches nothing in time, a "
        "message moves and nothing is\ncomputed, or it waits for a peer; rest: what is behind the last operation, and "
        "the difference between the traced pass\nand the median one. owner: the largest of them.\n"
        "By length: mean without sign (with sign), and of how many passes it is the owner.\n",
        records.size() == 1 ? pass_table(all) : "", sum_table(all));
}

}  // namespace ringlab::experiments
