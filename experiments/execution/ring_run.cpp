#include "experiments/execution/ring_run.hpp"

#include "experiments/options/values.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <limits>

namespace ringlab::experiments {
namespace {

void append(auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); }

void join(PassRun& all, const PassRun& more) {
    const auto by_repeat = [](std::vector<std::vector<double>>& mine, const std::vector<std::vector<double>>& theirs) {
        for (std::size_t repeat = 0; repeat < std::min(mine.size(), theirs.size()); ++repeat)
            append(mine[repeat], theirs[repeat]);
    };
    by_repeat(all.seconds, more.seconds);
    by_repeat(all.issue, more.issue);
}

}  // namespace

RingRun side_by_side(std::vector<RingRun> rings) {
    if (rings.empty()) return {};
    auto all = std::move(rings.front());
    for (std::size_t i = 1; i < rings.size(); ++i) {
        join(all.forward, rings[i].forward);
        join(all.backward, rings[i].backward);
        append(all.memory, rings[i].memory);
        append(all.devices, rings[i].devices);
        append(all.clocks, rings[i].clocks);
        all.clock_uncertainty = std::max(all.clock_uncertainty, rings[i].clock_uncertainty);
    }
    return all;
}

Typical typical(const std::vector<double>& samples) {
    require(!samples.empty(), "nothing was timed");
    const double middle = percentile(samples, 50);
    return {middle, (percentile(samples, 75) - percentile(samples, 25)) / middle};
}

std::vector<double> slowest(const std::vector<std::vector<double>>& seconds) {
    std::vector<double> most;
    for (const auto& ranks : seconds) most.push_back(*std::max_element(ranks.begin(), ranks.end()));
    return most;
}

std::vector<double> attend_seconds(const layouts::Timeline& timeline) {
    std::vector<double> seconds(static_cast<std::size_t>(timeline.ranks));
    for (const auto& span : timeline.spans)
        if (span.kind == layouts::OpKind::attend)
            seconds[static_cast<std::size_t>(span.rank)] += layouts::to_seconds(span.busy);
    return seconds;
}

std::vector<double> median_attend_seconds(const PassRun& pass) {
    std::vector<std::vector<double>> by_rank;
    for (const auto& timeline : pass.timelines) {
        const auto seconds = attend_seconds(timeline);
        by_rank.resize(seconds.size());
        for (std::size_t rank = 0; rank < seconds.size(); ++rank) by_rank[rank].push_back(seconds[rank]);
    }
    std::vector<double> medians;
    for (auto& samples : by_rank) medians.push_back(median(std::move(samples)));
    return medians;
}

double balance_of(const std::vector<double>& busy_seconds) {
    const bool any = std::ranges::any_of(busy_seconds, [](double seconds) { return seconds > 0; });
    return any ? layouts::imbalance(busy_seconds) : std::numeric_limits<double>::quiet_NaN();
}

double median_pass_seconds(const std::vector<RingRun>& rings, layouts::Pass pass) {
    std::vector<double> most(rings.front().of(pass).seconds.size());
    for (const auto& ring : rings) {
        const auto of_ring = slowest(ring.of(pass).seconds);
        for (std::size_t repeat = 0; repeat < most.size(); ++repeat)
            most[repeat] = std::max(most[repeat], of_ring[repeat]);
    }
    return median(std::move(most));
}

MemoryTrial trial_unless_full(const std::function<MemoryTrial()>& run) {
    try {
        return run();
    } catch (const NoMemory& error) {
        return {.why_not = error.what()};
    }
}

}  // namespace ringlab::experiments
