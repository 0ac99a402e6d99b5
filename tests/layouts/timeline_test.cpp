#include "layouts/program/timeline.hpp"

#include "tests/layouts/cases.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;

namespace {

Span span(int rank, OpKind kind, Lane lane, Interval time, Picoseconds busy, std::int64_t pair_count,
          std::int64_t bytes) {
    return {.rank = rank,
            .kind = kind,
            .lane = lane,
            .posted = time.begin,
            .begin = time.begin,
            .end = time.end,
            .busy = busy,
            .pair_count = pair_count,
            .bytes = bytes};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(timeline)

BOOST_AUTO_TEST_CASE(totals_are_added_up_rank_by_rank) {
    //            0         10        20        30        40
    // rank 0     [attend 0-10) busy 8   [attend 20-25) [merge 25-27)
    //            [send 0-12)    [receive 5-18)                [receive 30-34)
    // rank 1     nothing but one fetch 3-9
    const Timeline timeline{.ranks = 3,
                            .spans = {
                                span(0, OpKind::attend, 0, {0, 10}, 8, 100, 0),
                                span(0, OpKind::send, 1, {0, 12}, 12, 0, 7),
                                span(0, OpKind::receive, 2, {5, 18}, 13, 0, 11),
                                span(0, OpKind::attend, 0, {20, 25}, 5, 30, 0),
                                span(0, OpKind::merge, 0, {25, 27}, 2, 0, 0),
                                span(0, OpKind::receive, 4, {30, 34}, 4, 0, 13),
                                span(1, OpKind::fetch, 2, {3, 9}, 6, 0, 17),
                            }};
    BOOST_TEST(timeline.makespan() == 34);
    const auto all = totals(timeline);
    BOOST_REQUIRE(all.size() == 3);

    BOOST_TEST(all[0].compute == 8 + 5 + 2);
    BOOST_TEST(all[0].communication == 18 + 4);  // [0, 18) and [30, 34)
    BOOST_TEST(all[0].exposed == 34 - 17);
    BOOST_TEST(all[0].end == 34);
    BOOST_TEST(all[0].pair_count == 130);
    BOOST_TEST(all[0].bytes_sent == 7);
    BOOST_TEST(all[0].bytes_received == 11 + 13);

    BOOST_TEST(all[1].compute == 0);
    BOOST_TEST(all[1].communication == 6);
    BOOST_TEST(all[1].exposed == 9);
    BOOST_TEST(all[1].end == 9);
    BOOST_TEST(all[1].bytes_received == 17);

    BOOST_TEST(all[2].end == 0);
    BOOST_TEST(all[2].exposed == 0);
}

BOOST_AUTO_TEST_CASE(an_empty_timeline_takes_no_time) {
    BOOST_TEST(Timeline{}.makespan() == 0);
    BOOST_TEST(totals(Timeline{}).empty());
}

BOOST_AUTO_TEST_CASE(imbalance_is_largest_over_mean) {
    BOOST_TEST(imbalance({2, 2, 2}) == 1.0);
    BOOST_TEST(imbalance({0, 4}) == 2.0);
    BOOST_TEST(imbalance({1, 2, 3, 6}) == 2.0);
    BOOST_TEST(imbalance({0, 0}) == 1.0);
    BOOST_TEST(imbalance({5}) == 1.0);
    BOOST_TEST(error_of([] { imbalance({}); }) == "imbalance of no values; there must be at least one rank");
}

BOOST_AUTO_TEST_CASE(seconds_and_picoseconds_convert_to_the_nearest_tick) {
    BOOST_TEST(to_picoseconds(1.0) == 1'000'000'000'000);
    BOOST_TEST(to_picoseconds(2.6e-12) == 3);
    BOOST_TEST(to_picoseconds(-2.6e-12) == -3);
    BOOST_TEST(to_picoseconds(0.0) == 0);
    BOOST_TEST(to_seconds(1'500'000'000'000) == 1.5);
}

BOOST_AUTO_TEST_CASE(the_typical_timeline_is_the_one_with_the_median_makespan) {
    const auto of = [](Picoseconds end) {
        Timeline timeline;
        timeline.spans.emplace_back().end = end;
        return timeline;
    };
    const std::vector odd{of(70), of(10), of(30), of(20), of(25)}, even{of(4), of(1), of(3), of(2)}, one{of(5)};
    BOOST_TEST(typical(odd) == 4u);
    BOOST_TEST(typical(even) == 3u);
    BOOST_TEST(typical(one) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
