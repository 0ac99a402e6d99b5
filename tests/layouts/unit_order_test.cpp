#include "layouts/unit_order.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

namespace ringlab::layouts {
namespace {

/// Items of keys under a causal mask over as many rows: each meets one row tile fewer than the one before it, and all
/// the last one.
std::vector<ItemReach> causal(std::int64_t items) {
    std::vector<ItemReach> reaches;
    for (std::int64_t i = 0; i < items; ++i) reaches.push_back({items - i, items - 1});
    return reaches;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(unit_order)

BOOST_AUTO_TEST_CASE(items_of_causal_and_full_masks_fall_evenly_to_the_same_last_tile) {
    BOOST_TEST(fall_evenly(causal(1)));
    BOOST_TEST(fall_evenly(causal(20)));
    BOOST_TEST(fall_evenly(std::vector<ItemReach>(20, {20, 19})));
    BOOST_TEST(!fall_evenly({}));
}

// Under a window items are as long as each other and end one tile after another. A step off the line by more than a
// tenth of the longest: 10, 9, 8, 7, 2 where the line has 10, 8, 6, 4, 2.
BOOST_AUTO_TEST_CASE(items_of_windows_and_of_packed_documents_do_not) {
    std::vector<ItemReach> window;
    for (std::int64_t i = 0; i < 20; ++i) window.push_back({4, i});
    BOOST_TEST(!fall_evenly(window));
    BOOST_TEST(!fall_evenly(std::vector<ItemReach>{{10, 9}, {9, 9}, {8, 9}, {7, 9}, {2, 9}}));
    BOOST_TEST(fall_evenly(std::vector<ItemReach>{{10, 9}, {9, 9}, {6, 9}, {4, 9}, {2, 9}}));
}

// A causal block of 8 items has 36 of 64 tile pairs, 0.56; one whose items are 6 to 8 long 0.88.
BOOST_AUTO_TEST_CASE(items_are_alike_if_they_are_three_quarters_of_the_longest_on_average) {
    BOOST_TEST(!are_alike(36, 8, 8));
    BOOST_TEST(are_alike(56, 8, 8));
    BOOST_TEST(!are_alike(48, 8, 8));
}

// 64 items in 132 places: a head at a time leaves half of them idle, two heads fill 128; 8 heads are 4 sections, which
// go in pairs.
BOOST_AUTO_TEST_CASE(a_section_is_as_few_heads_as_nearly_fill_the_places) {
    const auto order = order_in_step(64, 8, 132, false);
    BOOST_TEST_REQUIRE(order.has_value());
    BOOST_TEST(order->in_step);
    BOOST_TEST(order->together == 2);
    BOOST_TEST(order->chunk == 64);
    BOOST_TEST(order->chunks == 1);
    BOOST_TEST(order->first_items == 64);
}

// 256 items of a head: two chunks of 128, 124 that would be left over after one.
BOOST_AUTO_TEST_CASE(many_items_of_a_head_go_in_chunks) {
    const auto order = order_in_step(256, 1, 132, false);
    BOOST_TEST_REQUIRE(order.has_value());
    BOOST_TEST(order->together == 1);
    BOOST_TEST(order->chunk == 128);
    BOOST_TEST(order->chunks == 2);
}

BOOST_AUTO_TEST_CASE(there_is_no_order_where_a_section_has_none_to_go_with_unless_items_are_alike) {
    BOOST_TEST(!order_in_step(128, 1, 132, false));
    BOOST_TEST(order_in_step(128, 1, 132, true).has_value());
    BOOST_TEST(!order_in_step(32, 4, 132, false));  // all heads together are one section
    BOOST_TEST(!order_in_step(48, 8, 132, false));  // two heads fill 96 of the places, four would not fit
}

// Of 66 places for items that two thread blocks share each: 32 items of two heads.
BOOST_AUTO_TEST_CASE(blocks_of_a_launch_are_in_step_if_all_have_as_many_items_and_none_is_left_over) {
    const std::vector<std::uint32_t> alike{32, 32, 32}, unlike{32, 16};
    const auto order = joined_order_in_step(alike, 4, 66);
    BOOST_TEST_REQUIRE(order.has_value());
    BOOST_TEST(order->together == 2);
    BOOST_TEST(!joined_order_in_step(unlike, 4, 66));
    BOOST_TEST(!joined_order_in_step({}, 4, 66));
    const std::vector<std::uint32_t> one_over{65, 65};
    BOOST_TEST(order_in_step(65, 4, 64, false).has_value());
    BOOST_TEST(!joined_order_in_step(one_over, 4, 64));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::layouts
