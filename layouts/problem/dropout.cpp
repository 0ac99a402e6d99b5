#include "layouts/problem/dropout.hpp"

#include "layouts/basics/require.hpp"

#include <cmath>
#include <limits>

namespace ringlab::layouts {

std::string text_of(const Dropout& dropout) {
    return dropout.drops() ? fmt::format("{}, seed {}", dropout.probability, dropout.seed) : "none";
}

DropoutDraw dropout_draw(const Dropout& dropout) {
    constexpr double words = 4294967296.0, largest = std::numeric_limits<std::uint32_t>::max();
    return {{static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)},
            static_cast<std::uint32_t>(std::fmin(std::round(dropout.probability * words), largest))};
}

void validate(const Dropout& dropout) {
    require(dropout.probability >= 0 && dropout.probability < 1,
            "the probability of dropout is {}; it must be from 0, for none, to below 1 (--dropout)",
            dropout.probability);
}

}  // namespace ringlab::layouts
