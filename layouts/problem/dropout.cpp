#include "layouts/problem/dropout.hpp"

#include "layouts/basics/require.hpp"

#include <cmath>

namespace ringlab::layouts {
namespace {

constexpr double rates = std::uint32_t{1} << DropoutDraw::bits;

}  // namespace

std::string text_of(const Dropout& dropout) {
    return dropout.drops() ? fmt::format("{}, seed {}", dropout.probability, dropout.seed) : "none";
}

double Dropout::rate() const { return std::round(probability * rates) / rates; }

DropoutDraw dropout_draw(const Dropout& dropout) {
    DropoutDraw draw{.round_keys = philox_round_keys<7>(
                         {static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)}),
                     .below = static_cast<std::uint32_t>(dropout.rate() * rates)};
    for (int i = 0; i < DropoutDraw::bits; ++i)
        draw.clear_bits[static_cast<std::size_t>(i)] = draw.below >> (DropoutDraw::bits - 1 - i) & 1 ? 0 : ~0u;
    return draw;
}

void validate(const Dropout& dropout) {
    require(dropout.probability >= 0 && dropout.probability < 1,
            "the probability of dropout is {}; it must be from 0, for none, to below 1", dropout.probability);
    require(!dropout.drops() || (dropout.rate() > 0 && dropout.rate() < 1),
            "the probability of dropout is {}; pairs are dropped at a multiple of 2^-16, so it must be 0 or from 2^-17 "
            "to below 1 - 2^-17",
            dropout.probability);
}

}  // namespace ringlab::layouts
