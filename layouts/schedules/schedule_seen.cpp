#include "layouts/schedules/schedule.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// The keys of a shard at the given positions (sorted, disjoint), as ranges in the shard's local order. Ranges with
/// fewer than `gap` keys between them are merged.
std::vector<Interval> ranges_at(std::span<const Interval> positions, std::span<const Run> shard, std::int64_t gap) {
    std::vector<Interval> ranges;
    std::int64_t before = 0;
    for (const auto& run : shard) {
        const auto index = [&](std::int64_t position) {
            const auto rounded_up = (position - run.first + run.stride - 1) / run.stride;
            return position <= run.first ? 0 : std::min(rounded_up, run.count);
        };
        const auto first = std::ranges::lower_bound(positions, run.first + 1, {}, &Interval::end);
        for (auto at = first; at != positions.end() && at->begin <= run.last(); ++at) {
            const Interval range{before + index(at->begin), before + index(at->end)};
            if (range.size() > 0) ranges.push_back(range);
        }
        before += run.count;
    }
    std::vector<Interval> joined;
    for (const auto& range : ranges)  // in order, as runs of a shard and positions are
        if (!joined.empty() && range.begin - joined.back().end < gap)
            joined.back().end = range.end;
        else
            joined.push_back(range);
    return joined;
}

/// Every rank receives only those keys of each other rank's block that its rows see, directly from their owner, and
/// sends their gradients back to the owner, which adds them in a fixed order. With packed documents and windows most of
/// the traffic of a ring disappears.
class SeenSchedule : public Schedule {
public:
    SeenSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                 std::int64_t gap)
        : Schedule(problem, mask, layout, options) {
        require(ranks() <= most_ranks,
                "schedule seen stores what each of {} ranks sees of each other; at most {} ranks are supported",
                ranks(), most_ranks);
        seen_.resize(static_cast<std::size_t>(ranks() * ranks()));
        set_channels({"K,V"}, {"dK,dV"});
        std::int64_t most = 0;
        first_gathered_ = blocks();
        for (int rank = 0; rank < ranks(); ++rank) {
            const Run all{0, 1, problem.tokens};
            const auto positions = seen_keys(mask, block(row_block(rank)), {&all, 1}, 1);
            std::vector<Run> together;
            std::int64_t begin = 0;
            for (int distance = 1; distance < ranks(); ++distance) {
                const int owner = behind(rank, distance);
                auto& seen = seen_[at(rank, owner)];
                seen.begin = begin;
                seen.ranges = ranges_at(positions, layout.shard(owner), gap);
                // Where rows lie far apart, seen_keys() may include keys that no row sees.
                if (!seen.ranges.empty() && !needs(rank, owner)) seen.ranges.clear();
                for (const auto& range : seen.ranges) {
                    const auto part = runs({owner, {}, range});
                    together.insert(together.end(), part.begin(), part.end());
                    begin += range.size();
                }
            }
            add_block(std::move(together));
            most = std::max(most, begin);
        }
        const int heads = kv_heads().count();
        if (partials()) add_slots(Pool::output, 1, query_heads().count(), largest_rows());
        if (most == 0) return;
        add_slots(Pool::kv, 1, heads, most);
        if (options.pass == Pass::forward) return;
        add_slots(Pool::dkv, 1, heads, most, options.gradient_dtype);
        add_slots(Pool::dkv, 2, heads, layout.largest_shard(), options.gradient_dtype);
    }

    Ops ops(int rank) const override {
        const bool backward = options().pass == Pass::backward;
        const auto rows = rows_of(rank, query_heads());
        std::vector<OpIndex> arrived(static_cast<std::size_t>(ranks()), -1);  // by distance: its last message
        for (int distance = 1; distance < ranks(); ++distance) {
            const int to = ahead(rank, distance), from = behind(rank, distance);
            for (const auto& range : seen(to, rank).ranges)
                co_yield transfer(OpKind::send, kv_channel, Pool::kv, distance, to, own(rank, range), 0);
            auto begin = seen(rank, from).begin;
            for (const auto& range : seen(rank, from).ranges) {
                arrived[static_cast<std::size_t>(distance)] =
                    co_yield transfer(OpKind::receive, kv_channel, Pool::kv, distance, from,
                                      gathered(rank, {begin, begin + range.size()}), gathered_slot);
                begin += range.size();
            }
        }

        int last = ranks() - 1;
        while (last >= 0 && !meets(rank, last)) --last;
        bool begun = false;
        std::array<OpIndex, 2> added{-1, -1};  // by parity of the distance: the last operation that read coming_slot()
        std::vector<Op> waiting;  // additions, delayed by one attend, which hides the transfers that they wait for
        for (int distance = 0; distance < ranks(); ++distance) {
            const int from = behind(rank, distance), to = ahead(rank, distance);
            if (meets(rank, distance)) {
                auto op = distance == 0 ? attend(0, rows, part(rank, kv_heads()), 0, 0)
                                        : attend(distance, rows, gathered(rank, section(rank, from)), 0, gathered_slot);
                op.slot(Pool::dkv) = distance == 0 ? 0 : gathered_slot;
                op.begins |= !begun;
                op.ends |= distance == last;
                op.run_after(arrived[static_cast<std::size_t>(distance)]);
                const auto attended = co_yield op;
                if (partials()) {
                    op = merge(distance, rows, 0, 1);
                    op.begins = !begun;
                    co_yield op;
                }
                begun = true;
                auto begin = seen(rank, from).begin;
                for (const auto& range : seen(rank, from).ranges) {
                    if (!backward) break;
                    op = transfer(OpKind::send, dkv_channel, Pool::dkv, distance, from,
                                  gathered(rank, {begin, begin + range.size()}), gathered_slot);
                    op.run_after(attended);
                    co_yield op;
                    begin += range.size();
                }
            }
            for (const auto& sum : waiting) added[static_cast<std::size_t>(sum.step % 2)] = co_yield sum;
            waiting.clear();
            if (!backward || distance == 0) continue;
            for (const auto& range : seen(to, rank).ranges) {
                auto op = transfer(OpKind::receive, dkv_channel, Pool::dkv, distance, to, own(rank, range),
                                   coming_slot(distance));
                op.run_after(added[static_cast<std::size_t>(distance % 2)]);
                const auto home = co_yield op;
                op = add(Pool::dkv, distance, own(rank, range), 0, coming_slot(distance));
                op.run_after(home);
                waiting.push_back(op);
            }
        }
        for (const auto& sum : waiting) co_yield sum;
    }

private:
    enum Channel : int { kv_channel, dkv_channel };

    /// What one rank sees of another's block: ranges of that block, and where they begin, one after another, in the
    /// block that gathers all that the rank sees of others.
    struct Seen {
        std::vector<Interval> ranges;
        std::int64_t begin = 0;
    };

    static constexpr int most_ranks = 2048;
    static constexpr int gathered_slot = 1;
    static int coming_slot(int distance) { return 2 + distance % 2; }

    std::size_t at(int rank, int owner) const { return static_cast<std::size_t>(rank * ranks() + owner); }
    const Seen& seen(int rank, int owner) const { return seen_[at(rank, owner)]; }
    int ahead(int rank, int distance) const { return (rank + distance) % ranks(); }
    int behind(int rank, int distance) const { return (rank - distance + ranks()) % ranks(); }

    /// Whether the rank's rows see keys of the rank `distance` behind.
    bool meets(int rank, int distance) const {
        return distance == 0 ? needs(rank, rank) : !seen(rank, behind(rank, distance)).ranges.empty();
    }

    Part own(int rank, Interval range) const { return {rank, kv_heads(), range}; }
    Part gathered(int rank, Interval range) const { return {first_gathered_ + rank, kv_heads(), range}; }
    Interval section(int rank, int owner) const {
        Interval all{seen(rank, owner).begin, seen(rank, owner).begin};
        for (const auto& range : seen(rank, owner).ranges) all.end += range.size();
        return all;
    }

    int first_gathered_ = 0;  // index of the block that rank 0 gathers; those of other ranks follow
    std::vector<Seen> seen_;  // by rank, then owner
};

const ScheduleRegistration registered_seen(
    "seen", "seen[:GAP]",
    "every rank receives only the keys that its rows see, in ranges with at least GAP (64) other keys between them",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        const auto gap = arguments.empty() ? 64 : parse_count(arguments, "the least gap between ranges", 1);
        return std::make_unique<SeenSchedule>(problem, mask, layout, options, gap);
    });

}  // namespace
}  // namespace ringlab::layouts
