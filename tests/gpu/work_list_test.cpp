// Work lists on a device, against the element-wise definition of the mask.

#include "gpu/kernels/work_list.hpp"
#include "tests/error_of.hpp"
#include "tests/gpu/attend_case.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <vector>

namespace ringlab::tests {
namespace {

using gpu::TileList;

constexpr std::int64_t tokens = 1290;
constexpr int ranks = 3;
constexpr gpu::TileShape shape{.rows = 128, .keys = 64};

std::vector<std::int32_t> downloaded(const std::int32_t* device, std::size_t count) {
    std::vector<std::int32_t> values(count);
    BOOST_TEST_REQUIRE(cudaMemcpy(values.data(), device, count * sizeof(std::int32_t), cudaMemcpyDeviceToHost) ==
                       cudaSuccess);
    return values;
}

BOOST_AUTO_TEST_SUITE(work_list, *boost::unit_test::precondition(has_gpu))

BOOST_AUTO_TEST_CASE(items_away_from_the_diagonal_share_their_entries) {
    const auto mask = layouts::make_mask("causal", 1 << 20);
    const auto layout = layouts::make_layout("contiguous", 1 << 20, 2);
    const TileList list(mask, layout.shard(1), layout.shard(0), shape, gpu::Major::queries);
    BOOST_TEST(list.full() == std::int64_t{4096} * 8192);
    BOOST_TEST(list.device_bytes() == 4096 * 16 + 8192 * 4);
    BOOST_TEST(TileList(mask, layout.shard(1), layout.shard(0), shape, gpu::Major::keys, true).device_bytes() ==
               8192 * 16 + std::int64_t{4096} * 8192 * 8);
}

// 4096 keys over 32 items of 128.
BOOST_AUTO_TEST_CASE(lengths_fall_evenly_where_all_items_end_at_the_same_rows) {
    const auto falls = [](const char* mask_name, const char* layout_name, int all_ranks) {
        const auto mask = layouts::make_mask(mask_name, 4096 * all_ranks);
        const auto layout = layouts::make_layout(layout_name, mask.tokens(), all_ranks);
        const auto own = layout.shard(0);
        auto tiles =
            gpu::find_tiles(mask, own, own, {.rows = 64, .keys = 128}, gpu::Major::keys, gpu::EqualEntries::shared);
        gpu::longest_first(tiles.items);
        return gpu::fall_linearly(tiles.items, tiles.entries);
    };
    BOOST_TEST(falls("causal", "contiguous", 1));
    BOOST_TEST(falls("causal", "zigzag", 2));
    BOOST_TEST(falls("full", "contiguous", 1));
    BOOST_TEST(!falls("window:512,0", "contiguous", 1));
    BOOST_TEST(!falls("causal+documents:1000,3096", "contiguous", 1));
    BOOST_TEST(!falls("prefix:2048", "contiguous", 1));  // long ones, then some that grow ever shorter
}

// 20 key tiles of 64 keys: those of the second, longer document come first.
BOOST_AUTO_TEST_CASE(items_of_a_document_are_together_if_asked_for) {
    const auto mask = layouts::make_mask("causal+documents:512,768", 1280);
    const auto layout = layouts::make_layout("contiguous", mask.tokens(), 1);
    const auto own = layout.shard(0);
    const auto key_tiles = [&](bool grouped) {
        const TileList list(mask, own, own, shape, gpu::Major::keys, false, grouped);
        BOOST_TEST(list.row_groups() == (grouped ? 2 : 1));
        const auto items = downloaded(list.device_items(), static_cast<std::size_t>(4 * list.items()));
        std::vector<std::int32_t> tiles;
        for (std::size_t i = 0; i < items.size(); i += 4) tiles.push_back(items[i]);
        return tiles;
    };
    const auto of_second = [](int tile) { return tile >= 8; };
    const auto together = key_tiles(true), apart = key_tiles(false);
    BOOST_TEST(std::all_of(together.begin(), together.begin() + 12, of_second));
    BOOST_TEST(!std::all_of(apart.begin(), apart.begin() + 12, of_second));
    const auto window = layouts::make_mask("window:100,0", 1280);
    constexpr gpu::TileShape of_kernels{.rows = 64, .keys = 128};  // no two key tiles end at the same rows
    BOOST_TEST(TileList(window, own, own, of_kernels, gpu::Major::keys, false, true).row_groups() == 1);
}

BOOST_AUTO_TEST_CASE(semaphore_values_count_the_earlier_items_that_share_a_tile) {
    const auto mask = layouts::make_mask("causal+window:300,0", tokens);
    const auto layout = layouts::make_layout("zigzag", tokens, ranks);
    const TileList list(mask, layout.shard(1), layout.shard(1), shape, gpu::Major::keys, true);
    const auto items = downloaded(list.device_items(), static_cast<std::size_t>(4 * list.items()));
    const auto count = static_cast<std::size_t>(list.full() + list.partial());
    const auto entries = downloaded(list.device_entries(), count),
               turns = downloaded(list.device_semaphore_values(), count);
    std::map<int, int> taken;  // by query tile
    for (std::size_t i = 0; i < items.size(); i += 4)
        for (auto e = static_cast<std::size_t>(items[i + 1]); e < static_cast<std::size_t>(items[i + 2]); ++e)
            BOOST_TEST(turns[e] == taken[entries[e] >> 1]++);
    BOOST_TEST(TileList(mask, layout.shard(1), layout.shard(1), shape, gpu::Major::keys).device_semaphore_values() ==
               nullptr);
}

BOOST_AUTO_TEST_CASE(rows_and_keys_on_the_device_are_those_of_the_mask) {
    const auto mask = layouts::make_mask("causal+window:64,0+sink:4", tokens);
    const auto layout = layouts::make_layout("striped:5", tokens, ranks);
    const gpu::RowBounds rows(mask, layout.shard(1));
    const gpu::KeyPositions keys(mask, layout.shard(1));
    const auto positions = layout.positions(1);
    BOOST_TEST(rows.tokens() == static_cast<std::int64_t>(positions.size()));
    const auto bounds = downloaded(rows.device(), 4 * positions.size());
    const auto key_positions = downloaded(keys.device(), positions.size());
    for (std::size_t i = 0; i < positions.size(); ++i) {
        const auto row = mask.row(positions[i]);
        BOOST_TEST_REQUIRE((layouts::RowKeys{bounds[4 * i], bounds[4 * i + 1], bounds[4 * i + 2]} == row));
        BOOST_TEST_REQUIRE(key_positions[i] == positions[i]);
    }
}

// Row 95 begins the second answer and sees 20 keys back, of which the first answer is hidden: 75-89 and 95.
BOOST_AUTO_TEST_CASE(rows_that_see_more_than_an_interval_and_the_first_keys_are_refused) {
    const auto refusal = [](const std::string& spec) {
        const auto mask = layouts::make_mask(spec, 120);
        const std::vector<layouts::Run> all{{0, 1, 120}};
        return error_of([&] { gpu::RowBounds(mask, all); });
    };
    BOOST_TEST(refusal("shared-question:90,5,25") == "(no error)");
    const std::string mask = "shared-question:90,5,25+window:20,0";
    BOOST_TEST(
        refusal(mask).starts_with("mask " + mask + ": row 95 sees keys 75 to 89 and 95 to 95, and none between"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
