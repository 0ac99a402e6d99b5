#include "layouts/problem/dropout.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>

using namespace ringlab::layouts;
namespace data = boost::unit_test::data;

namespace {

/// Pairs of a sample: enough for a rate to 0.1 %.
constexpr std::uint32_t sampled_heads = 4, sampled_side = 512;
constexpr double sampled_pairs = double{sampled_heads} * sampled_side * sampled_side;

// A mean of n independent numbers is within 5.5 of its standard deviations with probability 1 - 4e-8. All sums below
// are over pairs that the generator makes independent: none is tuned.
constexpr double deviations = 5.5;

struct Pair {
    std::uint32_t batch = 0, head = 0, query = 0, key = 0;
};

/// Sum of visit(pair) over the sample.
double sum_over(const std::function<double(const Pair&)>& visit) {
    double sum = 0;
    for (std::uint32_t h = 0; h < sampled_heads; ++h)
        for (std::uint32_t q = 0; q < sampled_side; ++q)
            for (std::uint32_t k = 0; k < sampled_side; ++k) sum += visit({1, h, q, k});
    return sum;
}

/// Whether the pair is kept, less the probability of it.
double centred(const Dropout& dropout, const Pair& at) {
    static thread_local Dropout drawn_of;
    static thread_local DropoutDraw draw;
    if (!(drawn_of == dropout)) draw = dropout_draw(drawn_of = dropout);
    return (draw.keeps(at.batch, at.head, at.query, at.key) ? 1.0 : 0.0) - (1 - dropout.probability);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dropout)

// The known-answer vectors of the Random123 distribution for philox4x32, 10 rounds.
BOOST_AUTO_TEST_CASE(philox_gives_the_published_words) {
    using Words = std::array<std::uint32_t, 4>;
    constexpr std::uint32_t ones = 0xffffffff;
    BOOST_TEST((philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    BOOST_TEST(
        (philox({ones, ones, ones, ones}, {ones, ones}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    BOOST_TEST((philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
                Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Written out: the counter is (query / 2, key / 2, head, batch with its top bit set), the key the seed, lower word
// first; the word is that of (query % 2, key % 2), and a pair is dropped where it is below probability * 2^32.
BOOST_AUTO_TEST_CASE(a_pair_is_dropped_by_its_word_of_the_generator) {
    const auto draw = dropout_draw({0.25, 0x0123456789abcdef});
    BOOST_TEST(draw.below == 0x40000000u);
    for (const auto& [query, key] : {std::pair(6u, 10u), {6u, 11u}, {7u, 10u}, {7u, 11u}}) {
        const auto words = philox({3, 5, 2, 0x80000009}, {0x89abcdef, 0x01234567});
        const auto word = words[(query - 6) * 2 + (key - 10)];
        BOOST_TEST(draw.keeps(9, 2, query, key) == (word >= 0x40000000u));
    }
}

BOOST_AUTO_TEST_CASE(probabilities_near_the_ends_drop_nothing_or_all_but_nothing) {
    BOOST_TEST(dropout_draw({0, 1}).below == 0u);
    BOOST_TEST(dropout_draw({1e-300, 1}).below == 0u);
    BOOST_TEST(dropout_draw({std::nextafter(1.0, 0.0), 1}).below == 0xffffffffu);
}

BOOST_DATA_TEST_CASE(pairs_are_dropped_at_the_rate_that_is_asked_for,
                     data::make({0.01, 0.1, 0.5, 0.9}) ^ data::make({1, 2, 3, 4}), probability, seed) {
    const Dropout dropout{probability, static_cast<std::uint64_t>(seed)};
    const double sigma = std::sqrt(sampled_pairs * probability * (1 - probability));
    BOOST_TEST(std::abs(sum_over([&](const Pair& at) { return centred(dropout, at); })) < deviations * sigma);
}

// The product of two independent centred indicators has mean 0 and variance (p (1 - p))^2.
BOOST_AUTO_TEST_CASE(neighbours_in_every_coordinate_and_in_the_seed_are_independent) {
    const Dropout dropout{0.3, 12}, other_seed{0.3, 13}, far_seed{0.3, 12 + (std::uint64_t{1} << 32)};
    const double sigma = std::sqrt(sampled_pairs) * 0.3 * 0.7;
    const auto check = [&](const char* what, const Dropout& other, const std::function<Pair(Pair)>& moved) {
        const double sum = sum_over([&](const Pair& at) { return centred(dropout, at) * centred(other, moved(at)); });
        BOOST_TEST(std::abs(sum) < deviations * sigma, what << ": " << sum / sigma << " standard deviations");
    };
    const auto same = [](Pair at) { return at; };
    check("seed", other_seed, same);
    check("upper word of the seed", far_seed, same);
    check("head", dropout, [](Pair at) { return ++at.head, at; });
    check("query", dropout, [](Pair at) { return ++at.query, at; });
    check("query of the next patch", dropout, [](Pair at) { return at.query += 2, at; });
    check("key", dropout, [](Pair at) { return ++at.key, at; });
    check("key of the next patch", dropout, [](Pair at) { return at.key += 2, at; });
    check("batch element", dropout, [](Pair at) { return ++at.batch, at; });
    check("query and key at once", dropout, [](Pair at) { return ++at.query, ++at.key, at; });
    check("far positions", dropout, [](Pair at) { return at.query += 1 << 20, at.key += 1 << 30, at; });
    check("query for key", dropout, [](Pair at) { return std::swap(at.query, ++at.key), at; });
}

BOOST_AUTO_TEST_CASE(dropout_is_told_as_one_would_type_it) {
    BOOST_TEST(text_of(Dropout{}) == "none");
    BOOST_TEST(text_of(Dropout{0.1, 7}) == "0.1, seed 7");
}

BOOST_AUTO_TEST_SUITE_END()
