#include "layouts/problem/dropout.hpp"
#include "layouts/basics/require.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <functional>

using ringlab::Error;
using namespace ringlab::layouts;
namespace data = boost::unit_test::data;

BOOST_AUTO_TEST_SUITE(dropout)

// The known-answer vectors of the Random123 distribution for philox4x32, 10 and 7 rounds.
BOOST_AUTO_TEST_CASE(philox_gives_the_published_words) {
    using Words = std::array<std::uint32_t, 4>;
    constexpr std::uint32_t ones = 0xffffffff;
    BOOST_TEST((philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    BOOST_TEST(
        (philox({ones, ones, ones, ones}, {ones, ones}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    BOOST_TEST((philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
                Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
    BOOST_TEST(
        (philox({0, 0, 0, 0}, philox_round_keys<7>({0, 0})) == Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
    BOOST_TEST((philox({ones, ones, ones, ones}, philox_round_keys<7>({ones, ones})) ==
                Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
    BOOST_TEST(
        (philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, philox_round_keys<7>({0xa4093822, 0x299f31d0})) ==
         Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

// Written out for a patch of queries q and q + 8 of 16 and 16 keys: counters are (8 * patch of queries + q % 8, 4 *
// patch of keys + call, head, batch with its top bit set) for each of 4 calls, the key is the seed, lower word first. A
// number of 16 bits has a bit in each word.
BOOST_AUTO_TEST_CASE(a_pair_is_dropped_by_its_bits_in_sixteen_words_of_the_generator) {
    const auto draw = dropout_draw({0.3, 0x0123456789abcdef});
    BOOST_TEST(draw.below == 19661u);  // 0.3 * 65536 = 19660.8
    for (const std::uint32_t batch : {0, 9})
        for (const std::uint32_t head : {0, 2, 3})
            for (const std::uint32_t query : {0, 1, 7, 8, 15, 16, 37, 45, 1 << 20})
                for (const std::uint32_t key : {0, 1, 7, 8, 15, 16, 80, 95, 1 << 30}) {
                    const std::uint32_t bit = key % 8 * 4 + (key % 16 >= 8 ? 2 : 0) + (query % 16 >= 8 ? 1 : 0);
                    std::uint32_t number = 0;
                    for (std::uint32_t call = 0; call < 4; ++call)
                        for (const auto word :
                             philox({query / 16 * 8 + query % 8, key / 16 * 4 + call, head, batch + 0x80000000},
                                    philox_round_keys<7>({0x89abcdef, 0x01234567})))
                            number = 2 * number + (word >> bit & 1);
                    BOOST_TEST(draw.keeps(batch, head, query, key) == (number >= 19661u));
                }
}

// With rates that end in few and in many zero bits.
BOOST_DATA_TEST_CASE(a_patch_at_once_is_drawn_as_its_pairs_one_by_one,
                     data::make({1.0 / 65536, 0.1, 0.25, 0.5, 0.75, 0.9, 65535.0 / 65536}), probability) {
    const auto draw = dropout_draw({probability, 77});
    for (std::uint32_t q = 0; q < 64; ++q)
        for (std::uint32_t k = 0; k < 512; ++k) {
            const bool kept = draw.kept(1, 3, q, k) >> DropoutDraw::place(q, k) & 1;
            if (kept != draw.keeps(1, 3, q, k)) BOOST_ERROR("query " << q << ", key " << k);
        }
}

BOOST_AUTO_TEST_CASE(a_probability_is_rounded_to_a_multiple_of_2_to_the_minus_16) {
    BOOST_TEST(Dropout{}.factor() == 1.0);
    BOOST_TEST((Dropout{0.5, 0}.factor() == 2.0));
    BOOST_TEST((Dropout{0.3, 0}.factor() == 65536.0 / (65536 - 19661)));  // o keeps its mean
    BOOST_TEST(dropout_draw({0, 1}).below == 0u);
    BOOST_TEST(dropout_draw({0.5, 1}).below == 32768u);
}

BOOST_AUTO_TEST_CASE(probabilities_that_would_become_0_or_1_are_refused) {
    const double half = 1.0 / 131072;  // 2^-17
    for (const double fine : {0.0, half, 0.5, std::nextafter(1 - half, 0.0)}) BOOST_CHECK_NO_THROW(validate({fine, 1}));
    for (const double wrong : {-0.1, 1e-300, std::nextafter(half, 0.0), 1 - half, 1.0, std::nan("")})
        BOOST_CHECK_THROW(validate({wrong, 1}), Error);
}

BOOST_AUTO_TEST_CASE(dropout_is_told_as_one_would_type_it) {
    BOOST_TEST(text_of(Dropout{}) == "none");
    BOOST_TEST(text_of(Dropout{0.1, 7}) == "0.1, seed 7");
}

BOOST_AUTO_TEST_SUITE_END()
