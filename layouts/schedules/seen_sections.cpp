// What each rank holds of others' keys, and where: see SeenSchedule.

#include "layouts/schedules/seen_schedule.hpp"

#include <limits>

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
        for (auto at = first; at != positions.end() && at->begin <= run.last(); ++at)
            ranges.push_back({before + index(at->begin), before + index(at->end)});
        before += run.count;
    }
    return merged(std::move(ranges), gap);
}

}  // namespace

std::vector<SeenSchedule::Section> SeenSchedule::find_sections(std::int64_t gap) const {
    std::vector<Section> sections(static_cast<std::size_t>(ranks() * ranks()));
    for (int rank = 0; rank < ranks(); ++rank) {
        const Run everything{0, 1, problem().tokens};
        const auto positions = seen_keys(mask(), block(row_block(rank)), {&everything, 1}, 1);
        for (int section = 1; section < ranks(); ++section) {
            auto& keys = sections[index_of(rank, section)];
            keys.owner = owner(rank, section);
            keys.ranges = ranges_at(positions, layout().shard(keys.owner), gap);
            // Where rows lie far apart, seen_keys() may include keys that no row sees.
            keys.seen = !keys.ranges.empty() && needs(rank, keys.owner);
            if (!keys.seen) keys.ranges.clear();
        }
    }
    for (int rank = 0; rank < ranks() && ranks_per_host_ > 1; ++rank)
        for (int section = ranks_per_host_; section < ranks(); section += ranks_per_host_) {
            auto& ranges = sections[index_of(rank, section)].ranges;
            for (int other = section + 1; other < section + ranks_per_host_; ++other) {
                const auto& more = sections[index_of(consumer(rank, other), other)].ranges;
                ranges.insert(ranges.end(), more.begin(), more.end());
            }
            ranges = merged(std::move(ranges), gap);
        }
    return sections;
}

std::int64_t SeenSchedule::add_blocks(std::vector<Section>& sections) {
    std::int64_t most = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
        std::vector<Run> together;
        std::int64_t begin = 0;
        for (int distance = 0; distance < hosts(); ++distance) {
            struct Held {
                std::vector<Run> runs;
                std::int64_t tokens, *begin;
            };
            std::vector<Held> host;
            for (int section = first_section(distance); section < end_section(distance); ++section) {
                auto& keys = sections[index_of(rank, section)];
                keys.begins.resize(keys.ranges.size());
                for (std::size_t i = 0; i < keys.ranges.size(); ++i)
                    host.push_back({runs({keys.owner, {}, keys.ranges[i]}), keys.ranges[i].size(), &keys.begins[i]});
            }
            std::ranges::sort(host, {}, [](const Held& held) { return held.runs.front().first; });
            for (auto& held : host) {
                together.insert(together.end(), held.runs.begin(), held.runs.end());
                *held.begin = begin;
                begin += held.tokens;
            }
        }
        add_block(std::move(together));
        most = std::max(most, begin);
    }
    return most;
}

std::vector<Part> SeenSchedule::parts(int first_block, const std::vector<Section>& sections, int rank,
                                      int section) const {
    const auto& keys = sections[index_of(rank, section)];
    std::vector<Part> parts;
    for (std::size_t i = 0; i < keys.ranges.size(); ++i)
        parts.push_back({first_block + rank, kv_heads(), {keys.begins[i], keys.begins[i] + keys.ranges[i].size()}});
    return parts;
}

Part SeenSchedule::together(int rank, int first, int end) const {
    Interval tokens{std::numeric_limits<std::int64_t>::max(), 0};
    for (int section = first; section < end; ++section)
        for (const auto& part : parts(first_gathered_, gathered_, rank, section))
            tokens = {std::min(tokens.begin, part.tokens.begin), std::max(tokens.end, part.tokens.end)};
    return {first_gathered_ + rank, kv_heads(), tokens};
}

Part SeenSchedule::relayed(int rank, int section, Interval range) const {
    const auto& keys = gathered_[index_of(rank, relay(section))];
    std::size_t i = 0;
    while (!(keys.ranges[i].begin <= range.begin && range.end <= keys.ranges[i].end)) ++i;
    const auto begin = keys.begins[i] + range.begin - keys.ranges[i].begin;
    return {first_gathered_ + rank, kv_heads(), {begin, begin + range.size()}};
}

}  // namespace ringlab::layouts
