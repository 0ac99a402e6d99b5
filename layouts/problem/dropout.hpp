#pragma once

#include "layouts/basics/philox.hpp"

#include <cstdint>
#include <string>

namespace ringlab::layouts {

/// Dropout of attention probabilities (Srivastava et al. 2014): after the softmax each p is set to 0 with this
/// probability, and the others are divided by 1 - probability, so that o keeps its mean. lse is that of all keys. Which
/// p are dropped depends only on seed, batch element, query head and global positions, so it is the same for every
/// layout, schedule, number of ranks and backend, and in the backward pass.
struct Dropout {
    double probability = 0;  ///< in [0, 1); 0: no dropout
    std::uint64_t seed = 0;

    bool drops() const { return probability > 0; }
    /// Factor of every p that is kept.
    double factor() const { return 1 / (1 - probability); }
    friend bool operator==(const Dropout&, const Dropout&) = default;
};

/// "none", or "0.1, seed 7".
std::string text_of(const Dropout& dropout);

/// Decides for each (query, key) pair whether Dropout drops it, in CPU code and in kernels.
struct DropoutDraw {
    std::array<std::uint32_t, 2> key{};
    std::uint32_t below = 0;  ///< a pair whose word is less than this is dropped

    /// The random words of the four pairs of queries 2i and 2i + 1 with keys 2j and 2j + 1, where `query` and
    /// `key_position` are those of any of these pairs. The top bit of the last counter word is set, so that dropout and
    /// random inputs never use the same words, whatever the seed.
    constexpr std::array<std::uint32_t, 4> words(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                                                 std::uint32_t key_position) const {
        return philox({query / 2, key_position / 2, head, batch | 0x80000000u}, key);
    }
    /// Index in words() of the word of this pair.
    static constexpr std::uint32_t place(std::uint32_t query, std::uint32_t key_position) {
        return query % 2 * 2 + key_position % 2;
    }
    constexpr bool keeps(std::uint32_t word) const { return word >= below; }
    constexpr bool keeps(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                         std::uint32_t key_position) const {
        return keeps(words(batch, head, query, key_position)[place(query, key_position)]);
    }
};

/// The decisions for `dropout`. The rate of dropped pairs is the probability to within 2^-32.
DropoutDraw dropout_draw(const Dropout& dropout);

/// Throws Error unless the probability is in [0, 1).
void validate(const Dropout& dropout);

}  // namespace ringlab::layouts
