#include "sim/row_cache.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

namespace ringlab::sim {

BOOST_AUTO_TEST_SUITE(row_cache)

// One processor goes over 4 tiles for each of 3 items: a cache of 3 has always lost the tile that comes next.
BOOST_AUTO_TEST_CASE(tiles_that_made_room_for_others_are_read_again) {
    const std::vector<layouts::Interval> all{{0, 4}};
    WalkedBlock block;
    for (int item = 0; item < 3; ++item) block.items.push_back({all, 0, 1});
    BOOST_TEST(reread_tiles({&block, 1}, {}, 1, 4) == 0);
    BOOST_TEST(reread_tiles({&block, 1}, {}, 1, 3) == 8);
    BOOST_TEST(reread_tiles({&block, 1}, {}, 3, 1) == 0);  // three processors are at the same tile all the time
}

// Three processors, each a tile behind the one before it: when the first asks for a new tile, the last has yet to ask
// for the three behind it.
BOOST_AUTO_TEST_CASE(processors_that_follow_each_other_closely_find_what_the_first_has_read) {
    const std::vector<layouts::Interval> all{{0, 6}};
    WalkedBlock block;
    for (int item = 0; item < 3; ++item) block.items.push_back({all, static_cast<double>(item), 1});
    BOOST_TEST(reread_tiles({&block, 1}, {}, 3, 4) == 0);
    BOOST_TEST(reread_tiles({&block, 1}, {}, 3, 2) > 0);
}

// Item 0 has tiles 0 and 1, item 1 has 1 and 2, each for two query heads: tile 1 of the first head comes again behind
// two tiles of the second.
BOOST_AUTO_TEST_CASE(an_item_walks_head_by_head) {
    const std::vector<layouts::Interval> first{{0, 2}}, second{{1, 3}};
    WalkedBlock block;
    block.items = {{first, 0, 1}, {second, 0, 1}};
    block.group = 2;
    BOOST_TEST(reread_tiles({&block, 1}, {}, 1, 3) == 0);
    BOOST_TEST(reread_tiles({&block, 1}, {}, 1, 2) == 2);
    block.kv_heads = 2;  // item by item: all heads of one before the next
    BOOST_TEST(reread_tiles({&block, 1}, {}, 1, 7) == 0);
    BOOST_TEST(reread_tiles({&block, 1}, {}, 1, 3) == 4);
    BOOST_TEST(reread_tiles({&block, 1}, {.first_items = 2, .together = 1, .chunk = 2}, 1, 3) == 0);
}

BOOST_AUTO_TEST_CASE(blocks_of_a_launch_meet_the_same_rows) {
    const std::vector<layouts::Interval> all{{0, 4}};
    std::vector<WalkedBlock> blocks(2);
    for (auto& block : blocks) block.items = {{all, 0, 1}};
    BOOST_TEST(reread_tiles(blocks, {}, 1, 3) == 4);
    blocks[1].first_head = 1;
    BOOST_TEST(reread_tiles(blocks, {}, 1, 3) == 0);
    blocks[1] = blocks[0];
    blocks[1].first_tile = 4;
    BOOST_TEST(reread_tiles(blocks, {}, 1, 3) == 0);
}

// 4096 tiles, 512 times: all but the first time they are read again, as far as a part of them tells (which one in eight
// is hit by chance: five standard deviations of 512 tiles are a fifth of them).
BOOST_AUTO_TEST_CASE(of_many_steps_a_part_tells) {
    constexpr std::int64_t tiles = 4096, items = 512;
    const std::vector<layouts::Interval> all{{0, tiles}};
    WalkedBlock block;
    for (int item = 0; item < items; ++item) block.items.push_back({all, 0, 1});
    const auto reread = reread_tiles({&block, 1}, {}, 1, tiles / 2);
    BOOST_TEST(reread == double(tiles * (items - 1)), boost::test_tools::tolerance(0.2));
    BOOST_TEST(reread == reread_tiles({&block, 1}, {}, 1, tiles / 2));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
