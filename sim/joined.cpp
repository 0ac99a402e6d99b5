#include "sim/joined.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using Joint = TileModel::Joint;

double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

/// One launch as those that wait for nothing and one as the rest. What the two take is that of the first and of the
/// last attend, since the last one has waited for all that the launch waits for.
void price_apart(std::span<const Joint> attends, TileModel& tiles, double launch_seconds, std::span<double> seconds) {
    for (const bool waits : {false, true}) {
        std::vector<Joint> part;
        std::vector<std::size_t> places;
        for (std::size_t i = 0; i < attends.size(); ++i)
            if (attends[i].waits == waits) {
                part.push_back(attends[i]);
                places.push_back(i);
            }
        if (part.empty()) continue;
        const auto each = tiles.joined(part);
        seconds[waits ? places.back() : places.front()] += launch_seconds + sum(each);
    }
}

}  // namespace

bool joins_attends(const Schedule& schedule) {
    int looked_at = 0;
    auto ops = schedule.ops(0);
    while (const auto* op = ops.next()) {
        if (op->kind != OpKind::attend) continue;
        if (op->fused) return true;
        if (++looked_at == 2) return false;
    }
    return false;
}

std::vector<double> launches_of(const Schedule& schedule, int rank, bool apart, TileModel& tiles,
                                const AttentionCost& cost) {
    std::vector<std::vector<Joint>> launches;
    auto ops = schedule.ops(rank);
    while (const auto* op = ops.next()) {
        if (op->kind != OpKind::attend) continue;
        if (!op->fused || launches.empty()) launches.emplace_back();
        launches.back().push_back({op->rows(), op->part, op->ends, !op->after().empty()});
    }
    std::vector<double> seconds;
    for (const auto& launch : launches) {
        const auto first = seconds.size();
        seconds.resize(first + launch.size());
        const auto places = std::span(seconds).subspan(first);
        if (apart && launch.size() > 1) {
            price_apart(launch, tiles, cost.launch_seconds, places);
            continue;
        }
        const auto each = tiles.joined(launch);
        std::copy(each.begin(), each.end(), places.begin());
        places.front() += cost.launch_seconds;
    }
    return seconds;
}

std::vector<double> TileModel::joined(std::span<const Joint> attends) {
    const bool by_keys = cost_.item == Item::key_tile;
    std::vector<double> seconds;
    std::vector<Items> parts;  // backward: by attend; forward: by group of heads, whose items go through all blocks
    int heads = -1;            // the group's first
    double done = 0;
    const bool ends = std::any_of(attends.begin(), attends.end(), [](const Joint& one) { return one.ends; });
    const bool begins = !attends.front().waits;
    for (const auto& attend : attends) {
        const auto row_runs = runs(attend.rows, row_storage_), key_runs = runs(attend.keys, key_storage_);
        auto items = items_of(row_runs, key_runs, attend.rows, attend.keys);
        double longest = 0;
        for (const auto& tiles : items.tiles)
            longest = std::max(longest, item_seconds(tiles, {true, false}, items.in_turn, 1));
        const bool new_group = by_keys || heads != attend.rows.heads.begin;
        heads = attend.rows.heads.begin;
        if (new_group) {
            parts.push_back(std::move(items));
        } else {
            auto& all = parts.back().tiles;
            for (std::size_t i = 0; i < all.size(); ++i) {
                all[i].full += items.tiles[i].full;
                all[i].partial += items.tiles[i].partial;
            }
        }
        // What the launch has done when this one ends.
        const bool whole = by_keys || attend.ends || &attend == &attends.back();
        const auto now =
            whole ? launch(parts, {begins, ends}).seconds : done + longest - (new_group ? 0 : cost_.item_seconds);
        seconds.push_back(std::max(0.0, now - done));
        done = std::max(done, now);
    }
    return seconds;
}

}  // namespace ringlab::sim
