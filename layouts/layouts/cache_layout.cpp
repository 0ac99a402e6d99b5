#include "layouts/layouts/layout.hpp"
#include "layouts/masks/mask.hpp"

#include <numeric>

namespace ringlab::layouts {

std::int64_t cache_begin(std::span<const std::int64_t> lengths, std::int64_t appended, std::size_t sequence) {
    const auto before = lengths.first(sequence);
    return std::accumulate(before.begin(), before.end(), static_cast<std::int64_t>(sequence) * appended);
}

Layout cache_layout(const std::string& spec, std::span<const std::int64_t> lengths, std::int64_t appended, int ranks) {
    require(!lengths.empty() && appended >= 0, "a cache of {} sequences with room for {} more tokens each",
            lengths.size(), appended);
    const auto granularity = layout_granularity(spec, ranks);
    std::vector<std::vector<Run>> shards(static_cast<std::size_t>(ranks));
    for (std::size_t sequence = 0; sequence < lengths.size(); ++sequence) {
        const auto length = lengths[sequence], room = length + appended;
        require(length > 0, "sequence {} of a cache has {} tokens; it must have at least 1", sequence, length);
        const auto padded = (length + granularity - 1) / granularity * granularity;
        const auto prefill = make_layout(spec, make_mask("causal", padded), ranks);
        const Interval there{0, std::min(padded, room)};
        const auto begin = cache_begin(lengths, appended, sequence);
        for (int rank = 0; rank < ranks; ++rank) {
            auto& shard = shards[static_cast<std::size_t>(rank)];
            for (auto run : intersect_runs(prefill.shard(rank), {&there, 1})) {
                run.first += begin;
                shard.push_back(run);
            }
            if (const auto first = padded + rank; first < room)
                shard.push_back({begin + first, ranks, (room - first + ranks - 1) / ranks});
        }
    }
    return {"cache of " + spec, cache_begin(lengths, appended, lengths.size()), shards};
}

}  // namespace ringlab::layouts
