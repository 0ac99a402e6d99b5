#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/masks/mask.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringlab::layouts {

/// The positions first, first + stride, ..., first + stride*(count-1); stride >= 1.
struct Run {
    std::int64_t first = 0;
    std::int64_t stride = 1;
    std::int64_t count = 0;

    constexpr std::int64_t at(std::int64_t i) const { return first + stride * i; }
    constexpr std::int64_t last() const { return at(count - 1); }
    /// Number of its positions below x.
    constexpr std::int64_t below(std::int64_t x) const {
        return std::clamp<std::int64_t>((x - first + stride - 1) / stride, 0, count);
    }
    friend constexpr bool operator==(const Run&, const Run&) = default;
};

/// The part of `run` that holds its elements [begin, end).
constexpr Run slice(const Run& run, std::int64_t begin, std::int64_t end) {
    return {run.at(begin), run.stride, end - begin};
}

/// Adds a run of stride 1, as part of the last run if that has stride 1 and ends there.
void append_run(std::vector<Run>& runs, const Run& run);

/// Number of positions of the runs.
std::int64_t count_of(std::span<const Run> runs);

/// Calls visit(run part) for the parts of `runs` that make up local indices [begin, end).
template <class Visit>
void for_each_part(std::span<const Run> runs, std::int64_t begin, std::int64_t end, Visit visit) {
    std::int64_t offset = 0;
    for (const auto& run : runs) {
        const auto first = std::max(begin - offset, std::int64_t{0}), last = std::min(end - offset, run.count);
        if (first < last) visit(slice(run, first, last));
        offset += run.count;
        if (offset >= end) return;
    }
}

/// All positions of the runs, in their order. runs_of() is the reverse.
std::vector<std::int64_t> positions_of(std::span<const Run> runs);

/// The positions of `runs` that lie in one of the intervals (sorted and disjoint), in the order of the runs.
std::vector<Run> intersect_runs(std::span<const Run> runs, std::span<const Interval> intervals);

/// Which global positions each rank owns (its shard), in local order, as runs.
///
/// Example: zigzag of 16 tokens over 2 ranks cuts 4 chunks of 4; rank 0 owns [0, 4) and [12, 16), rank 1 [4, 8) and
/// [8, 12).
class Layout {
public:
    /// `shards[r]` are rank r's runs in local order. Throws Error unless together they own each of 0..tokens-1 once.
    Layout(std::string name, std::int64_t tokens, const std::vector<std::vector<Run>>& shards);

    const std::string& name() const { return name_; }
    int ranks() const { return static_cast<int>(begin_.size()) - 1; }
    std::int64_t tokens() const { return tokens_; }

    std::span<const Run> shard(int rank) const {
        return std::span(runs_).subspan(
            begin_[static_cast<std::size_t>(rank)],
            begin_[static_cast<std::size_t>(rank) + 1] - begin_[static_cast<std::size_t>(rank)]);
    }
    std::int64_t shard_tokens(int rank) const { return shard_tokens_[static_cast<std::size_t>(rank)]; }
    std::int64_t largest_shard() const;

    /// The rank that owns a position, and the `index` of the position in that rank's local order. Throws Error if it
    /// lies outside the sequence. Linear in the number of runs.
    struct Owner {
        int rank = 0;
        std::int64_t index = 0;
        friend constexpr bool operator==(const Owner&, const Owner&) = default;
    };
    Owner owner_of(std::int64_t position) const;

    /// All positions of a rank in local order, as needed to scatter and gather tensors.
    std::vector<std::int64_t> positions(int rank) const { return positions_of(shard(rank)); }

private:
    std::string name_;
    std::int64_t tokens_;
    std::vector<Run> runs_;           // of all ranks, one after another
    std::vector<std::size_t> begin_;  // ranks + 1 offsets into runs_
    std::vector<std::int64_t> shard_tokens_;
};

/// Positions as a list of runs, found greedily from left to right.
std::vector<Run> runs_of(std::span<const std::int64_t> positions);

/// Makes a layout of the mask's tokens from what a user types: "zigzag", "striped:16", "file:permutation.txt". Throws
/// Error if the name is unknown or the number of tokens is not a multiple of layout_granularity().
Layout make_layout(const std::string& spec, const Mask& mask, int ranks);

/// The same without a mask; throws Error also for a layout that depends on the mask.
Layout make_layout(const std::string& spec, std::int64_t tokens, int ranks);

/// The number of tokens must be a multiple of this for the layout to divide them over `ranks`; padding rounds up to it.
std::int64_t layout_granularity(const std::string& spec, int ranks);

/// The layout of a KV cache whose sequences grow after a prefill. Sequence s was prefilled with `lengths[s]` tokens,
/// padded to a multiple of the granularity of layout `spec` and distributed by that layout; the cache has room for
/// `appended` more tokens of each sequence. Positions below the padded length stay where `spec` puts them, so new
/// tokens first take the places of padding; later positions go to the ranks in turn. Owner and slot of a token
/// therefore depend only on its position, and no token ever moves.
///
/// Positions number the rooms of all sequences one after another: room s has lengths[s] + appended positions and begins
/// at cache_begin(lengths, appended, s). Throws Error if there is no sequence, a length is below 1 or `appended` is
/// negative.
Layout cache_layout(const std::string& spec, std::span<const std::int64_t> lengths, std::int64_t appended, int ranks);
std::int64_t cache_begin(std::span<const std::int64_t> lengths, std::int64_t appended, std::size_t sequence);

/// What makes a layout of one name, from the arguments that a user typed after its colon.
struct LayoutFactory {
    /// `tokens` is a multiple of the granularity.
    std::function<Layout(const std::string& arguments, std::int64_t tokens, int ranks)> make = {};
    /// Given instead of `make` by a layout that depends on the mask.
    std::function<Layout(const std::string& arguments, const Mask& mask, int ranks)> make_for = {};
    /// See layout_granularity(); the number of ranks if not given. Called before `make`, so it also refuses arguments
    /// that are wrong.
    std::function<std::int64_t(const std::string& arguments, int ranks)> granularity = {};
};
Registry<LayoutFactory>& layouts();

/// Makes a layout known by name. One that reads a file can give no examples.
using LayoutRegistration = Registration<layouts>;

}  // namespace ringlab::layouts
