#include "experiments/validation/explain.hpp"

#include "experiments/console/table.hpp"
#include "experiments/prediction/uncertainty.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace ringlab::experiments {
namespace {

using layouts::Picoseconds;
using sim::Owner;

/// A pass with its measured spans.
struct TracedPass {
    double seconds = 0;  ///< median of the slowest rank
    sim::Replay replay;
    double tokens;  ///< of the largest shard

    /// From the last span of the traced pass to the end of the median pass, less what is predicted for it.
    double late_end() const {
        Picoseconds last = 0;
        for (std::size_t rank = 0; rank < replay.last_ends().size(); ++rank)
            last = std::max(last, replay.last_ends()[rank] + replay.end_of_pass(static_cast<int>(rank)));
        return seconds - layouts::to_seconds(last);
    }
};

struct TracedRing {
    ThroughputCase ring;
    Plan plan;
    std::array<std::optional<TracedPass>, 2> passes{};
};

/// What passes of rings that power does not limit have in common.
using PassKey = std::tuple<std::string, std::string, std::string, std::size_t>;
PassKey key_of(const TracedRing& traced, std::size_t pass) {
    return {traced.ring.transport, traced.ring.shape, traced.ring.kernels, pass};
}

/// A line y = at_0 + slope * x through points that count with a weight; constant if all have the same x.
struct Line {
    double weights = 0, x = 0, y = 0, xx = 0, xy = 0;

    void add(double at, double value, double weight) {
        weights += weight;
        x += weight * at;
        y += weight * value;
        xx += weight * at * at;
        xy += weight * at * value;
    }
    double value(double at) const {
        if (weights == 0) return 0;
        const auto spread = xx - x * x / weights;
        const auto slope = spread > 1e-9 * xx ? (xy - x * y / weights) / spread : 0;
        return y / weights + slope * (at - x / weights);
    }
};

std::vector<TracedRing> traced_rings(const ScoredRecord& record, const std::map<std::string, sim::Machine>& machines,
                                     Progress& progress) {
    std::vector<TracedRing> found;
    bool has_spans = false;
    for_each_ring(record, record.left_out, progress, [&](MeasuredRing& ring) {
        auto& traced = found.emplace_back(TracedRing{ring.which(), std::move(ring.plan)});
        for (std::size_t pass = 0; pass < both_passes.size(); ++pass) {
            const auto& timeline = ring.run.of(both_passes[pass]).timeline();
            if (timeline.spans.empty()) continue;
            has_spans = true;
            const auto measured = measured_pass(ring.run, both_passes[pass]);
            traced.passes[pass].emplace(measured.seconds,
                                        sim::Replay(*traced.plan.schedule(both_passes[pass]),
                                                    machines.at(traced.ring.transport), measured.options(), timeline),
                                        static_cast<double>(traced.plan.layout().largest_shard()));
        }
    });
    require(has_spans, "{}: no pass of its rings has measured spans, which --explain replays", record.path);
    return found;
}

/// The largest effect's owner, or "rest" if even that is smaller than what the replay does not reproduce.
std::string owner_name(const sim::Attribution& found) {
    const auto owner = found.largest();
    return std::abs(found.effect(owner)) < std::abs(found.remainder) ? "rest" : sim::to_string(owner);
}

/// "+3.1", in percent of the measured time.
std::string share(double seconds, double measured) { return fmt::format("{:+.1f}", 100 * seconds / measured); }

/// A row for each pass.
std::string ring_table(const std::vector<ExplainedRing>& rings) {
    Table table;
    for (const auto& [record, ring, passes] : rings)
        for (std::size_t pass = 0; pass < passes.size(); ++pass) {
            if (!passes[pass]) continue;
            const auto& found = *passes[pass];
            table.start().cell("transport", ring.transport).cell("mask", ring.which.mask);
            table.cell("schedule", ring.which.schedule).cell("layout", ring.which.layout);
            table.cell("tokens", ring.which.tokens).cell("pass", to_string(both_passes[pass]));
            table.cell("measured ms", found.measured * 1e3, "{:.4g}");
            table.cell("error", share(found.predicted - found.measured, found.measured));
            table.cell("owner", owner_name(found));
            for (const auto owner : sim::owners)
                table.cell(sim::to_string(owner), share(found.effect(owner), found.measured));
            table.cell("rest", share(found.remainder, found.measured));
        }
    return table.text();
}

/// A row for each record, transport, pass and length.
std::string sum_table(const std::vector<ExplainedRing>& rings) {
    std::map<std::tuple<std::string, std::string, std::size_t, std::int64_t>, std::vector<const sim::Attribution*>>
        sets;
    for (const auto& [record, ring, passes] : rings)
        for (std::size_t pass = 0; pass < passes.size(); ++pass)
            if (passes[pass])
                sets[{record, ring.transport, pass, length_bin(ring.which.tokens / ring.which.ranks).least}].push_back(
                    &*passes[pass]);
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
        table.start().cell("record", record).cell("transport", transport).cell("pass", to_string(both_passes[pass]));
        table.cell("tokens per rank", length_bin(least).name).cell("passes", static_cast<std::int64_t>(set.size()));
        table.cell("error", mean([](const auto& one) { return one.predicted - one.measured; }));
        for (const auto owner : sim::owners) {
            const auto owned =
                std::ranges::count_if(set, [&](const auto* one) { return owner_name(*one) == sim::to_string(owner); });
            table.cell(sim::to_string(owner),
                       fmt::format("{} {}", mean([&](const auto& one) { return one.effect(owner); }), owned));
        }
        table.cell("rest", mean([](const auto& one) { return one.remainder; }));
    }
    return table.text();
}

void describe(RunWriter& run, const ExplainedRing& explained) {
    const auto& [record, ring, passes] = explained;
    describe_scored_ring(run, record, ring);
    for (std::size_t pass = 0; pass < passes.size(); ++pass) {
        const std::string ending = to_string(both_passes[pass]);
        const auto found = passes[pass].value_or(sim::Attribution{.predicted = NAN, .measured = NAN, .remainder = NAN});
        const auto seconds = [&](const std::string& name, double value, const std::string& description) {
            run.attribute(name + "_" + ending, value, "s", description);
        };
        seconds("seconds_measured", found.measured, "median, slowest rank; NaN: the pass has no measured spans");
        seconds("seconds_predicted", found.predicted, "end of the last operation of any rank");
        run.attribute(
            "owner_" + ending, passes[pass] ? owner_name(found) : "none", "1",
            "part of the cost model with the largest effect; rest: the remainder is larger; none: the pass has no "
            "measured spans");
        for (const auto owner : sim::owners)
            seconds(fmt::format("effect_{}", sim::to_string(owner)), passes[pass] ? found.effect(owner) : NAN,
                    fmt::format("what the predicted time gains if what was measured replaces the model's: {}",
                                sim::to_string(owner)));
        seconds("remainder", found.remainder, "measured less predicted less all effects");
    }
}

}  // namespace

std::vector<ExplainedRing> explained_rings(const ScoredRecord& record, Progress& progress) {
    const auto machines = load_machines(record);  // which the replays refer to
    const auto rings = traced_rings(record, machines, progress);

    std::map<std::pair<PassKey, std::string>, std::vector<double>> ratios;  // of attends; by mask
    std::map<PassKey, Line> late_ends;                                      // by tokens of a rank
    for (const auto& traced : rings)
        for (std::size_t pass = 0; pass < traced.passes.size(); ++pass)
            if (const auto& one = traced.passes[pass]; one && !one->replay.power_limits()) {
                ratios[{key_of(traced, pass), traced.ring.which.mask}].push_back(one->replay.attend_ratio());
                late_ends[key_of(traced, pass)].add(one->tokens, one->late_end(), 1 / (one->seconds * one->seconds));
            }

    std::vector<ExplainedRing> all;
    for (const auto& traced : rings) {
        progress.start(scored_name(record, traced.ring));
        auto& explained = all.emplace_back(ExplainedRing{record.name, traced.ring});
        for (std::size_t pass = 0; pass < traced.passes.size(); ++pass) {
            if (!traced.passes[pass]) continue;
            const auto& one = *traced.passes[pass];
            const auto found = ratios.find({key_of(traced, pass), traced.ring.which.mask});
            const auto ratio = found == ratios.end() ? one.replay.attend_ratio() : typical(found->second).median;
            const auto late = late_ends[key_of(traced, pass)].value(one.tokens);
            std::vector<Picoseconds> ends;
            for (std::size_t rank = 0; rank < one.replay.last_ends().size(); ++rank)
                ends.push_back(std::max<Picoseconds>(
                    0, one.replay.end_of_pass(static_cast<int>(rank)) + layouts::to_picoseconds(late)));
            explained.passes[pass] = one.replay.attribute(one.seconds, ends, ratio);
        }
        progress.finish();
    }
    return all;
}

std::string explain(Record& explained, const std::vector<ScoredRecord>& records, Progress& progress) {
    std::vector<ExplainedRing> all;
    for (const auto& record : records) {
        if (!record.why_not.empty()) continue;
        for (auto& ring : explained_rings(record, progress)) {
            RunWriter run;
            describe(run, ring);
            explained.commit(scored_name(record, ring.ring), run);
            all.push_back(std::move(ring));
        }
    }
    std::size_t without = 0;
    for (const auto& ring : all)
        for (const auto& pass : ring.passes) without += pass ? 0 : 1;
    return fmt::format(
        "{}\n{}\nIn % of the measured time. error: predicted minus measured. Other columns: by how much the predicted "
        "time grows if\nmeasured times replace the model's; their sum, with the rest, is measured minus predicted. "
        "owner: the largest of them.\n"
        "By length: mean without sign (with sign), and of how many passes it is the owner.\n"
        "{} passes have no measured spans and are not explained.\n",
        records.size() == 1 ? ring_table(all) : "", sum_table(all), without);
}

}  // namespace ringlab::experiments
