// Ranks that are said to do the same but for their number do.
#include "layouts/schedules/schedule.hpp"
#include "tests/layouts/schedule_checker.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

/// An operation of rank 0 as it is said to be of another rank.
Op moved(const Schedule& schedule, Op op, int rank) {
    for (auto* number : {&op.part.block, &op.second.block, &op.peer})
        if (*number >= 0) *number = (*number + rank) % schedule.ranks();
    return op;
}

bool same(const Schedule& schedule, const Op& a, const Op& b) {
    const bool attends = a.kind == OpKind::attend;
    return a.kind == b.kind && a.pool == b.pool && a.begins == b.begins && a.ends == b.ends && a.adds == b.adds &&
           a.fused == b.fused && a.channel == b.channel && a.step == b.step && a.peer == b.peer &&
           a.source == b.source && a.part == b.part && (a.transfers() || a.second == b.second) && a.slots == b.slots &&
           a.bytes == b.bytes && std::ranges::equal(a.after(), b.after()) &&
           (!attends || (b.pair_count > 0 && b.pair_count == schedule.pair_count(b.rows(), b.part) &&
                         schedule.is_whole(b.rows()) && schedule.is_whole(b.part)));
}

bool ring_is_alike(const std::string& mask, const std::string& layout, const std::string& schedule_name = "ring") {
    return schedule_of(exact_case(mask, layout, 64, 4), {.schedule = schedule_name})->is_rank_symmetric();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(alike)

void check_moved_operations(const Schedule& schedule) {
    const auto all = written(schedule);
    for (int rank = 1; rank < schedule.ranks(); ++rank) {
        const auto& ops = all[static_cast<std::size_t>(rank)];
        BOOST_TEST_REQUIRE(ops.size() == all[0].size());
        for (std::size_t i = 0; i < ops.size(); ++i)
            BOOST_TEST(same(schedule, moved(schedule, all[0][i], rank), ops[i]),
                       schedule.mask().name() << ", " << schedule.layout().name() << ", rank " << rank << " of "
                                              << schedule.ranks() << ", operation " << i);
    }
}

BOOST_DATA_TEST_CASE(alike_ranks_have_the_operations_of_rank_0_moved_around_the_ring,
                     data::make(passes) * data::make(layout_specs()), pass, layout) {
    Combinations combinations;
    for (const auto& schedule_name : schedule_names)
        for (const int ranks : rank_counts()) {
            if (!combinations.take(suits(schedule_name, ranks))) continue;
            for (const auto& mask : mask_specs())
                for (const auto accumulation : {Accumulation::carry, Accumulation::partials}) {
                    if (!runs_in_this_build(16)) continue;
                    const auto made =
                        schedule_of(make_case(mask, layout, ranks),
                                    {.schedule = schedule_name, .pass = pass, .accumulation = accumulation});
                    if (combinations.take(made->is_rank_symmetric())) check_moved_operations(*made);
                }
        }
}

BOOST_AUTO_TEST_CASE(pairs_that_order_decides_are_the_same_for_all_ranks_in_that_order) {
    int decided = 0;
    for (const auto& layout : layout_specs())
        for (const auto& mask : {"full", "causal"})
            for (const int ranks : rank_counts()) {
                const auto shown = make_mask(mask, 48 * ranks);
                const auto schedule = schedule_of({shown, make_case_layout(layout, shown, ranks)}, {});
                if (!pairs_depend_on_rank_order(schedule->mask(), schedule->layout())) continue;
                ++decided;
                for (int rows = 0; rows < ranks; ++rows)
                    for (int keys = 0; keys < ranks; ++keys) {
                        const int low = 0, high = rows == keys ? 0 : ranks - 1;
                        const auto expected =
                            rows < keys ? schedule->pair_count(low, high) : schedule->pair_count(high, low);
                        BOOST_TEST(schedule->pair_count(rows, keys) == expected, mask << ", " << layout << ", rows of "
                                                                                      << rows << " and keys of " << keys
                                                                                      << " of " << ranks << " ranks");
                    }
            }
    BOOST_TEST(decided > 30);
}

BOOST_AUTO_TEST_CASE(a_ring_is_alike_where_all_ranks_see_something_of_equal_shards) {
    for (const auto* layout : {"contiguous", "zigzag", "striped", "striped:4"})
        BOOST_TEST(ring_is_alike("full", layout));
    for (const auto* layout : {"zigzag", "striped", "striped:4"}) BOOST_TEST(ring_is_alike("causal", layout));
    BOOST_TEST(!ring_is_alike("causal", "contiguous"));
    BOOST_TEST(!ring_is_alike("window:8,0", "zigzag"));
    BOOST_TEST(!ring_is_alike("causal+documents:20,44", "zigzag"));
}

// Written by hand, because the registry does not say it. What a new schedule says of itself is judged above.
BOOST_AUTO_TEST_CASE(schedules_that_go_by_distances_between_ranks_are_alike_where_a_ring_is) {
    for (const auto* schedule_name : {"bidirectional", "all-gather", "all-gather:2", "pull", "joined-ring", "pass-q"}) {
        BOOST_TEST(ring_is_alike("causal", "zigzag", schedule_name));
        BOOST_TEST(!ring_is_alike("causal", "contiguous", schedule_name));
        BOOST_TEST(!ring_is_alike("window:8,0", "zigzag", schedule_name));
    }
    for (const auto* schedule_name : {"double-ring:2", "merge", "seen"})
        BOOST_TEST(!ring_is_alike("causal", "zigzag", schedule_name));
}

BOOST_AUTO_TEST_SUITE_END()
