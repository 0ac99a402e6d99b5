#pragma once

#include <cstddef>

namespace ringlab::sim {

/// Brings `bytes` from `begin` on towards the cache; any address will do. Always inlined: GCC takes a function that
/// does nothing but prefetch for one without effect, and drops its calls.
[[gnu::always_inline]] inline void prefetch(const void* begin, std::size_t bytes) {
    constexpr std::size_t line = 64;
    for (std::size_t at = 0; at < bytes; at += line) __builtin_prefetch(static_cast<const char*>(begin) + at);
}

}  // namespace ringlab::sim
