#include "layouts/layouts/layout.hpp"
#include "layouts/layouts/visible_pairs.hpp"

#include <algorithm>
#include <cstdlib>
#include <queue>
#include <set>

namespace ringlab::layouts {
namespace {

constexpr std::int64_t default_chunks = 16;

std::int64_t chunks_per_rank(const std::string& arguments) {
    return arguments.empty() ? default_chunks : parse_count(arguments, "the number of chunks of a rank", 1);
}

struct Chunk {
    std::int64_t index = 0;
    std::int64_t pairs = 0;  // visible pairs of its rows with all keys
};

struct RankLoad {
    std::int64_t pairs = 0;
    std::vector<Chunk> chunks;
};

/// Equal chunks of the sequence, each with the visible pairs of its rows.
std::vector<Chunk> chunks_with_pairs(const Mask& mask, std::int64_t count) {
    const Run everything{0, 1, mask.tokens()};
    const KeyCounter keys({&everything, 1});
    const auto size = mask.tokens() / count;
    std::vector<Chunk> chunks;
    for (std::int64_t i = 0; i < count; ++i) {
        const Run rows{i * size, 1, size};
        chunks.push_back({i, visible_pairs(mask, {&rows, 1}, keys)});
    }
    return chunks;
}

/// List scheduling: the chunk with most pairs first, each to the rank that has fewest so far and has room for another.
std::vector<RankLoad> assigned(std::vector<Chunk> chunks, std::int64_t ranks) {
    const auto each = chunks.size() / static_cast<std::size_t>(ranks);
    std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.pairs > b.pairs; });
    std::vector<RankLoad> loads(static_cast<std::size_t>(ranks));
    using Place = std::pair<std::int64_t, std::size_t>;  // pairs so far, rank
    std::priority_queue<Place, std::vector<Place>, std::greater<>> open;
    for (std::size_t rank = 0; rank < loads.size(); ++rank) open.push({0, rank});
    for (const auto& chunk : chunks) {
        const auto rank = open.top().second;
        open.pop();
        auto& load = loads[rank];
        load.pairs += chunk.pairs;
        load.chunks.push_back(chunk);
        if (load.chunks.size() < each) open.push({load.pairs, rank});
    }
    return loads;
}

bool is_lighter(const Chunk& a, const Chunk& b) { return a.pairs < b.pairs; }

/// Swaps the chunk of `more` and the chunk of `less` that bring the pairs of the two closest together. Returns false,
/// and swaps nothing, if no swap brings them closer.
bool swap_best(RankLoad& more, RankLoad& less) {
    const auto gap = more.pairs - less.pairs;
    std::sort(less.chunks.begin(), less.chunks.end(), is_lighter);
    Chunk *given = nullptr, *taken = nullptr;
    std::int64_t left = gap;
    for (auto& chunk : more.chunks) {
        // Tries the two chunks of `less` next to the one that would make both equal.
        const Chunk wanted{0, chunk.pairs - gap / 2};
        const auto behind = std::lower_bound(less.chunks.begin(), less.chunks.end(), wanted, is_lighter);
        const auto from = behind == less.chunks.begin() ? behind : std::prev(behind);
        for (auto it = from; it != less.chunks.end() && it <= behind; ++it)
            if (const auto after = std::abs(gap - 2 * (chunk.pairs - it->pairs)); after < left) {
                left = after;
                given = &chunk;
                taken = &*it;
            }
    }
    if (!given) return false;
    const auto moved = given->pairs - taken->pairs;
    more.pairs -= moved;
    less.pairs += moved;
    std::swap(*given, *taken);
    return true;
}

/// Swaps chunks between the rank with most pairs and one of those with fewest, as long as a swap brings the two closer.
void balance_by_swaps(std::vector<RankLoad>& loads) {
    constexpr std::size_t swaps_per_rank = 8, most_partners = 8;
    std::set<std::pair<std::int64_t, std::size_t>> by_pairs;
    for (std::size_t rank = 0; rank < loads.size(); ++rank) by_pairs.insert({loads[rank].pairs, rank});
    const auto swap_of_busiest = [&] {
        const auto busiest = std::prev(by_pairs.end())->second;
        std::size_t tried = 0;
        for (auto it = by_pairs.begin(); it->second != busiest && tried < most_partners; ++it, ++tried) {
            const auto partner = it->second;
            const auto before = std::pair{loads[busiest].pairs, loads[partner].pairs};
            if (!swap_best(loads[busiest], loads[partner])) continue;
            by_pairs.erase({before.first, busiest});
            by_pairs.erase({before.second, partner});
            by_pairs.insert({loads[busiest].pairs, busiest});
            by_pairs.insert({loads[partner].pairs, partner});
            return true;
        }
        return false;
    };
    for (std::size_t i = 0; i < swaps_per_rank * loads.size() && swap_of_busiest(); ++i) {
    }
}

/// Cuts the sequence into equal chunks and gives each rank the same number of them, chosen such that the rows of all
/// ranks have about the same number of visible pairs under the given mask: heaviest chunk first (list scheduling,
/// Graham 1969), then by swaps.
Layout balanced(const std::string& arguments, const Mask& mask, int ranks) {
    const auto each = chunks_per_rank(arguments);
    auto loads = assigned(chunks_with_pairs(mask, each * ranks), ranks);
    balance_by_swaps(loads);
    const auto size = mask.tokens() / (each * ranks);
    std::vector<std::vector<Run>> shards;
    for (auto& load : loads) {
        std::sort(load.chunks.begin(), load.chunks.end(),
                  [](const Chunk& a, const Chunk& b) { return a.index < b.index; });
        auto& runs = shards.emplace_back();
        for (const auto& chunk : load.chunks) append_run(runs, {chunk.index * size, 1, size});
    }
    return {arguments.empty() ? "balanced" : "balanced:" + arguments, mask.tokens(), shards};
}

std::int64_t granularity_of_balanced(const std::string& arguments, int ranks) {
    const auto each = chunks_per_rank(arguments);
    constexpr std::int64_t most_chunks = std::int64_t{1} << 24;
    require(each <= most_chunks / ranks, "{} chunks for each of {} ranks are too many; at most {} in all", each, ranks,
            most_chunks);
    return each * ranks;
}

const LayoutRegistration registered_balanced(
    {"balanced[:CHUNKS]",
     "each rank owns CHUNKS chunks (16), chosen so that the rows of all ranks have about as many visible pairs under "
     "the mask",
     {.make_for = balanced, .granularity = granularity_of_balanced},
     {"balanced:3"}});

}  // namespace
}  // namespace ringlab::layouts
