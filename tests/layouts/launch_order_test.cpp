#include "layouts/layouts/launch_order.hpp"

#include <boost/test/unit_test.hpp>

#include <tuple>
#include <vector>

namespace ringlab::layouts {
namespace {

constexpr std::int64_t sms = 132;

/// Work tiles of a triangle: each has one entry fewer than the one before it.
KeyWorkTiles triangle(std::int64_t busy, std::int64_t work_tiles) {
    return {.work_tiles = work_tiles, .busy = busy, .entries = busy * (busy + 1) / 2, .longest = busy};
}

std::vector<std::tuple<std::int64_t, std::int64_t>> work_tiles_in(const WorkTileOrder& order, std::int64_t work_tiles,
                                                                  std::int64_t heads) {
    std::vector<std::tuple<std::int64_t, std::int64_t>> found;
    for_each_work_tile_run(order, work_tiles, heads, [&](const WorkTileRun& run) {
        for (auto head = run.first_head; head < run.first_head + run.heads; ++head)
            found.emplace_back(run.work_tile, head);
    });
    return found;
}

/// Work tiles of keys under a causal mask over as many rows: each meets one row tile fewer than the one before it, and
/// all the last one.
std::vector<WorkTileReach> causal(std::int64_t work_tiles) {
    std::vector<WorkTileReach> reaches;
    for (std::int64_t i = 0; i < work_tiles; ++i) reaches.push_back({work_tiles - i, work_tiles - 1});
    return reaches;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(launch_order)

// On 132 SMs, of which 66 pairs, 30 fours or 15 eights find room: by hand from the rules' 7 steps a work tile.
BOOST_AUTO_TEST_CASE(sms_share_a_work_tile_where_that_promises_to_end_first) {
    const SmGroup groups[] = {{2, 66}, {4, 30}, {8, 15}};
    const auto scheduled = [&](const BackwardLoad& load) { return sm_group_by_list_schedule(load, sms, groups).sms; };
    const auto in_waves = [&](const BackwardLoad& load) { return sm_group_by_waves(load, sms, groups).sms; };
    // 4 key tiles of 512 causal tokens, 8 kv heads of 4 query heads: 7 + 32 steps alone, 7 + 16 in pairs, in fours two
    // waves of 7 + 5. In fours two of them wait until the shortest have ended, but they are short themselves.
    BOOST_TEST(scheduled({32, 160, 8, 4}) == 4);
    BOOST_TEST(in_waves({32, 160, 8, 4}) == 2);
    // 8 key tiles of 1024 tokens likewise, with 8 query heads: 7 + 64 in pairs, in fours some 60.
    BOOST_TEST(scheduled({64, 576, 16, 8}) == 4);
    // Of the same length, as under a full mask: 7 + 64 in pairs, in fours three waves of 7 + 32.
    BOOST_TEST(scheduled({64, 1024, 16, 8}) == 2);
    for (const auto& chosen : {std::function<std::int64_t(const BackwardLoad&)>(scheduled), {in_waves}}) {
        // 16 key tiles that 16 tiles of rows see: 7 + 64 alone, two waves of 7 + 32 in pairs.
        BOOST_TEST(chosen({128, 2048, 16, 4}) == 1);
        // Many work tiles: the longest is no more than half of an SM's share.
        BOOST_TEST(chosen({4096, 4096 * 64, 64, 4}) == 1);
        // Two long ones.
        BOOST_TEST(chosen({2, 128, 64, 4}) == 8);
    }
    BOOST_TEST(sm_group_by_list_schedule({2, 128, 64, 4}, sms, {}).at_a_time == sms);
    BOOST_TEST(sm_group_by_waves({2, 128, 64, 4}, sms, {}).at_a_time == sms);
}

BOOST_AUTO_TEST_CASE(work_tiles_that_end_at_the_same_row_tile_are_neighbours) {
    const std::vector<WorkTileReach> documents{{5, 9}, {4, 3}, {4, 9}, {2, 3}, {1, 9}};
    const auto groups = row_groups_of(documents);
    BOOST_TEST(groups.count == 2);
    BOOST_TEST(groups.order == (std::vector<std::size_t>{0, 2, 4, 1, 3}), boost::test_tools::per_element());
    // Three groups of five: less than two work tiles each.
    const std::vector<WorkTileReach> ragged{{5, 9}, {4, 3}, {4, 9}, {2, 4}, {1, 9}};
    BOOST_TEST(row_groups_of(ragged).count == 1);
    BOOST_TEST(row_groups_of(ragged).order == (std::vector<std::size_t>{0, 1, 2, 3, 4}),
               boost::test_tools::per_element());
    BOOST_TEST(row_groups_of({}).count == 1);
}

BOOST_AUTO_TEST_CASE(work_tiles_that_fall_evenly_go_in_step) {
    auto work_tiles = triangle(64, 64);
    work_tiles.fall_linearly = true;
    const auto order = backward_order(work_tiles, {.heads = 8, .group = 4, .sms = sms});
    BOOST_TEST(order.in_lockstep);
    BOOST_TEST(order.heads_at_a_time == 2);
    BOOST_TEST(order.section_tiles == 64);
}

// The longer half of 64 work tiles is 32: of 4 heads they are 128, of 2 but 64 of the 99 that are enough. Those of a
// window are 16 that are busy and 48 that are not, which the longer half has too. Pairs of SMs take half as many.
BOOST_AUTO_TEST_CASE(the_longer_half_of_work_tiles_goes_by_as_few_heads_as_fill_the_sms) {
    const auto documents = backward_order(triangle(64, 64), {.heads = 8, .sms = sms});
    BOOST_TEST(!documents.in_lockstep);
    BOOST_TEST(documents.leading_tiles == 32);
    BOOST_TEST(documents.section_tiles == 32);
    BOOST_TEST(documents.sections == 1);
    BOOST_TEST(documents.heads_at_a_time == 4);
    const auto window = backward_order(triangle(16, 64), {.heads = 8, .sms = sms, .blocks = 2});
    BOOST_TEST(window.leading_tiles == 32);
    BOOST_TEST(window.heads_at_a_time == 2);
    BOOST_TEST(backward_order(triangle(8, 8), {.heads = 8, .sms = sms}).heads_at_a_time == 8);
}

// 16 documents of 16 key tiles each.
BOOST_AUTO_TEST_CASE(work_tiles_that_share_rows_go_by_as_many_heads_as_fill_the_sms) {
    KeyWorkTiles documents{.work_tiles = 260, .busy = 256, .entries = 16 * 272, .longest = 32, .row_groups = 16};
    const auto order = backward_order(documents, {.heads = 8, .sms = sms});
    BOOST_TEST(order.leading_tiles == 256);
    BOOST_TEST(order.heads_at_a_time == 8);
    BOOST_TEST(backward_order(documents, {.heads = 32, .sms = sms}).heads_at_a_time == 8);
    documents.row_groups = 2;
    BOOST_TEST(backward_order(documents, {.heads = 8, .sms = sms}).heads_at_a_time == 1);
}

BOOST_AUTO_TEST_CASE(work_tiles_of_about_one_length_go_all_of_them_by_few_heads) {
    const KeyWorkTiles window{.work_tiles = 256, .busy = 256, .entries = 256 * 60, .longest = 65};
    const auto order = backward_order(window, {.heads = 8, .sms = sms});
    BOOST_TEST(order.leading_tiles == 256);
    BOOST_TEST(order.heads_at_a_time == 1);
}

// 16 work tiles of 8 heads at a time stay at a tile for the steps of 8 query heads. With 4 they would be four tiles
// apart.
BOOST_AUTO_TEST_CASE(in_order_few_work_tiles_of_all_heads_keep_together) {
    auto work_tiles = triangle(64, 64);
    work_tiles.fall_linearly = true;
    const auto order = deterministic_backward_order(work_tiles, {.heads = 8, .group = 8, .sms = sms});
    BOOST_TEST(order.in_lockstep);
    BOOST_TEST(order.heads_at_a_time == 8);
    BOOST_TEST(order.section_tiles == 16);
    BOOST_TEST(order.sections == 4);
    BOOST_TEST(!deterministic_backward_order(work_tiles, {.heads = 8, .group = 4, .sms = sms}).in_lockstep);
    BOOST_TEST(deterministic_backward_order(work_tiles, {.heads = 8, .group = 4, .sms = sms}).leading_tiles == 0);
    BOOST_TEST(
        !deterministic_backward_order(work_tiles, {.heads = 8, .group = 8, .sms = sms, .blocks = 2}).in_lockstep);
}

// Those of a window end at different row tiles, those of a document at the same one.
BOOST_AUTO_TEST_CASE(in_order_work_tiles_that_share_no_last_row_tile_go_head_by_head) {
    const KeyWorkTiles window{.work_tiles = 256, .busy = 256, .entries = 256 * 60, .longest = 65};
    BOOST_TEST(deterministic_backward_order(window, {.heads = 8, .group = 4, .sms = sms}).by_head);
    auto documents = window;
    documents.row_groups = 19;
    BOOST_TEST(!deterministic_backward_order(documents, {.heads = 8, .group = 4, .sms = sms}).by_head);
    auto causal = triangle(64, 64);
    causal.fall_linearly = true;
    BOOST_TEST(!deterministic_backward_order(causal, {.heads = 8, .group = 4, .sms = sms}).by_head);
}

// 64 work tiles of two heads, or 128 of one, fill 132 SMs.
BOOST_AUTO_TEST_CASE(in_order_work_tiles_of_equal_length_go_all_of_them_by_few_heads) {
    KeyWorkTiles full{.work_tiles = 64, .busy = 64, .entries = 64 * 128, .longest = 128, .fall_linearly = true};
    const auto order = deterministic_backward_order(full, {.heads = 32, .group = 1, .sms = sms});
    BOOST_TEST(order.leading_tiles == 64);
    BOOST_TEST(order.heads_at_a_time == 2);
    BOOST_TEST(!order.by_head);
    full.work_tiles = full.busy = 128;
    full.entries = 128 * 128;
    BOOST_TEST(deterministic_backward_order(full, {.heads = 8, .group = 4, .sms = sms}).heads_at_a_time == 1);
}

// K and V of 4096 keys of dims 128 in 16 bits are 2.1 MB a kv head: four of eight stay below 10 MB, and all of 1024.
BOOST_AUTO_TEST_CASE(forward_all_work_tiles_go_for_the_heads_whose_keys_and_values_the_cache_holds) {
    const auto heads_at_a_time = [](std::int64_t keys, std::int64_t kv_heads) {
        const auto order = forward_order(32, kv_heads, 4, keys * 256 * 2);
        BOOST_TEST(order.leading_tiles == 32);
        BOOST_TEST(order.section_tiles == 32);
        BOOST_TEST(!order.in_lockstep);
        return order.heads_at_a_time;
    };
    BOOST_TEST(heads_at_a_time(4096, 8) == 4 * 4);
    BOOST_TEST(heads_at_a_time(1024, 8) == 8 * 4);
    BOOST_TEST(heads_at_a_time(4096, 6) == 3 * 4);  // sets are of one size
    BOOST_TEST(heads_at_a_time(1 << 20, 8) == 4);
}

// Two chunks of two work tiles for two heads, for two others, and the work tile that is left for all of them.
BOOST_AUTO_TEST_CASE(work_tiles_follow_each_other_section_by_section_and_then_one_by_one) {
    const WorkTileOrder order{.leading_tiles = 4, .heads_at_a_time = 2, .section_tiles = 2, .sections = 2};
    const std::vector<std::tuple<std::int64_t, std::int64_t>> expected{
        {0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}, {0, 2}, {0, 3},
        {1, 2}, {1, 3}, {2, 2}, {2, 3}, {3, 2}, {3, 3}, {4, 0}, {4, 1}, {4, 2}, {4, 3}};
    BOOST_TEST((work_tiles_in(order, 5, 4) == expected));
    BOOST_TEST((work_tiles_in({}, 1, 2) == std::vector<std::tuple<std::int64_t, std::int64_t>>{{0, 0}, {0, 1}}));
}

BOOST_AUTO_TEST_CASE(work_tiles_of_causal_and_full_masks_fall_evenly_to_the_same_last_tile) {
    BOOST_TEST(fall_linearly(causal(1)));
    BOOST_TEST(fall_linearly(causal(20)));
    BOOST_TEST(fall_linearly(std::vector<WorkTileReach>(20, {20, 19})));
    BOOST_TEST(!fall_linearly({}));
}

// Under a window work tiles are as long as each other and end one tile after another. A step off the line by more than
// a tenth of the longest: 10, 9, 8, 7, 2 where the line has 10, 8, 6, 4, 2.
BOOST_AUTO_TEST_CASE(work_tiles_of_windows_and_of_packed_documents_do_not) {
    std::vector<WorkTileReach> window;
    for (std::int64_t i = 0; i < 20; ++i) window.push_back({4, i});
    BOOST_TEST(!fall_linearly(window));
    BOOST_TEST(!fall_linearly(std::vector<WorkTileReach>{{10, 9}, {9, 9}, {8, 9}, {7, 9}, {2, 9}}));
    BOOST_TEST(fall_linearly(std::vector<WorkTileReach>{{10, 9}, {9, 9}, {6, 9}, {4, 9}, {2, 9}}));
}

// A causal block of 8 work tiles has 36 of 64 tile pairs, 0.56; one whose work tiles are 6 to 8 long 0.88.
BOOST_AUTO_TEST_CASE(work_tiles_are_alike_if_they_are_three_quarters_of_the_longest_on_average) {
    BOOST_TEST(!have_similar_lengths(36, 8, 8));
    BOOST_TEST(have_similar_lengths(56, 8, 8));
    BOOST_TEST(!have_similar_lengths(48, 8, 8));
}

// 64 work tiles in 132 places: a head at a time leaves half of them idle, two heads fill 128; 8 heads are 4 sections,
// which go in pairs.
BOOST_AUTO_TEST_CASE(a_section_is_as_few_heads_as_nearly_fill_the_places) {
    const auto order = lockstep_order(64, 8, 132, false);
    BOOST_TEST_REQUIRE(order.has_value());
    BOOST_TEST(order->in_lockstep);
    BOOST_TEST(order->heads_at_a_time == 2);
    BOOST_TEST(order->section_tiles == 64);
    BOOST_TEST(order->sections == 1);
    BOOST_TEST(order->leading_tiles == 64);
}

// 256 work tiles of a head: two chunks of 128, 124 that would be left over after one.
BOOST_AUTO_TEST_CASE(many_work_tiles_of_a_head_go_in_chunks) {
    const auto order = lockstep_order(256, 1, 132, false);
    BOOST_TEST_REQUIRE(order.has_value());
    BOOST_TEST(order->heads_at_a_time == 1);
    BOOST_TEST(order->section_tiles == 128);
    BOOST_TEST(order->sections == 2);
}

BOOST_AUTO_TEST_CASE(there_is_no_order_where_a_section_has_none_to_go_with_unless_work_tiles_are_alike) {
    BOOST_TEST(!lockstep_order(128, 1, 132, false));
    BOOST_TEST(lockstep_order(128, 1, 132, true).has_value());
    BOOST_TEST(!lockstep_order(32, 4, 132, false));  // all heads together are one section
    BOOST_TEST(!lockstep_order(48, 8, 132, false));  // two heads fill 96 of the places, four would not fit
}

// Of 66 places for work tiles that two thread blocks share each: 32 work tiles of two heads.
BOOST_AUTO_TEST_CASE(blocks_of_a_launch_are_in_step_if_all_have_as_many_work_tiles_and_none_is_left_over) {
    const std::vector<std::uint32_t> alike{32, 32, 32}, unlike{32, 16};
    const auto order = fused_lockstep_order(alike, 4, 66);
    BOOST_TEST_REQUIRE(order.has_value());
    BOOST_TEST(order->heads_at_a_time == 2);
    BOOST_TEST(!fused_lockstep_order(unlike, 4, 66));
    BOOST_TEST(!fused_lockstep_order({}, 4, 66));
    const std::vector<std::uint32_t> one_over{65, 65};
    BOOST_TEST(lockstep_order(65, 4, 64, false).has_value());
    BOOST_TEST(!fused_lockstep_order(one_over, 4, 64));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::layouts
