#include "layouts/layouts/visible_pairs.hpp"

#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <set>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

/// Up to `most` runs of strides up to 5 in [0, limit) that hold no position twice.
std::vector<Run> random_runs(std::mt19937_64& random, std::int64_t limit, std::int64_t most) {
    std::vector<Run> runs;
    std::set<std::int64_t> taken;
    for (auto n = pick(random, 1, most); n > 0; --n) {
        const Run run{pick(random, 0, limit - 1), pick(random, 1, 5), pick(random, 1, 9)};
        const auto fits = [&](std::int64_t position) { return position < limit && !taken.contains(position); };
        const auto positions = positions_of({&run, 1});
        if (!std::all_of(positions.begin(), positions.end(), fits)) continue;
        taken.insert(positions.begin(), positions.end());
        runs.push_back(run);
    }
    return runs;
}

struct Tiles {
    std::int64_t rows;
    std::int64_t keys;
};
std::ostream& operator<<(std::ostream& out, const Tiles& t) { return out << t.rows << "x" << t.keys; }

/// What a tile of rows x keys is by the element-wise definition.
TileKind kind_of(const Mask& mask, const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& keys) {
    const auto seen = count_visible(mask, rows, keys);
    if (seen == 0) return TileKind::empty;
    return seen == static_cast<std::int64_t>(rows.size() * keys.size()) ? TileKind::full : TileKind::partial;
}

std::vector<std::int64_t> part(const std::vector<std::int64_t>& all, std::int64_t begin, std::int64_t end) {
    return {all.begin() + begin, all.begin() + std::min<std::int64_t>(end, std::ssize(all))};
}

/// Compares all tiles of rows and keys with the definition; returns how many are called full or empty.
std::int64_t check_tiles(const Mask& mask, std::span<const Run> queries, std::span<const Run> owned, Tiles tile) {
    // Without other keys than an interval's and padding the hull of a tile decides 'full' exactly; for full and causal
    // also 'empty', as there every row's interval begins at key 0.
    const bool plain = mask.all_keys_valid() && std::ranges::none_of(mask.segments(), [](const MaskSegment& segment) {
                           return segment.sink > 0 || !segment.earlier.empty();
                       });
    const bool from_zero = plain && (mask.name() == "full" || mask.name() == "causal");
    const auto rows = positions_of(queries), keys = positions_of(owned);
    const auto columns = key_tiles(mask, owned, tile.keys);
    BOOST_TEST(std::ssize(columns) == (std::ssize(keys) + tile.keys - 1) / tile.keys);
    std::int64_t wrong = 0, decided = 0;
    std::vector<TileCounts> expected;
    for (std::int64_t begin = 0; begin < std::ssize(rows); begin += tile.rows) {
        const auto end = std::min(begin + tile.rows, std::ssize(rows));
        const auto hull = row_hull(mask, queries, begin, end);
        auto& row = expected.emplace_back();
        for (const auto& column : columns) {
            const auto called = classify(hull, column);
            const auto is = kind_of(mask, part(rows, begin, end), part(keys, column.begin, column.end));
            wrong += called != TileKind::partial && called != is;
            wrong += plain && is == TileKind::full && called != TileKind::full;
            wrong += from_zero && called != is;
            row.full += called == TileKind::full;
            row.partial += called == TileKind::partial;
            decided += called != TileKind::partial;
        }
    }
    BOOST_TEST(wrong == 0, "wrong tiles, " << tile << ", " << mask.name());
    BOOST_TEST((tile_work(mask, queries, owned, tile.rows, tile.keys).queries == expected));
    return decided;
}

std::int64_t all_pairs(const Mask& mask, const Layout& layout) {
    std::int64_t sum = 0;
    for (int owner = 0; owner < layout.ranks(); ++owner) {
        const KeyCounter keys(layout.shard(owner));
        for (int rank = 0; rank < layout.ranks(); ++rank) sum += visible_pairs(mask, layout.shard(rank), keys);
    }
    return sum;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(work)

BOOST_AUTO_TEST_CASE(a_key_counter_counts_the_positions_below_another) {
    std::mt19937_64 random(11);
    for (int trial = 0; trial < 500; ++trial) {
        const auto runs = random_runs(random, 80, trial % 2 ? 4 : 30);  // either side of the switch to a search
        const KeyCounter keys(runs);
        const auto positions = positions_of(runs);
        const auto below = [&](std::int64_t x) {
            return std::count_if(positions.begin(), positions.end(), [&](std::int64_t p) { return p < x; });
        };
        int wrong = 0;
        for (std::int64_t x = -5; x < 90; ++x) wrong += keys.below(x) != below(x);
        BOOST_REQUIRE_EQUAL(wrong, 0);
        for (int sums = 0; sums < 40; ++sums) {
            const auto start = pick(random, -20, 90), step = pick(random, 0, 7), count = pick(random, 0, 30);
            std::int64_t expected = 0;
            for (std::int64_t i = 0; i < count; ++i) expected += below(start + step * i);
            wrong += keys.sum_below(start, step, count) != expected;
        }
        BOOST_REQUIRE_EQUAL(wrong, 0);
    }
}

BOOST_AUTO_TEST_CASE(visible_pairs_hold_for_random_masks_and_runs) {
    std::mt19937_64 random(12);
    const int trials = trials_in_this_build(3000, 8);
    for (int trial = 0; trial < trials; ++trial) {
        const auto tokens = pick(random, 20, 60);
        const auto mask = random_mask(random, tokens);
        const auto queries = random_runs(random, tokens, 6), owned = random_runs(random, tokens, trial % 2 ? 4 : 20);
        BOOST_REQUIRE_EQUAL(visible_pairs(mask, queries, KeyCounter(owned)),
                            count_visible(mask, positions_of(queries), positions_of(owned)));
    }
}

// A sample: shards of few runs, which 2^31 tokens take a moment to make, and one of 2048 runs. Counting that walks over
// tokens would take minutes.
BOOST_DATA_TEST_CASE(pairs_of_2_to_the_31_tokens_do_not_overflow,
                     data::make({"contiguous", "zigzag", "striped", "striped:131072"}), layout_spec) {
    constexpr auto s = std::int64_t{1} << 31;
    const auto layout = make_layout(layout_spec, s, 8);
    BOOST_TEST(all_pairs(make_mask("causal", s), layout) == s / 2 * (s + 1));
    BOOST_TEST(all_pairs(make_mask("full", s), layout) == s * s);
    // A window of w keys: row q < w sees q + 1 of them.
    constexpr std::int64_t w = 1'000'003;
    BOOST_TEST(all_pairs(make_mask("window:1000002,0", s), layout) == w * (w + 1) / 2 + (s - w) * w);
    // With a sink of n keys, row q sees min(n, q - w + 1) more.
    constexpr std::int64_t n = 1001;
    BOOST_TEST(all_pairs(make_mask("window:1000002,0+sink:1001", s), layout) ==
               w * (w + 1) / 2 + (s - w) * w + n * (n + 1) / 2 + (s - w - n) * n);
    // 2^10 documents of 2^21 tokens, causal.
    constexpr auto d = std::int64_t{1} << 21;
    BOOST_TEST(all_pairs(make_mask("causal+documents:2097152x1024", s), layout) == 1024 * (d * (d + 1) / 2));
    // 3 padded keys at either end.
    BOOST_TEST(all_pairs(make_mask("causal+valid:3-2147483645", s), layout) == (s - 6) / 2 * (s - 5));
}

BOOST_DATA_TEST_CASE(tiles_are_called_full_or_empty_only_if_they_are,
                     data::make(mask_specs()) * data::make(layout_specs()), mask_spec, layout_spec) {
    for (const int ranks : {1, 3, 4}) {
        if (!runs_in_this_build(8)) continue;
        const auto [mask, layout] = make_case(mask_spec, layout_spec, ranks);
        for (const auto tile : {Tiles{1, 1}, Tiles{5, 4}, Tiles{4, 16}, Tiles{64, 7}, Tiles{1000, 1000}})
            for (int rank = 0; rank < ranks; ++rank)
                for (int owner = 0; owner < ranks; ++owner)
                    check_tiles(mask, layout.shard(rank), layout.shard(owner), tile);
    }
}

BOOST_AUTO_TEST_CASE(tiles_of_random_masks_and_runs_are_called_full_or_empty_only_if_they_are) {
    std::mt19937_64 random(13);
    std::int64_t decided = 0;
    const int trials = trials_in_this_build(2000, 8);
    for (int trial = 0; trial < trials; ++trial) {
        const auto tokens = pick(random, 20, 60);
        const auto mask = random_mask(random, tokens);
        const auto queries = random_runs(random, tokens, 4), owned = random_runs(random, tokens, 6);
        decided += check_tiles(mask, queries, owned, {pick(random, 1, 8), pick(random, 1, 8)});
    }
    BOOST_TEST(decided > trials / 2);  // the trials do reach more than partial tiles
}

BOOST_AUTO_TEST_SUITE_END()
