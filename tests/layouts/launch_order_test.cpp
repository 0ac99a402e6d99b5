#include "layouts/layouts/launch_order.hpp"

#include <fmt/format.h>
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

/// The order of a launch's first work tiles: sections, then heads at a time.
std::string told(const WorkTileOrder& order) {
    if (order.leading_tiles == 0) return order.by_head ? "head by head" : "one by one";
    BOOST_TEST(order.leading_tiles == order.section_tiles * order.sections);
    return fmt::format("{}x{} tiles of {} heads{}", order.sections, order.section_tiles, order.heads_at_a_time,
                       order.in_lockstep ? " in step" : "");
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

// Work tiles of 64 that fall evenly go in step, two heads at a time. The longer half of others is 32: of 4 heads they
// are 128, of 2 but 64 of the 99 that are enough. Those of a window are 16 that are busy and 48 that are not, which the
// longer half has too; pairs of SMs take half as many. Of about one length all go by few heads.
BOOST_AUTO_TEST_CASE(backward_work_tiles_go_in_step_or_by_as_few_heads_as_fill_the_sms) {
    auto even = triangle(64, 64);
    even.fall_linearly = true;
    const KeyWorkTiles window{.work_tiles = 256, .busy = 256, .entries = 256 * 60, .longest = 65};
    BOOST_TEST(told(backward_order(even, {8, 4, sms})) == "1x64 tiles of 2 heads in step");
    BOOST_TEST(told(backward_order(triangle(64, 64), {8, 1, sms})) == "1x32 tiles of 4 heads");
    BOOST_TEST(told(backward_order(triangle(16, 64), {8, 1, sms, 2})) == "1x32 tiles of 2 heads");
    BOOST_TEST(told(backward_order(triangle(8, 8), {8, 1, sms})) == "1x4 tiles of 8 heads");
    BOOST_TEST(told(backward_order(window, {8, 1, sms})) == "1x256 tiles of 1 heads");
    // 16 documents of 16 key tiles each, then 2 of 128.
    KeyWorkTiles documents{.work_tiles = 260, .busy = 256, .entries = 16 * 272, .longest = 32, .row_groups = 16};
    BOOST_TEST(told(backward_order(documents, {8, 1, sms})) == "1x256 tiles of 8 heads");
    BOOST_TEST(told(backward_order(documents, {32, 1, sms})) == "1x256 tiles of 8 heads");
    documents.row_groups = 2;
    BOOST_TEST(told(backward_order(documents, {8, 1, sms})) == "1x256 tiles of 1 heads");
}

// 16 work tiles of 8 heads at a time stay at a tile for the steps of 8 query heads. With 4 they would be four tiles
// apart. Those of a window end at different row tiles, those of a document at the same one. Of equal length, 64 of two
// heads, or 128 of one, fill 132 SMs.
BOOST_AUTO_TEST_CASE(in_order_few_work_tiles_of_all_heads_keep_together_or_go_head_by_head) {
    auto even = triangle(64, 64);
    even.fall_linearly = true;
    auto window = KeyWorkTiles{.work_tiles = 256, .busy = 256, .entries = 256 * 60, .longest = 65}, documents = window;
    documents.row_groups = 19;
    KeyWorkTiles full{.work_tiles = 64, .busy = 64, .entries = 64 * 128, .longest = 128, .fall_linearly = true};
    const auto order = [](const KeyWorkTiles& work_tiles, const LaunchShape& shape) {
        return told(deterministic_backward_order(work_tiles, shape));
    };
    BOOST_TEST(order(even, {8, 8, sms}) == "4x16 tiles of 8 heads in step");
    BOOST_TEST(order(even, {8, 4, sms}) == "one by one");
    BOOST_TEST(order(even, {8, 8, sms, 2}) == "one by one");
    BOOST_TEST(order(window, {8, 4, sms}) == "head by head");
    BOOST_TEST(order(documents, {8, 4, sms}) == "one by one");
    BOOST_TEST(order(full, {32, 1, sms}) == "1x64 tiles of 2 heads");
    full = {.work_tiles = 128, .busy = 128, .entries = 128 * 128, .longest = 128, .fall_linearly = true};
    BOOST_TEST(order(full, {8, 4, sms}) == "1x128 tiles of 1 heads");
}

// K and V of 4096 keys of dims 128 in 16 bits are 2.1 MB a kv head: four of eight stay below 10 MB, and all of 1024.
BOOST_AUTO_TEST_CASE(forward_all_work_tiles_go_for_the_heads_whose_keys_and_values_the_cache_holds) {
    const auto order = [](std::int64_t keys, std::int64_t kv_heads) {
        return told(forward_order(32, kv_heads, 4, keys * 256 * 2));
    };
    BOOST_TEST(order(4096, 8) == "1x32 tiles of 16 heads");
    BOOST_TEST(order(1024, 8) == "1x32 tiles of 32 heads");
    BOOST_TEST(order(4096, 6) == "1x32 tiles of 12 heads");  // sets are of one size
    BOOST_TEST(order(1 << 20, 8) == "1x32 tiles of 4 heads");
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

// In 132 places, of 64 work tiles a head at a time leaves half of them idle, two heads fill 128; 8 heads are 4
// sections, which go in pairs. 256 of a head are two chunks of 128, as 124 would be left over after one. 32 of 4 heads
// are one section, which has none to go with; two heads of 48 fill 96 of the places, four would not fit.
BOOST_AUTO_TEST_CASE(in_step_a_section_is_as_few_heads_as_nearly_fill_the_places_and_has_another_to_go_with) {
    const auto order = [](std::int64_t work_tiles, std::int64_t heads, bool similar = false) {
        const auto found = lockstep_order(work_tiles, heads, 132, similar);
        return found ? told(*found) : "none";
    };
    BOOST_TEST(order(64, 8) == "1x64 tiles of 2 heads in step");
    BOOST_TEST(order(256, 1) == "2x128 tiles of 1 heads in step");
    BOOST_TEST(order(128, 1) == "none");
    BOOST_TEST(order(128, 1, true) == "1x128 tiles of 1 heads in step");
    BOOST_TEST(order(32, 4) == "none");
    BOOST_TEST(order(48, 8) == "none");
}

// Of 66 places for work tiles that two thread blocks share each: 32 work tiles of two heads.
BOOST_AUTO_TEST_CASE(blocks_of_a_launch_are_in_step_if_all_have_as_many_work_tiles_and_none_is_left_over) {
    const std::vector<std::uint32_t> alike{32, 32, 32}, unlike{32, 16}, one_over{65, 65};
    BOOST_TEST(told(fused_lockstep_order(alike, 4, 66).value()) == "1x32 tiles of 2 heads in step");
    BOOST_TEST(!fused_lockstep_order(unlike, 4, 66));
    BOOST_TEST(!fused_lockstep_order({}, 4, 66));
    BOOST_TEST(lockstep_order(65, 4, 64, false).has_value());
    BOOST_TEST(!fused_lockstep_order(one_over, 4, 64));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::layouts
