// Under a window a block is sent as far as a row sees it, and no farther; sink tokens travel to all, and theirs alone.
#include "layouts/schedules/schedule.hpp"

#include <boost/test/unit_test.hpp>

#include <map>

using namespace ringlab::layouts;

namespace {

/// How often a block of K and V is sent, by its owner; 8 ranks of 8 tokens.
std::map<int, int> hops_of(const std::string& mask_name, const std::string& algorithm, bool with_sinks) {
    Problem problem{.tokens = 64, .query_heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 8};
    if (with_sinks) problem.sinks = {1, 2};
    const auto mask = make_mask(mask_name, 64);
    const auto schedule = make_schedule(problem, mask, make_layout("contiguous", mask, 8), {.schedule = algorithm});
    std::map<int, int> hops;
    for (int rank = 0; rank < 8; ++rank) {
        auto ops = schedule->ops(rank);
        while (const auto* op = ops.next())
            if ((op->kind == OpKind::send && op->pool == Pool::kv) || op->kind == OpKind::fetch) ++hops[op->part.block];
    }
    return hops;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(window_hops)

// A row sees 9 keys: its own block and the one before. So each block but the last hops once.
BOOST_AUTO_TEST_CASE(hops_beyond_the_window_are_not_made) {
    const std::map<int, int> once{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}};
    for (const std::string algorithm : {"ring", "pull", "joined-ring:1"})
        for (const bool sinks : {false, true}) BOOST_TEST((hops_of("window:8,0", algorithm, sinks) == once), algorithm);
    BOOST_TEST(hops_of("causal", "ring", true).at(0) == 7);
}

// The first 3 keys lie in block 0: it goes to everyone, the others still once.
BOOST_AUTO_TEST_CASE(sink_tokens_travel_to_all_and_no_other_block_does) {
    const std::map<int, int> expected{{0, 7}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}};
    for (const std::string algorithm : {"ring", "pull", "joined-ring:1"})
        for (const bool sinks : {false, true})
            BOOST_TEST((hops_of("window:8,0+sink:3", algorithm, sinks) == expected), algorithm);
}

BOOST_AUTO_TEST_SUITE_END()
