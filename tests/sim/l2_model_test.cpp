#include "sim/tiles/l2_model.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

namespace ringlab::sim {

BOOST_AUTO_TEST_SUITE(row_cache)

// One SM goes over 4 tiles for each of 3 work tiles: a cache of 3 has always lost the tile that comes next.
BOOST_AUTO_TEST_CASE(tiles_that_made_room_for_others_are_read_again) {
    const std::vector<layouts::Interval> all{{0, 4}};
    CachedBlock block;
    for (int work_tile = 0; work_tile < 3; ++work_tile) block.work_tiles.push_back(all);
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = 4}) == 0);
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = 3}) == 8);
    // Three SMs are at the same tile all the time.
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 3, .room = 1}) == 0);
}

// Three SMs, each a tile behind the one before it: when the first asks for a new tile, the others have yet to
// ask for the three behind it.
BOOST_AUTO_TEST_CASE(sms_that_follow_each_other_closely_find_what_the_first_has_read) {
    const std::vector<layouts::Interval> first{{2, 8}}, second{{1, 7}}, third{{0, 6}};
    CachedBlock block;
    block.work_tiles = {first, second, third};
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 3, .room = 4}) == 0);
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 3, .room = 2}) > 0);
}

// Work tile 0 has tiles 0 and 1, work tile 1 has 1 and 2, each for two query heads: tile 1 of the first head comes
// again behind two tiles of the second.
BOOST_AUTO_TEST_CASE(a_work_tile_walks_head_by_head) {
    const std::vector<layouts::Interval> first{{0, 2}}, second{{1, 3}};
    CachedBlock block;
    block.work_tiles = {first, second};
    block.group = 2;
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = 3}) == 0);
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = 2}) == 2);
    block.kv_heads = 2;  // work tile by work tile: all heads of one before the next
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = 7}) == 0);
    BOOST_TEST(count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = 3}) == 4);
    BOOST_TEST(count_l2_misses({&block, 1}, {.leading_tiles = 2, .heads_at_a_time = 1, .section_tiles = 2},
                               {.concurrent_work_tiles = 1, .room = 3}) == 0);
}

BOOST_AUTO_TEST_CASE(blocks_of_a_launch_meet_the_same_rows) {
    const std::vector<layouts::Interval> all{{0, 4}};
    std::vector<CachedBlock> blocks(2);
    for (auto& block : blocks) block.work_tiles = {all};
    BOOST_TEST(count_l2_misses(blocks, {}, {.concurrent_work_tiles = 1, .room = 3}) == 4);
    blocks[1].first_head = 1;
    BOOST_TEST(count_l2_misses(blocks, {}, {.concurrent_work_tiles = 1, .room = 3}) == 0);
    blocks[1] = blocks[0];
    blocks[1].first_tile = 4;
    BOOST_TEST(count_l2_misses(blocks, {}, {.concurrent_work_tiles = 1, .room = 3}) == 0);
}

// 4096 tiles, 512 times: all but the first time they are read again, as far as a part of them tells (which one in eight
// is hit by chance: five standard deviations of 512 tiles are a fifth of them).
BOOST_AUTO_TEST_CASE(of_many_steps_a_part_tells) {
    constexpr std::int64_t tiles = 4096, work_tiles = 512;
    const std::vector<layouts::Interval> all{{0, tiles}};
    CachedBlock block;
    for (int work_tile = 0; work_tile < work_tiles; ++work_tile) block.work_tiles.push_back(all);
    const auto reread = count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = tiles / 2});
    BOOST_TEST(reread == double(tiles * (work_tiles - 1)), boost::test_tools::tolerance(0.2));
    BOOST_TEST(reread == count_l2_misses({&block, 1}, {}, {.concurrent_work_tiles = 1, .room = tiles / 2}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
