#include "reference/attention/dense.hpp"

#include <fmt/ranges.h>

namespace ringlab::reference {

void require_shape(const char* name, const std::array<std::size_t, 4>& shape,
                   const std::array<std::int64_t, 4>& expected) {
    const bool equal =
        std::equal(shape.begin(), shape.end(), expected.begin(),
                   [](std::size_t have, std::int64_t want) { return static_cast<std::int64_t>(have) == want; });
    require(equal, "{} has shape ({}); the problem needs (batch, tokens, heads, dim) = ({})", name,
            fmt::join(shape, ", "), fmt::join(expected, ", "));
}

}  // namespace ringlab::reference
