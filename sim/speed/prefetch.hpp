#pragma once

#include <cstddef>

namespace ringlab::sim {

/// Prefetches `bytes` from `begin` on into the cache; any address is allowed. Always inlined, because GCC takes a
/// function that only prefetches for one without effect and removes its calls.
[[gnu::always_inline]] inline void prefetch(const void* begin, std::size_t bytes) {
    constexpr std::size_t line = 64;
    for (std::size_t at = 0; at < bytes; at += line) __builtin_prefetch(static_cast<const char*>(begin) + at);
}

}  // namespace ringlab::sim
