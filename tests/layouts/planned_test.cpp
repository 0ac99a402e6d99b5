#include "layouts/planned/planned.hpp"

#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/planned/planned_pricer.hpp"
#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

/// Lengths of which half are short and few are long, as those of documents, that make up `tokens`.
std::string random_documents(std::mt19937_64& random, std::int64_t tokens) {
    std::string text = "causal+documents:";
    for (std::lognormal_distribution<> length(6.3, 1.6); tokens > 0;) {
        const auto next = std::clamp<std::int64_t>(static_cast<std::int64_t>(length(random)), 1, tokens);
        text += std::to_string(next);
        tokens -= next;
        if (tokens > 0) text += ",";
    }
    return text;
}

/// Work alone counts, and a pair as much as any other: with links that cost nothing.
LayoutPrices pairs_alone() {
    LayoutPrices prices;
    for (auto& pass : prices.passes) pass = {.pair = 1};
    prices.tile = 1;
    return prices;
}

double imbalance_of(const LayoutCost& cost) {
    const auto mean = std::accumulate(cost.work.begin(), cost.work.end(), 0.0) / static_cast<double>(cost.work.size());
    return *std::ranges::max_element(cost.work) / mean;
}

/// Which ranks own tokens of an interval.
std::vector<int> owners(const Layout& layout, Interval tokens) {
    std::vector<int> found;
    for (int rank = 0; rank < layout.ranks(); ++rank)
        if (!intersect_runs(layout.shard(rank), {&tokens, 1}).empty()) found.push_back(rank);
    return found;
}

bool are_equal(const Layout& a, const Layout& b) {
    for (int rank = 0; rank < a.ranks(); ++rank)
        if (!std::ranges::equal(a.shard(rank), b.shard(rank))) return false;
    return a.ranks() == b.ranks();
}

/// The price of the best layout of `blocks` equal blocks of consecutive tokens, as many for each rank: tries all.
double best_of_blocks(const Mask& mask, int ranks, int blocks, const LayoutPrices& prices) {
    const auto size = mask.tokens() / blocks;
    std::vector<int> owner;
    for (int rank = 0; rank < ranks; ++rank) owner.insert(owner.end(), static_cast<std::size_t>(blocks / ranks), rank);
    auto best = std::numeric_limits<double>::infinity();
    do {
        std::vector<std::vector<Run>> shards(static_cast<std::size_t>(ranks));
        for (int block = 0; block < blocks; ++block)
            shards[static_cast<std::size_t>(owner[static_cast<std::size_t>(block)])].push_back({block * size, 1, size});
        best = std::min(best, layout_cost({"blocks", mask.tokens(), shards}, mask, prices).total());
    } while (std::ranges::next_permutation(owner).found);
    return best;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan)

BOOST_AUTO_TEST_CASE(parts_are_the_documents_of_a_packing) {
    const auto parts = packed_documents(make_mask("causal+documents:4,1,3+valid:0-8", 8));
    BOOST_REQUIRE(parts.size() == 3u);
    BOOST_TEST((parts[1].tokens == Interval{4, 5}));
    BOOST_TEST(parts[0].pairs == 10);
    BOOST_TEST(parts[1].pairs == 1);
    BOOST_TEST(parts[2].pairs == 6);
    BOOST_TEST(packed_documents(make_mask("causal", 8)).size() == 1u);
    const auto padded = packed_documents(pad(make_mask("full", 6), 9));
    BOOST_REQUIRE(padded.size() == 2u);
    BOOST_TEST((padded[1].tokens == Interval{6, 9}));
    BOOST_TEST(padded[1].pairs == 0);
}

BOOST_AUTO_TEST_CASE(no_row_sees_a_key_outside_its_part_and_parts_have_all_pairs) {
    std::mt19937_64 random(11);
    std::size_t several = 0;
    for (int trial = 0; trial < 300; ++trial) {
        const auto tokens = pick(random, 1, 24);
        const auto mask = random_mask(random, tokens);
        const auto parts = packed_documents(mask);
        several += parts.size() > 1;
        std::int64_t next = 0;
        for (const auto& part : parts) {
            BOOST_TEST(part.tokens.begin == next);
            next = part.tokens.end;
            std::int64_t pairs = 0, outside = 0;
            for (auto row = part.tokens.begin; row < part.tokens.end; ++row)
                for (std::int64_t key = 0; key < tokens; ++key)
                    (part.tokens.contains(key) ? pairs : outside) += mask.visible(row, key);
            BOOST_TEST(outside == 0);
            BOOST_TEST(part.pairs == static_cast<double>(pairs));
        }
        BOOST_TEST(next == tokens);
    }
    BOOST_TEST(several > 50u);
}

BOOST_AUTO_TEST_CASE(any_packing_on_any_ranks_gives_each_rank_as_many_tokens_and_the_same_again) {
    std::mt19937_64 random(12);
    for (int trial = 0; trial < 120; ++trial) {
        const auto ranks = static_cast<int>(pick(random, 1, 20));
        const auto tokens = ranks * pick(random, 1, 3000);
        const auto mask = trial % 3 ? make_mask(random_documents(random, tokens), tokens) : random_mask(random, tokens);
        auto prices = trial % 2 ? default_layout_prices() : pairs_alone();
        prices.ranks_per_host = static_cast<int>(pick(random, 1, 9));
        prices.crosses_once = pick(random, 0, 1);
        const auto layout = planned_layout(mask, ranks, prices);  // Layout refuses what is not owned once
        for (int rank = 0; rank < ranks; ++rank) BOOST_TEST(layout.shard_tokens(rank) == tokens / ranks);
        BOOST_TEST(are_equal(layout, planned_layout(mask, ranks, prices)));
    }
}

// The pairs of the longest document take its rank 2 us forward and 6 us backward longer than the mean. A launch for
// another owner's keys takes 10 and 30.
BOOST_AUTO_TEST_CASE(documents_that_fill_shares_stay_whole) {
    const auto mask = make_mask("causal+documents:250,125,375,175,325,500,125,125", 2000);
    const auto layout = planned_layout(mask, 4, default_layout_prices());
    for (const auto& part : packed_documents(mask)) BOOST_TEST(owners(layout, part.tokens).size() == 1u);
    const auto cost = layout_cost(layout, mask, default_layout_prices());
    BOOST_TEST(cost.most_gathered == 0);
}

// 32k tokens of 128k have 16 of 19 pairs: they need 27 of the 32 ranks, with a share of 4k each.
BOOST_AUTO_TEST_CASE(a_long_document_is_spread_as_its_work_needs_and_balanced) {
    const auto mask = make_mask("causal+documents:2048x16,32768,2048x32", 131072);
    const auto layout = planned_layout(mask, 32, pairs_alone());
    BOOST_TEST(owners(layout, {32768, 65536}).size() >= 26u);
    BOOST_TEST(imbalance_of(layout_cost(layout, mask, pairs_alone())) < 1.08);
}

// The limits are those of a measurement (1.094 in the mean, with earlier prices) and some room. Without exchanges
// between ranks the mean is 1.22. The seeds are not those of scores.
BOOST_AUTO_TEST_CASE(ranks_of_a_large_packing_have_about_as_much_priced_work) {
    constexpr int packings = 10;
    double mean = 0;
    for (int seed = 1001; seed <= 1000 + packings; ++seed) {
        std::mt19937_64 random(static_cast<std::uint64_t>(seed));
        const auto mask = make_mask(random_documents(random, 524288), 524288);
        const auto imbalance =
            imbalance_of(layout_cost(planned_layout(mask, 64, default_layout_prices()), mask, default_layout_prices()));
        BOOST_TEST(imbalance < 1.2, "seed " << seed << ": " << imbalance);
        mean += imbalance / packings;
    }
    BOOST_TEST(mean < 1.11);
}

// Half of the tokens are one document, with nearly all of the pairs.
BOOST_AUTO_TEST_CASE(a_dear_network_keeps_a_document_on_fewer_hosts) {
    const auto mask = make_mask("causal+documents:32768,128x256", 65536);
    auto cheap = default_layout_prices(), dear = cheap;
    for (auto* prices : {&cheap, &dear}) prices->ranks_per_host = 4;
    for (auto& pass : cheap.passes) pass.between = pass.inside;
    for (auto& pass : dear.passes) pass.between.key *= 30, pass.between.gradient *= 30;
    const Interval document{0, 32768};
    const auto of_cheap = planned_layout(mask, 16, cheap), of_dear = planned_layout(mask, 16, dear);
    BOOST_TEST(owners(of_cheap, document).size() > owners(of_dear, document).size());
    BOOST_TEST(layout_cost(of_dear, mask, dear).total() < layout_cost(of_cheap, mask, dear).total());
    BOOST_TEST(layout_cost(of_cheap, mask, cheap).total() < layout_cost(of_dear, mask, cheap).total());
}

BOOST_AUTO_TEST_CASE(a_rank_gathers_no_more_than_there_is_memory_for) {
    const auto mask = make_mask("causal+documents:32768,128x256", 65536);
    auto prices = default_layout_prices();
    const auto free = layout_cost(planned_layout(mask, 16, prices), mask, prices).most_gathered;
    prices.most_gathered = free - 1;
    BOOST_TEST(layout_cost(planned_layout(mask, 16, prices), mask, prices).most_gathered < free);
}

BOOST_DATA_TEST_CASE(masks_without_documents_are_balanced_too,
                     data::make({"causal", "full", "window:300,0", "block-causal:256x32", "prefix:3000"}), spec) {
    const auto mask = make_mask(spec, 8192);
    for (const int ranks : {2, 4, 8}) {
        const auto cost = layout_cost(planned_layout(mask, ranks, pairs_alone()), mask, pairs_alone());
        BOOST_TEST(imbalance_of(cost) < 1.08, spec << " P=" << ranks << ": " << imbalance_of(cost));
    }
}

// Where all rows see as many keys, one chunk for each rank is enough: fewest messages.
BOOST_AUTO_TEST_CASE(full_attention_has_one_chunk_for_each_rank_and_causal_two) {
    for (const auto& [spec, runs] : {std::pair{"full", 1u}, std::pair{"causal", 2u}}) {
        const auto layout = planned_layout(make_mask(spec, 65536), 8, default_layout_prices());
        for (int rank = 0; rank < 8; ++rank) BOOST_TEST(layout.shard(rank).size() <= runs);
    }
}

// Documents are whole blocks of the oracle, which may cut them anywhere between blocks. A plan may cut where no block
// ends, and so be better. What it may be worse by was adjusted after a measurement: 21 % at most, 1 % on average.
BOOST_AUTO_TEST_CASE(small_plans_are_nearly_as_good_as_the_best_of_all_layouts_of_blocks) {
    std::mt19937_64 random(13);
    double excess = 0;
    constexpr int trials = 60;
    for (int trial = 0; trial < trials; ++trial) {
        const int ranks = trial % 2 ? 2 : 3, blocks = ranks == 2 ? 10 : 9;
        constexpr std::int64_t size = 512;
        std::string text = trial % 4 < 2 ? "causal+documents:" : "documents:";
        for (auto left = blocks; left > 0;) {
            const auto next = static_cast<int>(pick(random, 1, left));
            text += std::to_string(next * size);
            left -= next;
            if (left > 0) text += ",";
        }
        const auto mask = make_mask(text, blocks * size);
        auto prices = trial % 3 ? default_layout_prices() : pairs_alone();
        prices.ranks_per_host = trial % 5 ? 2 : 8;
        prices.tile = 128;
        const auto best = best_of_blocks(mask, ranks, blocks, prices);
        const auto found = layout_cost(planned_layout(mask, ranks, prices), mask, prices).total();
        BOOST_TEST(found <= 1.25 * best, text << " over " << ranks << " ranks: " << found << " against " << best);
        excess += found / best - 1;
    }
    BOOST_TEST(excess / trials < 0.01);
}

// By hand: two ranks share 4 causal tokens, rank 1 sees the two keys of rank 0, one host each.
BOOST_AUTO_TEST_CASE(the_price_of_two_ranks_is_that_of_the_busier_one) {
    LayoutPrices prices;
    prices.passes[0] = {.pair = 1, .row = 10, .piece = 100, .again = 1000, .owner = 1e4, .visit = 1e5, .key = 1e6};
    prices.passes[1] = {.sum = 1, .sum_key = 10, .between = {.key = 100, .gradient = 1000}};
    prices.ranks_per_host = 1;
    const auto mask = make_mask("causal", 4);
    const auto cost = layout_cost(make_layout("contiguous", 4, 2), mask, prices);
    // Rank 1: 7 pairs, 2 rows, 1 piece, 2 rows resumed, 1 owner, 2 rows for it, 2 keys.
    BOOST_TEST(cost.seconds[0] == 7 + 20 + 100 + 2000 + 1e4 + 2e5 + 2e6);
    // Rank 0 sends 2 keys and gets 2 gradients, which takes longer than 1 sum of 2 keys.
    BOOST_TEST(cost.seconds[1] == 2000);
    BOOST_TEST(cost.work[0] == 3 + 20 + 100 + 1 + 20);
    BOOST_TEST(cost.most_gathered == 2);
}

// Rank 1 has rows 5 to 9 of 10 causal ones, which see 8 keys on average. They fill two tiles of 4 rows.
BOOST_AUTO_TEST_CASE(rows_of_a_cut_part_cost_as_much_as_the_tiles_that_they_lie_in) {
    LayoutPrices prices;
    for (auto& pass : prices.passes) pass = {.pair = 1, .tile_rows = 4};
    const auto layout = make_layout("contiguous", 10, 2);
    BOOST_TEST(layout_cost(layout, make_mask("causal", 10), prices).seconds[0] == 40 + (2 * 4 - 5) * 8);
    for (auto& pass : prices.passes) pass.tile_rows = 5;
    BOOST_TEST(layout_cost(layout, make_mask("causal", 10), prices).seconds[0] == 40);
    for (auto& pass : prices.passes) pass.tile_rows = 4;
    BOOST_TEST(layout_cost(layout, make_mask("causal+documents:5,5", 10), prices).seconds[0] == 15);
}

// The tiles that meet keys are found by the same code as in the kernels' lists and in the simulator.
BOOST_AUTO_TEST_CASE(tiles_of_rows_that_see_a_part_are_those_that_a_launch_for_its_keys_meets) {
    std::mt19937_64 random(14);
    LayoutPrices prices;
    constexpr std::array<std::int64_t, 2> tile{4, 2};
    for (std::size_t pass = 0; pass < 2; ++pass) prices.passes[pass].tile_rows = tile[pass];
    std::int64_t shared = 0;
    for (int trial = 0; trial < 100; ++trial) {
        constexpr int ranks = 4;
        constexpr std::int64_t tokens = 160;
        std::string text = "causal+documents:";
        for (auto left = tokens; left > 0;) {
            const auto next = std::min(left, pick(random, 1, 40));
            text += std::to_string(next) + (left > next ? "," : "");
            left -= next;
        }
        const auto mask = make_mask(text, tokens);
        const auto parts = packed_documents(mask);
        Pieces pieces(parts.size());
        std::vector<std::int64_t> room(ranks, tokens / ranks);
        for (std::size_t part = 0; part < parts.size(); ++part)
            for (auto at = parts[part].tokens.begin; at < parts[part].tokens.end;) {
                const auto rank = static_cast<std::size_t>(pick(random, 0, ranks - 1));
                const auto size = std::min({pick(random, 1, 12), room[rank], parts[part].tokens.end - at});
                if (size == 0) continue;
                room[rank] -= size;
                pieces[part].push_back({{at, at + size}, static_cast<int>(rank)});
                at += size;
            }
        const auto owned = place_pieces(pieces, ranks, tile[0]);
        count_tiles(pieces, ranks, prices);
        for (int rank = 0; rank < ranks; ++rank) {
            std::vector<Run> rows;
            for (const auto* piece : owned[static_cast<std::size_t>(rank)])
                rows.push_back({piece->tokens.begin, 1, piece->tokens.size()});
            for (const auto& of_part : pieces) {
                std::vector<Run> keys;  // of others, that the rank sees
                std::array<std::int64_t, 2> counted{};
                auto last = of_part.end();
                while (last != of_part.begin() && std::prev(last)->rank != rank) --last;
                for (auto piece = of_part.begin(); piece != last; ++piece)
                    if (piece->rank != rank) keys.push_back({piece->tokens.begin, 1, piece->tokens.size()});
                if (keys.empty()) continue;
                for (const auto& piece : of_part)
                    for (std::size_t pass = 0; pass < 2 && piece.rank == rank; ++pass) {
                        if (piece.tokens.begin < keys.front().first) continue;  // sees none of them
                        counted[pass] += piece.tiles[pass].all;
                        shared += piece.tiles[pass].shared;
                    }
                for (std::size_t pass = 0; pass < 2; ++pass) {
                    const auto work = tile_work(mask, rows, keys, tile[pass], 4);
                    BOOST_TEST(std::ranges::count_if(work.queries, [](const TileCounts& tiles) {
                                   return tiles.full + tiles.partial > 0;
                               }) == counted[pass]);
                }
            }
        }
    }
    BOOST_TEST(shared > 100);
}

BOOST_AUTO_TEST_CASE(a_key_that_a_host_sees_may_cross_once) {
    LayoutPrices prices;
    prices.passes[0] = {.between = {.key = 1}};
    prices.ranks_per_host = 2;
    const auto layout = make_layout("contiguous", 16, 4);
    BOOST_TEST(layout_cost(layout, make_mask("full", 16), prices).seconds[0] == 8);
    prices.crosses_once = true;
    BOOST_TEST(layout_cost(layout, make_mask("full", 16), prices).seconds[0] == 4);
}

// By hand: rank 0 owns tokens 0-3 and 12-15. Rank 1 sees four of its keys in one document and two in another.
BOOST_AUTO_TEST_CASE(a_whole_block_is_received_once_for_all_documents) {
    LayoutPrices prices;
    prices.passes[0] = {.inside = {.key = 100}};
    prices.passes[1] = {.sum = 1, .sum_key = 10};
    const auto mask = make_mask("documents:6,4,4,2", 16);
    const auto layout = make_layout("zigzag", 16, 2);
    auto cost = layout_cost(layout, mask, prices);
    BOOST_TEST(cost.seconds[0] == 6 * 100);
    BOOST_TEST(cost.seconds[1] == 1 + 6 * 10);
    prices.whole_blocks = true;
    cost = layout_cost(layout, mask, prices);
    BOOST_TEST(cost.seconds[0] == 8 * 100);
    BOOST_TEST(cost.seconds[1] == 1 + 8 * 10);
    BOOST_TEST(cost.most_gathered == 8);
}

// Documents that fill shares need no keys of others if they stay whole. A long one is half of the tokens.
BOOST_AUTO_TEST_CASE(where_whole_blocks_move_the_plan_is_the_cheapest_simple_layout) {
    const auto prices = for_whole_blocks(default_layout_prices());
    for (const auto& [documents, best] :
         {std::pair{"4096x4", "contiguous"}, {"16384", "zigzag"}, {"512x16,8192", "balanced"}}) {
        const auto mask = make_mask("causal+documents:" + std::string(documents), 16384);
        const auto plan = planned_layout(mask, 4, prices);
        BOOST_TEST(are_equal(plan, make_layout(best, mask, 4)), documents);
        for (const auto* other : {"balanced", "zigzag", "contiguous"})
            BOOST_TEST(layout_cost(plan, mask, prices).total() <=
                       layout_cost(make_layout(other, mask, 4), mask, prices).total());
    }
}

// 16 chunks for each rank would have to divide the tokens.
BOOST_AUTO_TEST_CASE(where_whole_blocks_move_any_number_of_tokens_for_each_rank_will_do) {
    const auto mask = make_mask("causal+documents:10,20,3", 33);
    const auto plan = planned_layout(mask, 3, for_whole_blocks(default_layout_prices()));
    for (int rank = 0; rank < 3; ++rank) BOOST_TEST(plan.shard_tokens(rank) == 11);
}

BOOST_AUTO_TEST_CASE(wrong_plans_are_explained) {
    const auto mask = make_mask("causal", 10);
    BOOST_TEST(error_of([&] { planned_layout(mask, 4, default_layout_prices()); }) ==
               "10 tokens do not divide into layout planned over 4 ranks: every rank owns as many");
    BOOST_TEST(error_of([&] { make_layout("planned:abacus", make_mask("causal", 8), 4); }) ==
               "layout planned:abacus is for the prices of machine abacus, which experiments read alone; planned by "
               "itself is for H200 in hosts of eight");
    BOOST_TEST(error_of([&] {
                   layout_cost(make_layout("striped", 8, 2), make_mask("causal", 8), default_layout_prices());
               }) == "layout striped has runs of stride 2; plans have stride 1");
}

BOOST_AUTO_TEST_CASE(the_text_of_prices_tells_them_apart) {
    auto other = default_layout_prices();
    BOOST_TEST(text_of(other) == text_of(default_layout_prices()));
    other.passes[1].between.gradient *= 1 + 1e-15;
    BOOST_TEST(text_of(other) != text_of(default_layout_prices()));
}

BOOST_AUTO_TEST_SUITE_END()
