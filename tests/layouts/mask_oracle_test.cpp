// Masks against what their sentences in --list say, said a second time without the library: mask_oracles.cpp.
//
//   RINGLAB_FUZZ=100000 RINGLAB_FUZZ_SEED=7 test_layouts --run_test=mask_oracle

#include "tests/layouts/mask_oracles.hpp"

#include "layouts/layouts/visible_pairs.hpp"
#include "tests/layouts/cases.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <numeric>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
using ringlab::mask_oracles::Joined;
using ringlab::mask_oracles::oracles;
using ringlab::mask_oracles::random_join;

namespace {

std::uint64_t fuzz_setting(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Calls check(random, mask as typed, mask, oracle) for random joins, each of which can be repeated by itself.
template <class Check>
void for_random_joins(std::uint64_t count, std::int64_t most_tokens, Check check) {
    const auto seed = fuzz_setting("RINGLAB_FUZZ_SEED", 1);
    for (std::uint64_t i = 0; i < fuzz_setting("RINGLAB_FUZZ", count); ++i) {
        std::mt19937_64 random(seed * 1'000'003 + i);
        const auto tokens = pick(random, 2, most_tokens);
        const auto spec = random_join(random, tokens, 5);
        const auto mask = make_mask(spec, tokens);
        check(random, mask, Joined(spec, tokens));
    }
}

std::int64_t pairs_told_otherwise(const Mask& mask, const Joined& oracle) {
    std::int64_t wrong = 0;
    for (std::int64_t row = 0; row < mask.tokens(); ++row)
        for (std::int64_t key = 0; key < mask.tokens(); ++key) wrong += mask.visible(row, key) != oracle.sees(row, key);
    return wrong;
}

std::int64_t count_seen(const Joined& oracle, const std::vector<std::int64_t>& rows,
                        const std::vector<std::int64_t>& keys) {
    std::int64_t count = 0;
    for (const auto row : rows)
        for (const auto key : keys) count += oracle.sees(row, key);
    return count;
}

/// Every so many of the positions in a random order, as a rank's shard might be.
std::vector<std::int64_t> random_shard(std::mt19937_64& random, std::int64_t tokens) {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    if (pick(random, 0, 1) == 0) std::shuffle(positions.begin(), positions.end(), random);
    const auto begin = pick(random, 0, tokens - 1), end = pick(random, begin + 1, tokens);
    return {positions.begin() + begin, positions.begin() + end};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mask_oracle)

BOOST_AUTO_TEST_CASE(every_mask_has_an_oracle_and_every_oracle_a_mask) {
    for (const auto& [name, entry] : masks().entries())
        BOOST_TEST(oracles().contains(name), "mask " << name << " has no oracle: tests/layouts/mask_oracles.cpp");
    for (const auto& [name, oracle] : oracles()) BOOST_TEST(masks().entries().contains(name), name << " is no mask");
}

BOOST_AUTO_TEST_CASE(oracles_are_written_from_the_sentences_that_list_prints) {
    for (const auto& [name, oracle] : oracles()) BOOST_TEST(oracle.sentence == masks().find(name).help);
}

BOOST_AUTO_TEST_CASE(a_mask_alone_shows_what_its_sentence_says) {
    for (const auto& [name, oracle] : oracles()) {
        std::mt19937_64 random(1);
        for (int trial = 0; trial < 100; ++trial) {
            const auto tokens = pick(random, 2, 50);
            const auto arguments = oracle.random_arguments(random, tokens);
            const auto spec = name + (arguments.empty() ? "" : ":" + arguments);
            const auto mask = make_mask(spec, tokens);
            BOOST_TEST(pairs_told_otherwise(mask, Joined(spec, tokens)) == 0, spec << " over " << tokens << " tokens");
        }
    }
}

BOOST_AUTO_TEST_CASE(joined_masks_show_what_all_of_them_show_and_sinks_beside) {
    for_random_joins(4000, 40, [](auto& random, const Mask& mask, const Joined& oracle) {
        const auto& spec = mask.name();
        BOOST_TEST(pairs_told_otherwise(mask, oracle) == 0, spec << " over " << mask.tokens() << " tokens");
        BOOST_TEST(row_that_breaks_the_invariants(mask) == -1, spec << " over " << mask.tokens() << " tokens");
        std::int64_t wrong = 0;
        for (std::int64_t token = 0; token < mask.tokens(); ++token) {
            wrong += mask.key_is_valid(token) == oracle.is_padding(token);
            wrong += (mask.row(token) == RowKeys{}) != oracle.is_padding(token);  // all others see themselves
        }
        const auto padded = pad(mask, mask.tokens() + pick(random, 1, 9));
        for (std::int64_t row = 0; row < padded.tokens(); ++row)
            for (std::int64_t key = 0; key < padded.tokens(); ++key)
                wrong +=
                    padded.visible(row, key) != (row < mask.tokens() && key < mask.tokens() && oracle.sees(row, key));
        BOOST_TEST(wrong == 0, spec << " over " << mask.tokens() << " tokens, padding");
    });
}

BOOST_AUTO_TEST_CASE(the_order_in_which_masks_are_joined_does_not_matter) {
    for_random_joins(500, 30, [](auto&, const Mask& mask, const Joined& oracle) {
        std::string reversed;
        for (std::size_t begin = 0; begin <= mask.name().size();) {
            const auto end = std::min(mask.name().find('+', begin), mask.name().size());
            reversed = mask.name().substr(begin, end - begin) + (reversed.empty() ? "" : "+") + reversed;
            begin = end + 1;
        }
        BOOST_TEST(pairs_told_otherwise(make_mask(reversed, mask.tokens()), oracle) == 0, reversed);
    });
}

BOOST_AUTO_TEST_CASE(pairs_and_keys_of_shards_are_counted_as_the_oracle_sees_them) {
    for_random_joins(2000, 60, [](auto& random, const Mask& mask, const Joined& oracle) {
        const auto rows = random_shard(random, mask.tokens()), keys = random_shard(random, mask.tokens());
        const auto row_runs = runs_of(rows), key_runs = runs_of(keys);
        const auto what = [&] { return fmt::format("{} over {} tokens", mask.name(), mask.tokens()); };
        const auto expected = count_seen(oracle, rows, keys);
        BOOST_TEST(visible_pairs(mask, row_runs, KeyCounter(key_runs)) == expected, what());
        BOOST_TEST(any_visible(mask, row_runs, KeyCounter(key_runs)) == (expected > 0), what());
        // What need not travel is what no row sees; a few keys too many may.
        const auto gap = pick(random, 1, 4);
        const auto kept = seen_keys(mask, row_runs, key_runs, gap);
        const bool rows_touch = row_runs.size() == 1;
        std::int64_t lost = 0, needless = 0;
        for (std::size_t i = 0; i < keys.size(); ++i) {
            const auto place = static_cast<std::int64_t>(i);
            const bool travels = std::ranges::any_of(kept, [&](const Interval& part) { return part.contains(place); });
            const bool seen = count_seen(oracle, rows, {keys[i]}) > 0;
            lost += seen && !travels;
            needless += travels && !seen;
        }
        BOOST_TEST(lost == 0, what());
        if (rows_touch && gap == 1) BOOST_TEST(needless == 0, what());
        // All rows but padding see themselves.
        std::int64_t wrong = 0;
        for (const auto& [shard, ranges] :
             {std::pair(rows, blind_rows(mask, row_runs)), {keys, unseen_keys(mask, key_runs)}})
            for (std::size_t i = 0; i < shard.size(); ++i) {
                const auto place = static_cast<std::int64_t>(i);
                wrong += oracle.is_padding(shard[i]) !=
                         std::ranges::any_of(ranges, [&](const Interval& part) { return part.contains(place); });
            }
        BOOST_TEST(wrong == 0, what());
    });
}

BOOST_AUTO_TEST_SUITE_END()
