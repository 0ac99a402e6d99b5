#pragma once

#include "layouts/problem.hpp"

#include <initializer_list>
#include <optional>

namespace ringlab::layouts {

// Arithmetic on sizes and times that users choose: what 64 bits cannot hold is told, not wrapped around.

/// The product, or nothing if it is not a number of 64 bits.
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

/// Bytes of q, k, v, dO, o, dq, dk and dv together in numbers of `bytes_each`, if they can be counted.
std::optional<std::int64_t> tensor_bytes(const Problem& problem, std::int64_t bytes_each);

/// Throws the Error that no timeline is that long.
[[noreturn]] void fail_of_time();

/// to_picoseconds() of any time. Throws Error unless it is below 9.2e6 s (106 days).
constexpr Picoseconds checked_picoseconds(double seconds) {
    if (!(seconds > -9.2e6 && seconds < 9.2e6)) fail_of_time();
    return to_picoseconds(seconds);
}

/// The time `duration` after `time`. Throws Error if no timeline reaches that far.
constexpr Picoseconds later(Picoseconds time, Picoseconds duration) {
    Picoseconds sum = 0;
    if (__builtin_add_overflow(time, duration, &sum)) fail_of_time();
    return sum;
}

}  // namespace ringlab::layouts
