#pragma once

#include "layouts/masks/mask.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// A change of rotary frequencies for sequences longer than those that the model was trained on: frequencies become
/// lower than the base alone makes them.
struct RotaryScaling {
    std::string name = "none";         ///< none, linear, ntk, llama3 or yarn
    std::vector<double> numbers = {};  ///< parameters, in the order in which they are typed

    friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// Parses "none", "linear:8" or "llama3:8,1,4,8192"; rotary_scaling_usages() lists all forms. Throws Error that says
/// what would be right.
RotaryScaling parse_rotary_scaling(const std::string& spec);

/// How a rotary scaling is typed, and what it does in one line.
struct RotaryScalingUsage {
    std::string usage, help;
};
const std::vector<RotaryScalingUsage>& rotary_scaling_usages();

/// Rotary position embedding (Su et al. 2021, arXiv 2104.09864): before attention, pairs of dims of q and k are rotated
/// by an angle proportional to the token's position, so that q.k depends on the distance between the tokens. This is
/// the configuration of a model; RotaryTable holds the resulting frequencies.
struct Rotary {
    /// Which two of the rotated dims are pair i of n pairs.
    enum class Pairs {
        half,         ///< i and n + i, as GPT-NeoX, Llama and most models keep their weights
        interleaved,  ///< 2i and 2i + 1, as GPT-J and DeepSeek do
    };
    /// What a token's position is.
    enum class Positions {
        global,     ///< its index in the sequence
        documents,  ///< its index in its document, see document_begins(), not counting padding
    };

    double base = 0;         ///< pair i is rotated by position * base^(-i/n) radians; 0: nothing is rotated
    std::int64_t dims = 0;   ///< number of rotated dims of a head; 0: all from `first` on
    std::int64_t first = 0;  ///< first rotated dim; dims before and after the rotated ones stay as they are
    Pairs pairs = Pairs::half;
    Positions positions = Positions::global;
    RotaryScaling scaling = {};

    bool rotates() const { return base != 0; }
    friend bool operator==(const Rotary&, const Rotary&) = default;
};

/// "none", or the whole configuration: "base 500000, all dims from 0, half, scaling none, global positions".
std::string text_of(const Rotary& rotary);

/// The rotation of one head: pair i is rotated by position * frequencies[i], then all rotated dims are multiplied by
/// `amplitude`.
struct RotaryTable {
    std::vector<double> frequencies;  ///< radians per position, by pair
    double amplitude = 1;
    std::int64_t first = 0;
    Rotary::Pairs pairs = Rotary::Pairs::half;

    std::int64_t dims() const { return 2 * static_cast<std::int64_t>(frequencies.size()); }
    /// Pair i consists of the dims dim_of(i) and dim_of(i) + distance().
    std::int64_t dim_of(std::int64_t i) const { return first + (pairs == Rotary::Pairs::half ? i : 2 * i); }
    std::int64_t distance() const { return pairs == Rotary::Pairs::half ? dims() / 2 : 1; }
};

/// The table for heads of `head_dim` dims. Throws Error that says what would be right if `rotary` does not fit them.
RotaryTable rotary_table(const Rotary& rotary, std::int64_t head_dim);

/// First token of each document that a mask packs, in order. Documents are the shortest ranges of consecutive tokens
/// such that no token sees, or is seen by, a token outside its range. A token that neither sees nor is seen by another
/// one, such as padding, is a document of its own.
std::vector<std::int64_t> document_begins(const Mask& mask);

/// The position by which each of these tokens (given as global positions) is rotated.
std::vector<std::int64_t> rotary_positions(const Rotary& rotary, const Mask& mask,
                                           std::span<const std::int64_t> tokens);

}  // namespace ringlab::layouts
