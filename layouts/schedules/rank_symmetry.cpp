#include "layouts/schedules/rank_symmetry.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// Whether the runs with index `number` of all ranks are ordered by rank, ascending or descending, either one after
/// another or interleaved, and none begins before `begin`, where the runs of lower index end. Sets `end` to the end of
/// these runs.
bool runs_are_in_rank_order(const Layout& layout, std::size_t number, std::int64_t begin, std::int64_t& end) {
    const auto run = [&](int rank) { return layout.shard(rank)[number]; };
    const auto like = run(0);
    auto least = like.first, most = like.first;
    bool rises = true, falls = true, apart = true;
    for (int rank = 1; rank < layout.ranks(); ++rank) {
        const auto before = run(rank - 1), now = run(rank);
        if (now.count != like.count || now.stride != like.stride) return false;
        rises &= before.first < now.first;
        falls &= before.first > now.first;
        apart &= before.last() < now.first || now.last() < before.first;
        least = std::min(least, now.first);
        most = std::max(most, now.first);
    }
    end = most + like.last() - like.first + 1;
    return least >= begin && (rises || falls) && (apart || most - least < like.stride);
}

}  // namespace

bool pairs_depend_on_rank_order(const Mask& mask, const Layout& layout) {
    const auto& rule = mask.segments().front();
    if (layout.largest_shard() * layout.ranks() != layout.tokens() || !mask.all_keys_valid() ||
        mask.segments().size() != 1 || rule.sink != 0 || !rule.earlier.empty() || rule.begin != Bound{0, 0})
        return false;
    if (rule.end == Bound{mask.tokens(), 0}) return true;
    if (rule.end != Bound{1, 1}) return false;
    const auto runs = layout.shard(0).size();
    for (int rank = 1; rank < layout.ranks(); ++rank)
        if (layout.shard(rank).size() != runs) return false;
    std::int64_t end = 0;
    for (std::size_t number = 0; number < runs; ++number)
        if (!runs_are_in_rank_order(layout, number, end, end)) return false;
    return true;
}

bool has_rank_symmetric_pairs(const Schedule& schedule) {
    const int other = schedule.ranks() - 1;
    return schedule.problem().queries.empty() && pairs_depend_on_rank_order(schedule.mask(), schedule.layout()) &&
           schedule.needs(0, 0) && schedule.needs(0, other) && schedule.needs(other, 0);
}

}  // namespace ringlab::layouts
