#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/basics/require.hpp"

#include <initializer_list>
#include <optional>

namespace ringlab::layouts {

// Arithmetic on sizes and times that users choose. Overflow of 64 bits is reported and never wraps around.

/// The product of the factors; nullopt if it does not fit into 64 bits.
constexpr std::optional<std::int64_t> checked_product(std::initializer_list<std::int64_t> factors) {
    std::int64_t product = 1;
    bool overflows = false, zero = false;
    for (const auto factor : factors) {
        overflows |= __builtin_mul_overflow(product, factor, &product);
        zero |= factor == 0;
    }
    if (zero) return 0;
    return overflows ? std::nullopt : std::optional(product);
}

[[noreturn]] inline void fail_time_too_long() {
    fail(
        "a time exceeds 106 days (2^63 picoseconds), the longest that a timeline can hold; use fewer tokens, "
        "heads, dims, sequences or ranks, or a faster machine");
}

/// to_picoseconds() with a check. Throws Error unless `seconds` is below 9.2e6 (106 days) in magnitude.
constexpr Picoseconds checked_picoseconds(double seconds) {
    if (!(seconds > -9.2e6 && seconds < 9.2e6)) fail_time_too_long();
    return to_picoseconds(seconds);
}

/// time + duration. Throws Error if the sum does not fit into 64 bits.
constexpr Picoseconds checked_sum(Picoseconds time, Picoseconds duration) {
    Picoseconds sum = 0;
    if (__builtin_add_overflow(time, duration, &sum)) fail_time_too_long();
    return sum;
}

}  // namespace ringlab::layouts
