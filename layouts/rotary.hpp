#pragma once

#include "layouts/mask.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// How a model reaches beyond the length that it was trained for: frequencies that are lower than the base gives them.
struct RotaryScaling {
    enum class Kind { none, linear, ntk, llama3, yarn };

    Kind kind = Kind::none;
    std::array<double, 5> numbers{};  ///< as parse_rotary_scaling() has them
    std::size_t count = 0;            ///< of them

    friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// From what a user types: "none", "linear:8", "llama3:8,1,4,8192"; see rotary_scaling_usages(). Throws Error that says
/// what would be right.
RotaryScaling parse_rotary_scaling(const std::string& spec);

/// How to type each of them, and what it does.
struct RotaryScalingUsage {
    std::string usage, help;
};
const std::vector<RotaryScalingUsage>& rotary_scaling_usages();

/// Rotary position embedding (Su et al. 2021, arXiv 2104.09864): before attention, pairs of dims of q and k are turned
/// by an angle that grows with the token's position, so that q.k depends on how far apart the two are. This is how a
/// model is configured; RotaryTable is what that comes to.
struct Rotary {
    /// Which two dims of the rotated ones make pair i, of n pairs.
    enum class Pairs {
        half,         ///< i and n + i, as GPT-NeoX, Llama and most models keep their weights
        interleaved,  ///< 2i and 2i + 1, as GPT-J and DeepSeek do
    };
    /// What is counted as a token's position.
    enum class Positions {
        global,     ///< its place in the sequence
        documents,  ///< its place in its document, see document_begins(), among tokens that are no padding
    };

    double base = 0;         ///< pair i turns by position * base^(-i/n); 0: q and k are taken as they are
    std::int64_t dims = 0;   ///< of a head that are rotated; 0: all of them, from `first` on
    std::int64_t first = 0;  ///< of the rotated dims; those before and behind stay
    Pairs pairs = Pairs::half;
    Positions positions = Positions::global;
    RotaryScaling scaling = {};

    bool rotates() const { return base != 0; }
    friend bool operator==(const Rotary&, const Rotary&) = default;
};

/// "none", or all of it: "base 500000, all dims from 0, half, scaling none, global positions".
std::string text_of(const Rotary& rotary);

/// Turns by position * frequencies[i], after which all rotated dims are multiplied by `amplitude`.
struct RotaryTable {
    std::vector<double> frequencies;  ///< radians per position, of each pair
    double amplitude = 1;
    std::int64_t first = 0;
    Rotary::Pairs pairs = Rotary::Pairs::half;

    std::int64_t dims() const { return 2 * static_cast<std::int64_t>(frequencies.size()); }
    /// The first dim of pair i, and how far behind it the second one is.
    std::int64_t dim_of(std::int64_t i) const { return first + (pairs == Rotary::Pairs::half ? i : 2 * i); }
    std::int64_t distance() const { return pairs == Rotary::Pairs::half ? dims() / 2 : 1; }
};

/// For heads of `head_dim`. Throws Error that says what would be right if they cannot be rotated so.
RotaryTable rotary_table(const Rotary& rotary, std::int64_t head_dim);

/// First tokens of the documents that a mask packs, in order: the shortest stretches of tokens of which none sees, or
/// is seen by, a token outside of its own. A token that sees nobody and is seen by none, as padding, is one of its own.
std::vector<std::int64_t> document_begins(const Mask& mask);

/// What each of these tokens is rotated by.
std::vector<std::int64_t> rotary_positions(const Rotary& rotary, const Mask& mask,
                                           std::span<const std::int64_t> tokens);

}  // namespace ringlab::layouts
