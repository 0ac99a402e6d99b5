#include "layouts/layouts/layout.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::layouts {
namespace {

/// Whether the runs, all inside [0, tokens), hold no position twice. Contiguous runs are compared by their ends and
/// runs of one common stride by residue, which covers every closed-form layout without a table of all tokens.
bool runs_are_disjoint(std::vector<Run> runs, std::int64_t tokens) {
    const auto stride = runs.empty() ? 1 : runs.front().stride;
    const bool one_stride = std::all_of(runs.begin(), runs.end(), [&](const Run& r) { return r.stride == stride; });
    if (one_stride) {
        std::sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) {
            return std::pair(a.first % stride, a.first) < std::pair(b.first % stride, b.first);
        });
        return std::adjacent_find(runs.begin(), runs.end(), [&](const Run& a, const Run& b) {
                   return a.first % stride == b.first % stride && a.last() >= b.first;
               }) == runs.end();
    }
    std::vector<bool> owned(static_cast<std::size_t>(tokens));
    for (const auto& run : runs)
        for (std::int64_t i = 0; i < run.count; ++i) {
            if (owned[static_cast<std::size_t>(run.at(i))]) return false;
            owned[static_cast<std::size_t>(run.at(i))] = true;
        }
    return true;
}

}  // namespace

void append_run(std::vector<Run>& runs, const Run& run) {
    if (!runs.empty() && runs.back().stride == 1 && runs.back().last() + 1 == run.first)
        runs.back().count += run.count;
    else
        runs.push_back(run);
}

std::vector<Run> intersect_runs(std::span<const Run> runs, std::span<const Interval> intervals) {
    std::vector<Run> met;
    for (const auto& run : runs) {
        for (const auto& interval : intervals) {
            const auto begin = run.below(interval.begin), end = run.below(interval.end);
            if (begin < end) met.push_back(slice(run, begin, end));
        }
    }
    return met;
}

Layout::Layout(std::string name, std::int64_t tokens, const std::vector<std::vector<Run>>& shards)
    : name_(std::move(name)), tokens_(tokens) {
    require(!shards.empty(), "layout {} has no ranks; it needs at least 1", name_);
    begin_.push_back(0);
    for (const auto& shard : shards) {
        for (const auto& run : shard) {
            require(run.count > 0 && run.stride > 0 && run.first >= 0 && run.last() < tokens_,
                    "layout {}: run of {} positions from {} by {} does not lie inside the {} tokens", name_, run.count,
                    run.first, run.stride, tokens_);
            runs_.push_back(run);
        }
        begin_.push_back(runs_.size());
        shard_tokens_.push_back(count_of(shard));
    }
    const auto owned = std::accumulate(shard_tokens_.begin(), shard_tokens_.end(), std::int64_t{0});
    require(owned == tokens_ && runs_are_disjoint(runs_, tokens_),
            "layout {} owns {} positions of {} tokens; it must own each exactly once", name_, owned, tokens_);
}

std::int64_t Layout::largest_shard() const { return *std::max_element(shard_tokens_.begin(), shard_tokens_.end()); }

Layout::Owner Layout::owner_of(std::int64_t position) const {
    for (int rank = 0; rank < ranks(); ++rank) {
        std::int64_t index = 0;
        for (const auto& run : shard(rank)) {
            const auto steps = position - run.first;
            if (steps >= 0 && position <= run.last() && steps % run.stride == 0)
                return {rank, index + steps / run.stride};
            index += run.count;
        }
    }
    fail("position {} lies outside the {} tokens of layout {}", position, tokens_, name_);
}

std::int64_t count_of(std::span<const Run> runs) {
    return std::accumulate(runs.begin(), runs.end(), std::int64_t{0},
                           [](std::int64_t count, const Run& run) { return count + run.count; });
}

std::vector<std::int64_t> positions_of(std::span<const Run> runs) {
    std::vector<std::int64_t> positions;
    positions.reserve(static_cast<std::size_t>(count_of(runs)));
    for (const auto& run : runs)
        for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(run.at(i));
    return positions;
}

std::vector<Run> runs_of(std::span<const std::int64_t> positions) {
    std::vector<Run> runs;
    for (const auto position : positions) {
        if (!runs.empty()) {
            auto& run = runs.back();
            const auto step = position - run.last();
            if (step > 0 && (run.count == 1 || step == run.stride)) {
                run.stride = step;
                ++run.count;
                continue;
            }
        }
        runs.push_back({position, 1, 1});
    }
    return runs;
}

Registry<LayoutFactory>& layouts() {
    static Registry<LayoutFactory> registry("layout");
    return registry;
}

std::int64_t layout_granularity(const std::string& spec, int ranks) {
    constexpr int most_ranks = 1 << 20;
    require(ranks > 0 && ranks <= most_ranks, "ranks is {}; a layout spreads tokens over 1 to {} ranks", ranks,
            most_ranks);
    const auto [factory, arguments] = layouts().find_spec(spec);
    return factory.granularity ? factory.granularity(arguments, ranks) : ranks;
}

namespace {

/// `mask` may be null, if the layout does not depend on it.
Layout make_layout_of(const std::string& spec, std::int64_t tokens, const Mask* mask, int ranks) {
    const auto granularity = layout_granularity(spec, ranks);
    require(tokens > 0 && tokens <= std::int64_t{1} << 31, "tokens is {}; a layout spreads 1 to 2^31 tokens", tokens);
    require(tokens % granularity == 0,
            "{} tokens do not divide into layout {} over {} ranks: they must be a multiple of {}; pad them to {}",
            tokens, spec, ranks, granularity, (tokens + granularity - 1) / granularity * granularity);
    const auto [factory, arguments] = layouts().find_spec(spec);
    require(factory.make || mask,
            "layout {} follows the mask, and none is given; give that of the attention, as causal", spec);
    auto layout = factory.make ? factory.make(arguments, tokens, ranks) : factory.make_for(arguments, *mask, ranks);
    require(layout.ranks() == ranks, "layout {} has {} ranks, asked for {}", spec, layout.ranks(), ranks);
    return layout;
}

}  // namespace

Layout make_layout(const std::string& spec, const Mask& mask, int ranks) {
    return make_layout_of(spec, mask.tokens(), &mask, ranks);
}

Layout make_layout(const std::string& spec, std::int64_t tokens, int ranks) {
    return make_layout_of(spec, tokens, nullptr, ranks);
}

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
