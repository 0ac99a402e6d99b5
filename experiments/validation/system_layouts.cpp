#include "experiments/validation/published.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <numeric>

namespace ringlab::experiments {
namespace {

using Shards = std::vector<std::vector<layouts::Run>>;

/// Cuts the `length` tokens from `first` on into 2 * ranks chunks, equal but for rounding, and gives chunks i and
/// 2 * ranks - 1 - i to the i-th of `ranks` ranks from `first_rank` on.
void add_zigzag(Shards& shards, std::int64_t first, std::int64_t length, int first_rank, int ranks) {
    for (int chunk = 0; chunk < 2 * ranks; ++chunk) {
        const auto begin = length * chunk / (2 * ranks), end = length * (chunk + 1) / (2 * ranks);
        const int rank = first_rank + std::min(chunk, 2 * ranks - 1 - chunk);
        if (begin < end) shards[static_cast<std::size_t>(rank)].push_back({first + begin, 1, end - begin});
    }
}

std::int64_t sum(const std::vector<std::int64_t>& documents) {
    return std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
}

}  // namespace

/// Every document is spread in zigzag order over groups of `group` ranks, as rings of Megatron and TransformerEngine
/// do; the ranks of a group divide its tokens in order, as Ulysses does.
layouts::Layout document_zigzag(const std::vector<std::int64_t>& documents, int ranks, int group) {
    require(group >= 1 && ranks % group == 0, "document-zigzag with groups of {} ranks, but {} ranks are no multiple",
            group, ranks);
    Shards groups(static_cast<std::size_t>(ranks / group));
    std::int64_t first = 0;
    for (const auto length : documents) {
        add_zigzag(groups, first, length, 0, ranks / group);
        first += length;
    }
    Shards shards;
    for (const auto& runs : groups) {
        std::int64_t tokens = 0;
        for (const auto& run : runs) tokens += run.count;
        for (int member = 0; member < group; ++member) {
            const auto begin = tokens * member / group, end = tokens * (member + 1) / group;
            auto& shard = shards.emplace_back();
            std::int64_t before = 0;
            for (const auto& run : runs) {
                const auto from = std::max(begin - before, std::int64_t{0}), to = std::min(end - before, run.count);
                if (from < to) shard.push_back(layouts::slice(run, from, to));
                before += run.count;
            }
        }
    }
    return {"document-zigzag", sum(documents), shards};
}

/// A document is spread in zigzag order over as few ranks as hold it with `tokens_per_rank` tokens each, rounded up to
/// a power of two, as Megatron's hybrid context parallelism does. The one with most pairs comes first; each goes to
/// the aligned group whose busiest rank has least pairs. Ranks own as many tokens as this gives them.
layouts::Layout document_groups(const std::vector<std::int64_t>& documents, int ranks, std::int64_t tokens_per_rank) {
    Shards shards(static_cast<std::size_t>(ranks));
    std::vector<std::int64_t> firsts(documents.size());
    std::exclusive_scan(documents.begin(), documents.end(), firsts.begin(), std::int64_t{0});
    std::vector<std::size_t> order(documents.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return documents[i]; });
    std::vector<double> pairs(static_cast<std::size_t>(ranks), 0);
    for (const auto i : order) {
        int size = 1;
        while (size < ranks && documents[i] > tokens_per_rank * size) size *= 2;
        size = std::min(size, ranks);
        const auto busiest = [&](int first) {
            return *std::max_element(pairs.begin() + first, pairs.begin() + std::min(first + size, ranks));
        };
        int best = 0;
        for (int first = size; first + size <= ranks; first += size)
            if (busiest(first) < busiest(best)) best = first;
        const auto length = static_cast<double>(documents[i]);
        for (int rank = best; rank < best + size; ++rank)
            pairs[static_cast<std::size_t>(rank)] += length * length / size;
        add_zigzag(shards, firsts[i], documents[i], best, size);
    }
    return {"groups", sum(documents), shards};
}

}  // namespace ringlab::experiments
