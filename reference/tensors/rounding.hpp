#pragma once

#include "layouts/basics/basic_types.hpp"
#include "reference/tensors/tensors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace ringlab::reference {

/// A 16-bit floating-point format: 1 sign bit, exponent, mantissa, with subnormals, infinities and NaNs as in IEEE 754.
struct Bf16 {
    static constexpr int mantissa_bits = 7;
    static constexpr int min_exponent = -126;  ///< of the smallest normal number, 2^min_exponent
    static constexpr int max_exponent = 127;
};
struct Fp16 {
    static constexpr int mantissa_bits = 10;
    static constexpr int min_exponent = -14;
    static constexpr int max_exponent = 15;
};

/// The nearest number of the format, ties to even; infinity if x exceeds the largest finite number by half a step or
/// more. NaN stays NaN and zeros keep their sign. A double is rounded once, never first to float: 1 + 2^-8 + 2^-40 is
/// nearer to 1 + 2^-7 than to 1, but rounded to float it lies halfway and would become 1. A float is widened exactly
/// and then rounded in the same way. Requires the processor's default rounding mode.
template <class Format>
double round_to(double x) {
    // A step of the format at x is 2^(e - mantissa_bits), where e is the exponent of x, limited to normal numbers.
    // After adding 1.5 * 2^52 steps no bits below a step remain: the addition itself rounds to nearest even, and the
    // subtraction is exact.
    constexpr int bias = 1023;
    constexpr std::uint64_t least = bias + Format::min_exponent, most = bias + Format::max_exponent + 1;
    const auto bits = std::bit_cast<std::uint64_t>(x);
    const auto exponent = std::clamp<std::uint64_t>((bits >> 52) & 0x7ff, least, most);
    const auto shift =
        std::bit_cast<double>(((exponent + 52 - Format::mantissa_bits) << 52) | (std::uint64_t{1} << 51));
    const double rounded = (x + shift) - shift;
    constexpr double overflow = std::bit_cast<double>(most << 52);  // 2^(max_exponent + 1)
    const double magnitude = std::abs(rounded);
    return std::copysign(magnitude >= overflow ? std::numeric_limits<double>::infinity() : magnitude, x);
}

/// The bit pattern of the nearest number of the format; a NaN becomes the quiet NaN of its sign.
template <class Format>
std::uint16_t to_bits(double x) {
    constexpr std::uint64_t exponent_mask = Format::max_exponent * 2 + 1;
    constexpr int down = 52 - Format::mantissa_bits;
    constexpr auto smallest = std::bit_cast<double>(std::uint64_t{1023 + Format::min_exponent} << 52);
    constexpr auto steps_per_unit =
        std::bit_cast<double>(std::uint64_t{1023 + Format::mantissa_bits - Format::min_exponent} << 52);
    const double magnitude = std::abs(round_to<Format>(x));
    const auto bits = std::bit_cast<std::uint64_t>(magnitude);
    const auto normal = (bits >> down) - (std::uint64_t{1023 - Format::max_exponent} << Format::mantissa_bits);
    // For subnormal numbers the pattern is the number of steps.
    const auto subnormal =
        static_cast<std::uint64_t>(static_cast<std::int64_t>(magnitude < smallest ? magnitude * steps_per_unit : 0.0));
    auto pattern = magnitude < smallest ? subnormal : normal;
    if (magnitude > std::numeric_limits<double>::max()) pattern = exponent_mask << Format::mantissa_bits;
    if (magnitude != magnitude)
        pattern = (exponent_mask << Format::mantissa_bits) | (std::uint64_t{1} << (Format::mantissa_bits - 1));
    return static_cast<std::uint16_t>(pattern | (std::bit_cast<std::uint64_t>(x) >> 63 << 15));
}

/// The number that a bit pattern of the format stands for; exact.
template <class Format>
double from_bits(std::uint16_t pattern) {
    // A bf16 is the upper half of a float.
    if constexpr (std::is_same_v<Format, Bf16>) return std::bit_cast<float>(std::uint32_t{pattern} << 16);
    constexpr std::uint64_t exponent_mask = Format::max_exponent * 2 + 1;
    constexpr int up = 52 - Format::mantissa_bits;
    constexpr auto step =
        std::bit_cast<double>(std::uint64_t{1023 + Format::min_exponent - Format::mantissa_bits} << 52);
    const std::uint64_t field = pattern & 0x7fffu;
    const auto exponent = field >> Format::mantissa_bits;
    const auto rebased = exponent == exponent_mask ? (std::uint64_t{0x7ff} << 52) | (field << up)
                                                   : (field << up) + (std::uint64_t{1023 - Format::max_exponent} << 52);
    const double magnitude =
        exponent == 0 ? static_cast<double>(static_cast<std::int64_t>(field)) * step : std::bit_cast<double>(rebased);
    return std::copysign(magnitude, (pattern & 0x8000u) != 0 ? -1.0 : 1.0);
}

/// Rounds every value to the nearest number of `dtype`. fp64 changes nothing, nor does fp32 for floats.
void round_in_place(std::span<double> values, layouts::DType dtype);
void round_in_place(std::span<float> values, layouts::DType dtype);
Tensor rounded(Tensor tensor, layouts::DType dtype);
double rounded(double x, layouts::DType dtype);

/// Converts values to 16-bit patterns and back. Throws Error unless lengths are equal and `dtype` is bf16 or fp16.
void to_bits(std::span<const double> values, layouts::DType dtype, std::span<std::uint16_t> patterns);
void to_bits(std::span<const float> values, layouts::DType dtype, std::span<std::uint16_t> patterns);
void from_bits(std::span<const std::uint16_t> patterns, layouts::DType dtype, std::span<double> values);
void from_bits(std::span<const std::uint16_t> patterns, layouts::DType dtype, std::span<float> values);

}  // namespace ringlab::reference
