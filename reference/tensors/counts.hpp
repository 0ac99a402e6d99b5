#pragma once

#include "layouts/basics/counts.hpp"

#include <cstdint>
#include <numeric>
#include <vector>

namespace ringlab::reference {

/// 0 .. tokens - 1.
inline std::vector<std::int64_t> all_positions(std::int64_t tokens) {
    std::vector<std::int64_t> positions(size(tokens));
    std::iota(positions.begin(), positions.end(), std::int64_t{0});
    return positions;
}

}  // namespace ringlab::reference
