#include "layouts/batches/ring_search.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

namespace ringlab::layouts {
namespace {

/// The rings, the largest first, that result from these by merging two or splitting one.
std::set<std::vector<int>> neighbours_of(const std::vector<int>& rings, const std::vector<int>& sizes) {
    std::set<std::vector<int>> found;
    const auto is_size = [&](int size) { return std::ranges::binary_search(sizes, size); };
    const auto add = [&](std::vector<int> changed) {
        std::ranges::sort(changed, std::greater{});
        found.insert(std::move(changed));
    };
    for (std::size_t i = 0; i < rings.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            if (!is_size(rings[i] + rings[j])) continue;
            auto merged = rings;
            merged[j] += merged[i];
            merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(i));
            add(std::move(merged));
        }
        for (const auto part : sizes) {
            if (2 * part > rings[i] || !is_size(rings[i] - part)) continue;
            auto split = rings;
            split[i] -= part;
            split.push_back(part);
            add(std::move(split));
        }
    }
    return found;
}

/// Whether the slowest ring takes less time or, if it takes the same, all ranks together do.
bool is_better(const PricedAssignment& a, const std::optional<PricedAssignment>& b) {
    return !b || std::pair(a.slowest(), a.mean()) < std::pair(b->slowest(), b->mean());
}

}  // namespace

double PricedAssignment::slowest() const { return seconds.empty() ? 0 : *std::ranges::max_element(seconds); }

double PricedAssignment::mean() const {
    const auto sum = std::inner_product(seconds.begin(), seconds.end(), assignment.rings.begin(), 0.0);
    return sum / std::max(1, std::accumulate(assignment.rings.begin(), assignment.rings.end(), 0));
}

PricedAssignment priced(Assignment assignment, const RingPrice& price) {
    PricedAssignment found{std::move(assignment), {}};
    for (std::size_t ring = 0; ring < found.assignment.rings.size(); ++ring)
        found.seconds.push_back(price(found.assignment.rings[ring], found.assignment.documents[ring]));
    return found;
}

std::optional<PricedAssignment> exchange_documents(std::span<const BatchDocument> documents, const RingSet& rings,
                                                   const RingPrice& price) {
    constexpr int rounds = 3;
    std::optional<PricedAssignment> best;
    auto set = rings;
    for (int round = 0; round < rounds; ++round) {
        auto assignment = assign_documents(documents, set);
        if (!assignment || (best && *assignment == best->assignment)) break;
        auto found = priced(std::move(*assignment), price);
        set.slowdowns.assign(set.ranks.size(), 1);
        for (std::size_t ring = 0; ring < set.ranks.size(); ++ring) {
            double work = 0;
            for (const auto document : found.assignment.documents[ring]) work += documents[document].seconds;
            if (work > 0) set.slowdowns[ring] = found.seconds[ring] * set.ranks[ring] / work;
        }
        if (is_better(found, best)) best = std::move(found);
    }
    return best;
}

std::vector<int> nested_ring_sizes(int ranks, int ranks_per_host) {
    const auto host = std::min(ranks, ranks_per_host);
    std::set<int> sizes{ranks};
    for (int size = 1; size <= host && host % size == 0; size *= 2) sizes.insert(size);
    for (int size = host; size <= ranks; size *= 2) sizes.insert(size);
    return {sizes.begin(), sizes.end()};
}

std::optional<PricedAssignment> choose_rings(std::span<const BatchDocument> documents, const RingChoice& choice,
                                             const RingPrice& price) {
    require(std::ranges::is_sorted(choice.sizes), "sizes of rings are not ascending");
    std::optional<PricedAssignment> best;
    std::set<std::vector<int>> seen;
    const auto attempt = [&](const std::vector<int>& rings) {
        if (!seen.insert(rings).second) return;
        auto found = exchange_documents(documents, {rings, choice.most_tokens}, price);
        if (found && is_better(*found, best)) best = std::move(found);
    };
    for (const auto size : choice.sizes)
        if (choice.ranks % size == 0) attempt(std::vector<int>(static_cast<std::size_t>(choice.ranks / size), size));
    while (best) {
        const auto before = best->assignment.rings;
        for (const auto& rings : neighbours_of(before, choice.sizes)) attempt(rings);
        if (best->assignment.rings == before) break;
    }
    return best;
}

}  // namespace ringlab::layouts
