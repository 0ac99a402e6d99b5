// Few combinations of the features that GPU tests combine hold each pair of values.

#include "tests/covering.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>

namespace ringlab::tests {
namespace {

template <std::size_t features>
void check_pairs(const std::array<std::size_t, features>& counts, std::size_t most_rows) {
    const auto rows = pairwise(counts);
    for (std::size_t i = 0; i < features; ++i)
        for (std::size_t j = i + 1; j < features; ++j)
            for (std::size_t a = 0; a < counts[i]; ++a)
                for (std::size_t b = 0; b < counts[j]; ++b)
                    BOOST_TEST(std::ranges::any_of(rows, [&](const auto& row) { return row[i] == a && row[j] == b; }),
                               "value " << a << " of " << i << " never meets value " << b << " of " << j);
    for (const auto& row : rows)
        for (std::size_t i = 0; i < features; ++i) BOOST_TEST(row[i] < counts[i]);
    BOOST_TEST(rows.size() <= most_rows);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(covering)

// No fewer rows than pairs of the two features with most values; a twentieth more, or a few where all have as many.
BOOST_AUTO_TEST_CASE(each_pair_of_values_occurs_in_few_combinations) {
    check_pairs<4>({17, 5, 5, 6}, 107);
    check_pairs<5>({17, 3, 3, 5, 3}, 89);
    check_pairs<4>({3, 3, 3, 3}, 13);
    check_pairs<3>({1, 2, 7}, 14);
    check_pairs<2>({4, 5}, 20);
}

BOOST_AUTO_TEST_CASE(a_feature_without_values_has_no_combinations) { BOOST_TEST(pairwise<2>({0, 3}).empty()); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
