#pragma once

#include "layouts/philox.hpp"

#include <cstdint>
#include <string>

namespace ringlab::layouts {

/// Dropout of attention probabilities (Srivastava et al. 2014): behind the softmax every p is set to 0 with this
/// probability, and the others are divided by what is left of 1, so that o stays the same on average; lse is that of
/// all keys. Which ones is decided by seed, batch element, query head and global positions alone, so that it is the
/// same for every layout, schedule, number of ranks and backend, and in the backward pass.
struct Dropout {
    double probability = 0;  ///< from 0, for none, to below 1
    std::uint64_t seed = 0;

    bool drops() const { return probability > 0; }
    /// What a p that is kept is multiplied by.
    double factor() const { return 1 / (1 - probability); }
    friend bool operator==(const Dropout&, const Dropout&) = default;
};

/// "none", or "0.1, seed 7".
std::string text_of(const Dropout& dropout);

/// Dropout as whoever draws needs it: element by element, on a CPU or in a kernel.
struct DropoutDraw {
    std::array<std::uint32_t, 2> key{};
    std::uint32_t below = 0;  ///< a pair whose word is less than this is dropped

    /// The random words of the pairs of queries 2i and 2i + 1 with keys 2j and 2j + 1, for `query` and `key_position`
    /// any of these. The top bit of the last counter is set, so that no seed gives inputs and dropout the same words.
    constexpr std::array<std::uint32_t, 4> words(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                                                 std::uint32_t key_position) const {
        return philox({query / 2, key_position / 2, head, batch | 0x80000000u}, key);
    }
    /// Which of the words is that of a pair.
    static constexpr std::uint32_t place(std::uint32_t query, std::uint32_t key_position) {
        return query % 2 * 2 + key_position % 2;
    }
    constexpr bool keeps(std::uint32_t word) const { return word >= below; }
    constexpr bool keeps(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                         std::uint32_t key_position) const {
        return keeps(words(batch, head, query, key_position)[place(query, key_position)]);
    }
};

/// The rate is the probability to within 2^-32.
DropoutDraw dropout_draw(const Dropout& dropout);

/// Throws Error unless the probability is from 0 to below 1.
void validate(const Dropout& dropout);

}  // namespace ringlab::layouts
