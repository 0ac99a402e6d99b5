#include "layouts/tiling/work_tile_order.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

namespace ringlab::layouts {
namespace {

/// Work tiles of keys under a causal mask over as many rows: each meets one row tile fewer than the one before it, and
/// all the last one.
std::vector<WorkTileReach> causal(std::int64_t work_tiles) {
    std::vector<WorkTileReach> reaches;
    for (std::int64_t i = 0; i < work_tiles; ++i) reaches.push_back({work_tiles - i, work_tiles - 1});
    return reaches;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(work_tile_order)

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
