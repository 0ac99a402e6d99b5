#include "layouts/layouts/layout.hpp"

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/program/timeline.hpp"
#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <bit>
#include <limits>
#include <ostream>
#include <random>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

using Shards = std::vector<std::vector<std::int64_t>>;

struct LayoutCase {
    std::string spec;
    std::int64_t tokens;
    Shards shards;
};
std::ostream& operator<<(std::ostream& out, const LayoutCase& c) { return out << c.spec << " of " << c.tokens; }

const std::vector<LayoutCase> layout_cases{
    {"contiguous", 6, {{0, 1}, {2, 3}, {4, 5}}},
    {"contiguous", 3, {{0, 1, 2}}},
    {"zigzag", 16, {{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}}},
    {"zigzag", 6, {{0, 5}, {1, 4}, {2, 3}}},
    {"zigzag", 2, {{0, 1}}},
    {"striped", 6, {{0, 3}, {1, 4}, {2, 5}}},
    {"striped:1", 6, {{0, 2, 4}, {1, 3, 5}}},
    {"striped:2", 8, {{0, 1, 4, 5}, {2, 3, 6, 7}}},
    {"striped:3", 9, {{0, 1, 2}, {3, 4, 5}, {6, 7, 8}}},
};

struct BadLayout {
    std::string spec;
    std::int64_t tokens;
    int ranks;
    std::string error;
};
std::ostream& operator<<(std::ostream& out, const BadLayout& c) { return out << c.spec << " of " << c.tokens; }

const std::vector<BadLayout> bad_layouts{
    {"contiguous", 10, 4,
     "10 tokens do not divide into layout contiguous over 4 ranks: they must be a multiple of 4; pad them to 12"},
    {"zigzag", 20, 4,
     "20 tokens do not divide into layout zigzag over 4 ranks: they must be a multiple of 8; pad them to 24"},
    {"striped:16", 100, 4,
     "100 tokens do not divide into layout striped:16 over 4 ranks: they must be a multiple of 64; pad them to 128"},
    {"contiguous", 0, 4, "tokens is 0; a layout spreads 1 to 2^31 tokens"},
    {"contiguous", -8, 4, "tokens is -8; a layout spreads 1 to 2^31 tokens"},
    {"contiguous", std::numeric_limits<std::int64_t>::max(), 4,
     "tokens is 9223372036854775807; a layout spreads 1 to 2^31 tokens"},
    {"zigzag", 8, 0, "ranks is 0; a layout spreads tokens over 1 to 1048576 ranks"},
    {"zigzag", 8, -2, "ranks is -2; a layout spreads tokens over 1 to 1048576 ranks"},
    {"zigzag", 8, 2147483647, "ranks is 2147483647; a layout spreads tokens over 1 to 1048576 ranks"},
    {"zigzag:2", 8, 2, "layout zigzag takes no arguments, got '2'"},
    {"contiguous:", 8, 3, "layout 'contiguous:' has nothing after its colon; write it as contiguous"},
    {"striped:0", 8, 2, "the stripe width is '0'; it must be a whole number of at least 1"},
    {"striped:x", 8, 2, "the stripe width is 'x'; it must be a whole number of at least 1"},
    {"striped:9223372036854775807", 8, 2, "the stripe width 9223372036854775807 is too large for 2 ranks"},
    {"striped:2", std::int64_t{1} << 31, 2,
     "stripes of width 2 cut 2147483648 tokens into 1073741824 runs; at most 16777216 are supported, use wider "
     "stripes (or width 1)"},
    {"file", 8, 2, "layout file needs a path, as in file:permutation.txt"},
    {"file:/no/such", 8, 2, "cannot read a permutation from file '/no/such'"},
    {"file:/", 8, 2, "cannot read a permutation from file '/'"},
};

struct BadPermutation {
    std::string text;
    std::string error;  // after "permutation 'PATH' "
};
std::ostream& operator<<(std::ostream& out, const BadPermutation& c) { return out << '\'' << c.text << '\''; }

const std::vector<BadPermutation> bad_permutations{
    {"", "holds 0 positions; the sequence has 4 tokens"},
    {"0 1 2", "holds 3 positions; the sequence has 4 tokens"},
    {"0 1 2 3 0", "holds position 0 as number 5; it must be a permutation of 0..3"},
    {"0 1 2 4", "holds position 4 as number 4; it must be a permutation of 0..3"},
    {"3 1 2 1", "holds position 1 twice; it must be a permutation of 0..3"},
    {"2 2 2 2", "holds position 2 twice; it must be a permutation of 0..3"},
    {"0 1 2\n\n3\n", "has lines of 3, 1 positions for 2 ranks; every rank owns 2"},
};

Shards shards_of(const Layout& layout) {
    Shards shards;
    for (int rank = 0; rank < layout.ranks(); ++rank) shards.push_back(layout.positions(rank));
    return shards;
}

/// How many tokens are not owned exactly once.
int wrongly_owned(const Layout& layout) {
    std::vector<int> owners(static_cast<std::size_t>(layout.tokens()));
    for (const auto& shard : shards_of(layout))
        for (const auto position : shard) ++owners[static_cast<std::size_t>(position)];
    return static_cast<int>(std::count_if(owners.begin(), owners.end(), [](int count) { return count != 1; }));
}

/// Pairs that each rank's rows see.
std::vector<std::int64_t> pairs_of(const Layout& layout, const Mask& mask) {
    const Run all{0, 1, mask.tokens()};
    const KeyCounter keys({&all, 1});
    std::vector<std::int64_t> pairs;
    for (int rank = 0; rank < layout.ranks(); ++rank) pairs.push_back(visible_pairs(mask, layout.shard(rank), keys));
    return pairs;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layout)

BOOST_DATA_TEST_CASE(worked_examples_come_out_as_written, data::make(layout_cases)) {
    const auto layout = make_layout(sample.spec, sample.tokens, static_cast<int>(sample.shards.size()));
    BOOST_CHECK(shards_of(layout) == sample.shards);
    BOOST_TEST(layout.tokens() == sample.tokens);
}

BOOST_DATA_TEST_CASE(shards_own_each_token_exactly_once, data::make(layout_specs()) * data::make(rank_counts()), spec,
                     ranks) {
    const auto granularity = spec.ends_with("shuffled") ? ranks : layout_granularity(spec, ranks);
    for (const std::int64_t multiple : {1, 2, 3, 7, 20}) {
        const auto layout = make_case_layout(spec, make_mask("causal", granularity * multiple), ranks);
        BOOST_TEST(layout.ranks() == ranks);
        BOOST_TEST(wrongly_owned(layout) == 0);
        for (int rank = 0; rank < ranks; ++rank) {
            BOOST_TEST(layout.shard_tokens(rank) == granularity * multiple / ranks);
            BOOST_TEST(static_cast<std::int64_t>(layout.positions(rank).size()) == layout.shard_tokens(rank));
        }
        BOOST_TEST(layout.largest_shard() == granularity * multiple / ranks);
    }
}

BOOST_AUTO_TEST_CASE(shards_are_a_short_list_of_runs) {
    constexpr auto tokens = std::int64_t{1} << 24;
    for (const int rank : {0, 3, 7}) {
        BOOST_TEST(make_layout("contiguous", tokens, 8).shard(rank).size() == 1);
        BOOST_TEST(make_layout("zigzag", tokens, 8).shard(rank).size() == 2);
        BOOST_TEST(make_layout("striped", tokens, 8).shard(rank).size() == 1);
        BOOST_TEST(make_layout("striped:64", tokens, 8).shard(rank).size() == tokens / (8 * 64));
    }
}

BOOST_DATA_TEST_CASE(sizes_and_specs_that_do_not_fit_are_explained, data::make(bad_layouts)) {
    BOOST_TEST(error_of([&] { make_layout(sample.spec, sample.tokens, sample.ranks); }) == sample.error);
}

BOOST_AUTO_TEST_CASE(a_permutation_file_deals_positions_in_its_order) {
    const TextFile file("5 4\n3 0\t1\n 2 ");
    const auto layout = make_layout("file:" + file.path(), 6, 2);
    BOOST_CHECK((shards_of(layout) == Shards{{5, 4, 3}, {0, 1, 2}}));
    BOOST_TEST(layout.name() == "file:" + file.path());
}

BOOST_DATA_TEST_CASE(a_file_that_is_no_permutation_is_explained, data::make(bad_permutations)) {
    const TextFile file(sample.text);
    BOOST_TEST(error_of([&] { make_layout("file:" + file.path(), 4, 2); }) ==
               "permutation '" + file.path() + "' " + sample.error);
}

BOOST_AUTO_TEST_CASE(a_word_in_a_permutation_file_is_quoted) {
    for (const std::string word : {"one", "-1", "1.0", "99999999999999999999"}) {
        const TextFile file("0 " + word + " 2 3");
        BOOST_TEST(error_of([&] { make_layout("file:" + file.path(), 4, 2); }) ==
                   "a position in '" + file.path() + "' is '" + word + "'; it must be a whole number of at least 0");
    }
}

BOOST_AUTO_TEST_CASE(a_list_of_positions_becomes_few_runs_in_the_same_order) {
    const auto runs = [](std::vector<std::int64_t> positions) { return runs_of(positions); };
    BOOST_CHECK((runs({}) == std::vector<Run>{}));
    BOOST_CHECK((runs({4}) == std::vector<Run>{{4, 1, 1}}));
    BOOST_CHECK((runs({0, 1, 2, 7, 8}) == std::vector<Run>{{0, 1, 3}, {7, 1, 2}}));
    BOOST_CHECK((runs({1, 4, 7, 10}) == std::vector<Run>{{1, 3, 4}}));
    BOOST_CHECK((runs({3, 2, 1}) == std::vector<Run>{{3, 1, 1}, {2, 1, 1}, {1, 1, 1}}));
    std::mt19937_64 random(3);
    for (int trial = 0; trial < 300; ++trial) {
        std::vector<std::int64_t> positions;
        for (auto n = pick(random, 0, 12); n > 0; --n) positions.push_back(pick(random, 0, 8));
        BOOST_TEST(positions_of(runs_of(positions)) == positions, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(runs_of_any_strides_are_accepted_if_and_only_if_they_own_each_token_once) {
    std::mt19937_64 random(4);
    int accepted = 0;
    for (int trial = 0; trial < 4000; ++trial) {
        const auto tokens = pick(random, 1, 6);
        const auto common_stride = pick(random, 0, 1) ? pick(random, 1, 3) : 0;
        std::vector<std::vector<Run>> shards(static_cast<std::size_t>(pick(random, 1, 3)));
        std::vector<int> owners(static_cast<std::size_t>(tokens));
        bool inside = true;
        for (auto& shard : shards)
            for (auto n = pick(random, 0, 2); n > 0; --n) {
                const Run run{pick(random, 0, tokens - 1), common_stride ? common_stride : pick(random, 1, 3),
                              pick(random, 1, 4)};
                shard.push_back(run);
                inside = inside && run.last() < tokens;
                for (std::int64_t i = 0; i < run.count && run.at(i) < tokens; ++i)
                    ++owners[static_cast<std::size_t>(run.at(i))];
            }
        const bool right = inside && std::all_of(owners.begin(), owners.end(), [](int count) { return count == 1; });
        BOOST_TEST((error_of([&] { Layout("l", tokens, shards); }) == "(no error)") == right);
        accepted += right;
    }
    BOOST_TEST(accepted > 20);  // the trials do reach both sides
}

BOOST_AUTO_TEST_CASE(a_run_outside_the_sequence_is_named) {
    BOOST_TEST(error_of([] {
                   Layout("l", 4, {{{1, 2, 3}}});
               }) == "layout l: run of 3 positions from 1 by 2 does not lie inside the 4 tokens");
    BOOST_TEST(error_of([] { Layout("l", 4, {}); }) == "layout l has no ranks; it needs at least 1");
    BOOST_TEST(error_of([] {
                   Layout("l", 4, {{{0, 1, 3}}});
               }) == "layout l owns 3 positions of 4 tokens; it must own each exactly once");
}

// Rows of chunks of two see 3, 7, 11 and 15 pairs: 15 and 3 for one rank, 11 and 7 for the other.
BOOST_AUTO_TEST_CASE(balanced_deals_chunks_by_what_their_rows_see) {
    const auto causal = make_layout("balanced:2", make_mask("causal", 8), 2);
    const std::vector<std::vector<std::int64_t>> expected{{0, 1, 6, 7}, {2, 3, 4, 5}};
    BOOST_CHECK(shards_of(causal) == expected);
    BOOST_TEST(causal.shard(1).size() == 1u);
    BOOST_TEST(causal.name() == "balanced:2");
    // Documents of 4 and 2, 2: chunks of 3, 7, 3, 3. The longest has to go with one of the others.
    const auto packed = make_layout("balanced:2", make_mask("causal+documents:4,2,2", 8), 2);
    BOOST_TEST(pairs_of(packed, make_mask("causal+documents:4,2,2", 8)) == (std::vector<std::int64_t>{10, 6}),
               boost::test_tools::per_element());
}

// Longest first gives 9 + 6 + 5 and 8 + 7 + 1, twice: then 9 and 7 change places.
BOOST_AUTO_TEST_CASE(balanced_swaps_what_longest_first_leaves_uneven) {
    std::vector<MaskSegment> segments;
    for (const std::int64_t seen : {9, 8, 7, 6, 5, 1}) {
        const auto row = static_cast<std::int64_t>(2 * segments.size());
        segments.push_back({{row, row + 2}, {0, 0}, {seen, 0}});
    }
    const Mask steps("steps", 12, segments);
    BOOST_TEST(pairs_of(make_layout("balanced:3", steps, 2), steps) == (std::vector<std::int64_t>{36, 36}),
               boost::test_tools::per_element());
}

/// The fewest pairs that the busiest of two ranks can have, by trying every split.
std::int64_t best_of_two(const Mask& mask, std::int64_t chunks) {
    std::vector<std::int64_t> pairs;
    for (std::int64_t i = 0; i < chunks; ++i) {
        const Run rows{i * mask.tokens() / chunks, 1, mask.tokens() / chunks}, all{0, 1, mask.tokens()};
        pairs.push_back(visible_pairs(mask, {&rows, 1}, KeyCounter({&all, 1})));
    }
    auto best = std::numeric_limits<std::int64_t>::max();
    for (std::uint32_t split = 0; split < 1u << chunks; ++split) {
        if (std::popcount(split) != chunks / 2) continue;
        std::int64_t one = 0, other = 0;
        for (std::int64_t i = 0; i < chunks; ++i) (split >> i & 1 ? one : other) += pairs[static_cast<std::size_t>(i)];
        best = std::min(best, std::max(one, other));
    }
    return best;
}

// A swap between two ranks is looked for until none helps. What is left may be above the best split, but by no more
// than the difference that a swap makes; over many random masks it comes near on average.
BOOST_AUTO_TEST_CASE(balanced_is_nearly_as_good_as_the_best_split) {
    std::mt19937_64 random(5);
    double excess = 0;
    int masks = 0;
    for (int i = 0; i < 200; ++i) {
        const auto mask = random_mask(random, 120);
        const auto best = best_of_two(mask, 10);
        if (best == 0) continue;
        const auto found = pairs_of(make_layout("balanced:5", mask, 2), mask);
        const auto over = static_cast<double>(std::max(found[0], found[1])) / static_cast<double>(best);
        BOOST_TEST(over >= 1);
        BOOST_TEST(over <= 4.0 / 3);  // of longest first alone (Graham 1969)
        excess += over - 1;
        ++masks;
    }
    BOOST_TEST(masks > 100);
    BOOST_TEST(excess / masks < 0.01);
}

BOOST_AUTO_TEST_CASE(balanced_balances_packed_documents_that_no_fixed_layout_does) {
    std::mt19937_64 random(9);
    for (int i = 0; i < 30; ++i) {
        constexpr std::int64_t tokens = 32768;
        std::string lengths;
        std::int64_t left = tokens;
        for (std::lognormal_distribution<> length(6.5, 1.3); left > 0;) {
            const auto next = std::clamp<std::int64_t>(static_cast<std::int64_t>(length(random)), 1, left);
            lengths += (lengths.empty() ? "" : ",") + std::to_string(next);
            left -= next;
        }
        const auto mask = make_mask("causal+documents:" + lengths, tokens);
        const auto imbalance_of = [&](const std::string& layout) {
            const auto pairs = pairs_of(make_layout(layout, mask, 8), mask);
            return imbalance(std::vector<double>(pairs.begin(), pairs.end()));
        };
        BOOST_TEST(imbalance_of("balanced") < 1.05);
        for (const auto* fixed : {"contiguous", "zigzag"}) BOOST_TEST(imbalance_of("balanced") < imbalance_of(fixed));
    }
}

BOOST_AUTO_TEST_CASE(balanced_wants_a_mask_and_chunks) {
    BOOST_TEST(error_of([] { make_layout("balanced", 256, 4); }) ==
               "layout balanced follows the mask, and none is given; give that of the attention, as causal");
    const auto mask = make_mask("causal", 100);
    BOOST_TEST(error_of([&] { make_layout("balanced:0", mask, 4); }) ==
               "the number of chunks of a rank is '0'; it must be a whole number of at least 1");
    BOOST_TEST(
        error_of([&] { make_layout("balanced", mask, 4); }) ==
        "100 tokens do not divide into layout balanced over 4 ranks: they must be a multiple of 64; pad them to 128");
    BOOST_TEST(error_of([&] { make_layout("balanced:16777216", mask, 4); }) ==
               "16777216 chunks for each of 4 ranks are too many; at most 16777216 in all");
}

// Two sequences of 5 and 2 tokens over 2 ranks, padded to 6 and 2, with room for 3 more each: rooms begin at 0 and 8.
BOOST_AUTO_TEST_CASE(a_cache_puts_new_tokens_into_padding_first_and_then_around_the_ranks) {
    const std::vector<std::int64_t> lengths{5, 2};
    const auto layout = cache_layout("contiguous", lengths, 3, 2);
    BOOST_TEST(cache_begin(lengths, 3, 1) == 8);
    BOOST_TEST(layout.tokens() == 13);
    BOOST_TEST(layout.positions(0) == (std::vector<std::int64_t>{0, 1, 2, 6, 8, 10, 12}),
               boost::test_tools::per_element());
    BOOST_TEST(layout.positions(1) == (std::vector<std::int64_t>{3, 4, 5, 7, 9, 11}), boost::test_tools::per_element());
    BOOST_TEST((layout.owner_of(5) == Layout::Owner{1, 2}));  // the first new token lies where padding was
    BOOST_TEST((layout.owner_of(6) == Layout::Owner{0, 3}));
}

BOOST_DATA_TEST_CASE(tokens_of_a_cache_stay_where_a_padded_prefill_put_them_whatever_comes_after,
                     Names(ringlab::tests::layout_examples) * data::make(rank_counts()), spec, ranks) {
    const std::vector<std::int64_t> lengths{37, 5, 64};
    for (std::size_t sequence = 0; sequence < lengths.size(); ++sequence) {
        const auto padded = ringlab::tests::padded_tokens(spec, lengths[sequence], ranks);
        const auto prefill = make_layout(spec, make_mask("causal", padded), ranks);
        for (const std::int64_t appended : {0, 1, 7, 50}) {
            const auto cache = cache_layout(spec, lengths, appended, ranks);
            const auto begin = cache_begin(lengths, appended, sequence);
            for (std::int64_t token = 0; token < lengths[sequence] + appended; ++token) {
                const auto owner = cache.owner_of(begin + token);
                const auto expected =
                    token < padded ? prefill.owner_of(token).rank : static_cast<int>((token - padded) % ranks);
                BOOST_TEST(owner.rank == expected);
                BOOST_TEST(cache.positions(owner.rank)[static_cast<std::size_t>(owner.index)] == begin + token);
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(a_cache_says_what_is_wrong_with_its_lengths) {
    const auto message = [](std::vector<std::int64_t> lengths) {
        return error_of([&] { cache_layout("zigzag", lengths, 1, 2); });
    };
    BOOST_TEST(message({4, 0}) == "sequence 1 of a cache has 0 tokens; it must have at least 1");
    BOOST_TEST(message({}) == "a cache of 0 sequences with room for 1 more tokens each");
}

BOOST_AUTO_TEST_SUITE_END()
