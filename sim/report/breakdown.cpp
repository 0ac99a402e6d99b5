#include "sim/report/breakdown.hpp"

#include "sim/play/simulation.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::sim {
namespace {

Picoseconds tail_of(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                    const Prediction& played, const std::shared_ptr<TileModel>& tiles, int rank) {
    std::vector<double> clocks(played.ranks.size(), played.clock);
    CostModel cost(schedule, machine, options, std::move(clocks), tiles);
    Picoseconds tail = 0;
    auto ops = schedule.ops(rank % schedule.ranks());
    while (const auto* op = ops.next()) {
        if (op->kind != layouts::OpKind::attend) continue;
        const auto price = cost.compute(*op, rank);
        tail += price - cost.time_of_tiles_alone(*op, rank, price);
    }
    return tail;
}

Picoseconds imbalance_of(const std::vector<RankTotals>& ranks) {
    Picoseconds most = 0, sum = 0;
    for (const auto& rank : ranks) {
        most = std::max(most, rank.compute);
        sum = layouts::checked_sum(sum, rank.compute);
    }
    return most - sum / static_cast<Picoseconds>(ranks.size());
}

}  // namespace

const char* to_string(Cause cause) {
    switch (cause) {
        case Cause::attends: return "attends";
        case Cause::ends: return "begin and end";
        case Cause::issue: return "issue";
        case Cause::links: return "links";
        case Cause::memory: return "memory";
    }
    return "?";
}

Picoseconds Breakdown::shared() const { return pass - std::accumulate(saved.begin(), saved.end(), Picoseconds{0}); }

Breakdown& Breakdown::operator+=(const Breakdown& other) {
    pass += other.pass;
    for (std::size_t i = 0; i < saved.size(); ++i) saved[i] += other.saved[i];
    last.computing += other.last.computing;
    last.transferring += other.last.transferring;
    last.waiting += other.last.waiting;
    tail += other.tail;
    imbalance += other.imbalance;
    return *this;
}

Breakdown break_down(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                     const Prediction& played) {
    const auto tiles = make_tiles(schedule, machine, options);
    auto other = options;
    other.trace = false;
    Breakdown found{.pass = played.makespan};
    for (std::size_t i = 0; i < causes.size(); ++i) {
        other.free = causes[i];
        found.saved[i] = found.pass - simulate(schedule, machine, other, tiles).makespan;
    }
    const auto last =
        static_cast<int>(std::ranges::max_element(played.ranks, {}, &RankTotals::end) - played.ranks.begin());
    if (!played.timeline.spans.empty()) {
        found.last = layouts::time_of_rank(played.timeline, last);
    } else {
        other.free.reset();
        other.trace = true;
        found.last = layouts::time_of_rank(simulate(schedule, machine, other, tiles).timeline, last);
    }
    found.tail = tail_of(schedule, machine, options, played, tiles, last);
    found.imbalance = imbalance_of(played.ranks);
    return found;
}

}  // namespace ringlab::sim
