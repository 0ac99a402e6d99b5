#include "reference/tensors/rounding.hpp"

#include "layouts/basics/require.hpp"

#include <boost/mpl/list.hpp>
#include <boost/test/unit_test.hpp>

#include <random>

namespace {

using namespace ringlab;
using layouts::DType;
using reference::Bf16;
using reference::Fp16;

constexpr double infinity = std::numeric_limits<double>::infinity();
using Formats = boost::mpl::list<Bf16, Fp16>;

template <class Format>
constexpr DType dtype_of = std::is_same_v<Format, Bf16> ? DType::bf16 : DType::fp16;

/// The value of a pattern by the definition of the format, with ldexp: slow and plain.
template <class Format>
double decoded(unsigned pattern) {
    const int mantissa_bits = Format::mantissa_bits;
    const int exponent = static_cast<int>((pattern & 0x7fff) >> mantissa_bits);
    const auto mantissa = static_cast<double>(pattern & ((1u << mantissa_bits) - 1));
    const double sign = (pattern & 0x8000) != 0 ? -1 : 1;
    if (exponent == 2 * Format::max_exponent + 1) return mantissa == 0 ? sign * infinity : std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, Format::min_exponent - mantissa_bits);
    return sign *
           std::ldexp(std::ldexp(1.0, mantissa_bits) + mantissa, exponent - Format::max_exponent - mantissa_bits);
}

bool same(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

BOOST_AUTO_TEST_SUITE(rounding)

BOOST_AUTO_TEST_CASE_TEMPLATE(all_65536_patterns_decode_by_definition_and_survive_a_round_trip, Format, Formats) {
    int wrong = 0;
    for (unsigned pattern = 0; pattern < 65536; ++pattern) {
        const double value = decoded<Format>(pattern);
        wrong += !same(reference::from_bits<Format>(static_cast<std::uint16_t>(pattern)), value);
        wrong += !same(reference::round_to<Format>(value), value);
        if (!std::isnan(value)) wrong += reference::to_bits<Format>(value) != pattern;
    }
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(every_gap_rounds_to_its_nearer_end_and_halfway_to_the_even_pattern, Format, Formats) {
    int wrong = 0;
    const unsigned top = (2u * Format::max_exponent + 1) << Format::mantissa_bits;  // the pattern of infinity
    for (unsigned low = 0; low < top; ++low) {
        const double below = decoded<Format>(low);
        // Past the largest finite number the next one would have been 2^(max_exponent + 1).
        const double above = low + 1 < top ? decoded<Format>(low + 1) : std::ldexp(1.0, Format::max_exponent + 1);
        const double half = below + (above - below) / 2;  // exact: one more bit than the format has
        const unsigned even = low % 2 == 0 ? low : low + 1;
        for (const unsigned sign : {0u, 0x8000u}) {
            const double s = sign != 0 ? -1 : 1;
            wrong += reference::to_bits<Format>(s * half) != (even | sign);
            wrong += reference::to_bits<Format>(s * std::nextafter(half, 0)) != (low | sign);
            wrong += reference::to_bits<Format>(s * std::nextafter(half, infinity)) != ((low + 1) | sign);
            wrong += !same(reference::round_to<Format>(s * half), decoded<Format>(even | sign));
            wrong += !same(reference::round_to<Format>(s * std::nextafter(half, 0)), decoded<Format>(low | sign));
            wrong += !same(reference::round_to<Format>(s * std::nextafter(half, infinity)),
                           decoded<Format>((low + 1) | sign));
        }
    }
    BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(nan_infinity_zero_and_extremes_keep_their_kind_and_sign, Format, Formats) {
    const double largest = std::numeric_limits<double>::max(), least = std::numeric_limits<double>::denorm_min();
    for (const double s : {1.0, -1.0}) {
        BOOST_TEST(std::isnan(reference::round_to<Format>(s * std::nan(""))));
        BOOST_TEST(std::signbit(reference::from_bits<Format>(
                       reference::to_bits<Format>(std::copysign(std::nan(""), s)))) == (s < 0));
        BOOST_TEST(
            std::isnan(reference::from_bits<Format>(reference::to_bits<Format>(std::copysign(std::nan(""), s)))));
        BOOST_TEST(same(reference::round_to<Format>(s * infinity), s * infinity));
        BOOST_TEST(same(reference::round_to<Format>(s * largest), s * infinity));
        BOOST_TEST(same(reference::round_to<Format>(s * least), s * 0.0));
        BOOST_TEST(same(reference::round_to<Format>(s * 0.0), s * 0.0));
    }
}

BOOST_AUTO_TEST_CASE(a_double_is_rounded_once_and_not_by_way_of_float) {
    const double just_above_half = 1 + 0x1p-8 + 0x1p-40;  // as a float exactly halfway, and even is 1
    BOOST_TEST(reference::round_to<Bf16>(just_above_half) == 1 + 0x1p-7);
    BOOST_TEST(reference::round_to<Bf16>(static_cast<double>(static_cast<float>(just_above_half))) == 1);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(spans_agree_with_single_values_for_doubles_and_floats, Format, Formats) {
    std::mt19937_64 random(3);
    std::uniform_int_distribution<int> exponent(-150, 150);
    std::normal_distribution<double> normal;
    std::vector<double> doubles{0, -0.0, infinity, -infinity};
    for (int n = 0; n < 5000; ++n) doubles.push_back(std::ldexp(normal(random), exponent(random) * (n % 3) / 4));
    std::vector<float> floats(doubles.begin(), doubles.end());

    const auto check = [](const auto& values) {
        using Real = std::decay_t<decltype(values[0])>;
        auto rounded = values;
        reference::round_in_place(std::span<Real>(rounded), dtype_of<Format>);
        std::vector<std::uint16_t> patterns(values.size());
        reference::to_bits(std::span<const Real>(values), dtype_of<Format>, patterns);
        std::vector<Real> back(values.size());
        reference::from_bits(patterns, dtype_of<Format>, std::span<Real>(back));
        int wrong = 0;
        for (std::size_t n = 0; n < values.size(); ++n) {
            wrong += !same(rounded[n], reference::round_to<Format>(values[n]));
            wrong += patterns[n] != reference::to_bits<Format>(values[n]);
            wrong += !same(back[n], rounded[n]);
        }
        BOOST_TEST(wrong == 0);
    };
    check(doubles);
    check(floats);
}

BOOST_AUTO_TEST_CASE(fp32_rounds_to_float_and_fp64_changes_nothing) {
    std::vector<double> values{0.1, 1e300};
    reference::round_in_place(values, DType::fp64);
    BOOST_TEST(values[0] == 0.1);
    reference::round_in_place(values, DType::fp32);
    BOOST_TEST(values[0] == static_cast<double>(0.1f));
    BOOST_TEST(values[1] == infinity);
}

BOOST_AUTO_TEST_CASE(only_16_bit_formats_have_patterns_and_lengths_must_match) {
    const std::vector<double> values(3);
    std::vector<std::uint16_t> patterns(3), two(2);
    BOOST_CHECK_THROW(reference::to_bits(values, DType::fp32, patterns), Error);
    BOOST_CHECK_THROW(reference::to_bits(values, DType::bf16, two), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
