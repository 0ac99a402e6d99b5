#pragma once

#include <cstdint>

namespace ringlab::experiments {

/// The x that a standard normal number stays below with probability p, 0 < p < 1, to about 1e-15 relative. Uses
/// additions, multiplications, divisions, square roots and exact scalings alone, so the result is the same everywhere.
double normal_quantile(double p);

/// Names one element of one tensor.
struct ElementIndex {
    std::uint32_t tensor = 0;
    std::uint32_t batch = 0;
    std::uint32_t head = 0;
    std::uint32_t position = 0;  ///< global
    std::uint32_t dim = 0;       ///< below 2^24
};

/// 64 random bits of the element; `tensor` below 256.
std::uint64_t random_bits(std::uint64_t seed, const ElementIndex& index);

/// A standard normal number of the element, of 52 random bits.
double random_normal(std::uint64_t seed, const ElementIndex& index);

}  // namespace ringlab::experiments
