#pragma once

#include "layouts/basics/philox.hpp"

#include <cstdint>
#include <string>

namespace ringlab::layouts {

/// Dropout of attention probabilities (Srivastava et al. 2014): after the softmax each p is set to 0 at the rate of
/// this probability, and the others are divided by 1 - rate, so that o keeps its mean. lse is that of all keys. Which p
/// are dropped depends only on seed, batch element, query head and global positions, so it is the same for every
/// layout, schedule, number of ranks and backend, and in the backward pass.
struct Dropout {
    double probability = 0;  ///< 0: no dropout; otherwise see validate()
    std::uint64_t seed = 0;

    bool drops() const { return probability > 0; }
    /// The probability, rounded to a multiple of 2^-16.
    double rate() const;
    /// Factor of every p that is kept.
    double factor() const { return 1 / (1 - rate()); }
    friend bool operator==(const Dropout&, const Dropout&) = default;
};

/// "none", or "0.1, seed 7".
std::string text_of(const Dropout& dropout);

/// Decides for each (query, key) pair whether Dropout drops it, in CPU code and in kernels.
///
/// Each pair has a random number of 16 bits. 32 pairs, a patch, are drawn together: queries i and i + 8 of 16
/// neighbours with 16 neighbouring keys, where the first of both has a position that 16 divides. Word b of the
/// generator holds bit b of the numbers of all 32 pairs, the most significant bit first, so that a few operations on
/// words compare all of them with the rate. 32 pairs need 16 words, that is 4 calls of the generator.
struct DropoutDraw {
    static constexpr int bits = 16, calls = bits / 4;

    std::array<std::array<std::uint32_t, 2>, 7> round_keys{};  ///< of the generator
    std::uint32_t below = 0;                                   ///< a pair whose number is less than this is dropped
    std::array<std::uint32_t, bits> clear_bits{};  ///< ~0 for each bit of `below` that is 0, the first bit first

    /// Words 4 call to 4 call + 3 of the patch of this pair. The top bit of the last counter word is set, so that
    /// dropout and random inputs never use the same counter, whatever the seed. 7 rounds, because the time of kernels
    /// with dropout depends on their number.
    constexpr std::array<std::uint32_t, 4> words(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                                                 std::uint32_t key_position, std::uint32_t call) const {
        return philox({query / 16 * 8 + query % 8, key_position / 16 * calls + call, head, batch | 0x80000000u},
                      round_keys);
    }
    /// The bit of this pair in the words of its patch. In this order the four pairs that a thread holds of a product's
    /// result lie together, whether rows are queries or keys.
    static constexpr std::uint32_t place(std::uint32_t query, std::uint32_t key_position) {
        return key_position % 8 * 4 + key_position / 8 % 2 * 2 + query / 8 % 2;
    }

    /// For all pairs of the patch of this pair, each at its place(): 1 where it is kept.
    constexpr std::uint32_t kept(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                                 std::uint32_t key_position) const {
        std::uint32_t kept = ~0u;  // the number's last bits are not less than those of `below`
        for (int call = calls - 1; call >= 0; --call) {
            const auto drawn = words(batch, head, query, key_position, static_cast<std::uint32_t>(call));
            for (int i = 3; i >= 0; --i) {
                const std::uint32_t word = drawn[static_cast<std::size_t>(i)];
                const std::uint32_t clear = clear_bits[static_cast<std::size_t>(4 * call + i)];
                kept = (kept & (word | clear)) | (word & clear);
            }
        }
        return kept;
    }

    /// The same for one pair. It stops at the first bits that decide.
    constexpr bool keeps(std::uint32_t batch, std::uint32_t head, std::uint32_t query,
                         std::uint32_t key_position) const {
        const auto bit = place(query, key_position);
        for (std::uint32_t call = 0; call < calls; ++call) {
            const auto drawn = words(batch, head, query, key_position, call);
            std::uint32_t four = 0;
            for (const auto word : drawn) four = 2 * four + (word >> bit & 1);
            const auto of_rate = below >> (bits - 4 - 4 * call) & 15;
            if (four != of_rate) return four > of_rate;
        }
        return true;
    }
};

DropoutDraw dropout_draw(const Dropout& dropout);

/// Throws Error unless the probability is 0, or at least 2^-17 and less than 1 - 2^-17, which round to a rate between 0
/// and 1.
void validate(const Dropout& dropout);

}  // namespace ringlab::layouts
