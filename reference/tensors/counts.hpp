#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace ringlab::reference {

/// A count as std::size_t, for containers.
constexpr std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

/// 0 .. tokens - 1.
inline std::vector<std::int64_t> all_positions(std::int64_t tokens) {
    std::vector<std::int64_t> positions(size(tokens));
    std::iota(positions.begin(), positions.end(), std::int64_t{0});
    return positions;
}

}  // namespace ringlab::reference
