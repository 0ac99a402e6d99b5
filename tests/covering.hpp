#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <vector>

namespace ringlab::tests {

/// Combinations of values of some features, as indices: few of them, in which each pair of values of two features
/// occurs. `counts` has the number of values of each feature. Faults that take three values to show may be missed; a
/// product of all values finds them, and takes so long on a GPU that nobody runs it.
template <std::size_t features>
std::vector<std::array<std::size_t, features>> pairwise(const std::array<std::size_t, features>& counts) {
    using Row = std::array<std::size_t, features>;
    using Pair = std::array<std::size_t, 4>;  // a feature and its value, a later feature and its value
    std::set<Pair> missing;
    for (std::size_t i = 0; i < features; ++i)
        for (std::size_t j = i + 1; j < features; ++j)
            for (std::size_t a = 0; a < counts[i]; ++a)
                for (std::size_t b = 0; b < counts[j]; ++b) missing.insert({i, a, j, b});
    std::vector<Row> rows;
    while (!missing.empty()) {
        // The first pair that is missing; of the other features, one after the other, the value that adds most pairs.
        const auto [first, first_value, second, second_value] = *missing.begin();
        Row row{};
        row[first] = first_value;
        row[second] = second_value;
        std::vector<std::size_t> chosen{first, second};
        const auto pair = [&](std::size_t i, std::size_t j) {
            return i < j ? Pair{i, row[i], j, row[j]} : Pair{j, row[j], i, row[i]};
        };
        for (std::size_t feature = 0; feature < features; ++feature) {
            if (feature == first || feature == second) continue;
            std::size_t best = 0, most = 0;
            for (std::size_t value = 0; value < counts[feature]; ++value) {
                row[feature] = value;
                std::size_t added = 0;
                for (const auto other : chosen) added += missing.count(pair(feature, other));
                if (added > most) best = value, most = added;
            }
            row[feature] = best;
            chosen.push_back(feature);
        }
        for (std::size_t i = 0; i < features; ++i)
            for (std::size_t j = i + 1; j < features; ++j) missing.erase(pair(i, j));
        rows.push_back(row);
    }
    return rows;
}

}  // namespace ringlab::tests
