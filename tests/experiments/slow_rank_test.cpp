#include "experiments/execution/machine_fault.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::experiments::tests {
namespace {

/// Attends of ranks to so many pairs, in milliseconds.
RingRun timed(const std::vector<std::vector<std::pair<std::int64_t, double>>>& of_rank) {
    layouts::Timeline timeline;
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank)
        for (const auto& [pair_count, milliseconds] : of_rank[rank]) {
            layouts::Span span;
            span.rank = static_cast<int>(rank);
            span.pair_count = pair_count;
            span.busy = static_cast<layouts::Picoseconds>(1e9 * milliseconds);
            timeline.spans.push_back(span);
        }
    timeline.ranks = static_cast<int>(of_rank.size());
    RingRun one;
    one.forward.timelines = {timeline};
    return one;
}

std::optional<SlowRank> slow_of(const RingRun& one) { return slow_rank({one}); }

}  // namespace

BOOST_AUTO_TEST_SUITE(slow_ranks)

BOOST_AUTO_TEST_CASE(a_rank_that_takes_twice_the_others_time_for_equal_work_is_slow) {
    const auto slow = slow_of(timed({{{100, 1.0}}, {{100, 1.1}}, {{100, 2.5}}, {{100, 0.9}}}));
    BOOST_REQUIRE(slow.has_value());
    BOOST_TEST(slow->rank == 2);
    BOOST_TEST(slow->factor == 2.5, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(more_work_a_single_disturbance_or_a_tiny_attend_make_no_rank_slow) {
    // Twice the pairs in twice the time.
    BOOST_TEST(!slow_of(timed({{{100, 1.0}}, {{100, 1.0}}, {{200, 2.5}}})));
    // One of two attends was disturbed.
    BOOST_TEST(!slow_of(timed({{{100, 1.0}, {100, 1.0}}, {{100, 9.0}, {100, 1.0}}, {{100, 1.0}, {100, 1.0}}})));
    // One of two kinds of work was.
    BOOST_TEST(!slow_of(timed({{{100, 1.0}, {200, 2.0}}, {{100, 9.0}, {200, 2.0}}, {{100, 1.0}, {200, 2.0}}})));
    BOOST_TEST(!slow_of(timed({{{100, 0.1}}, {{100, 0.9}}, {{100, 0.1}}})));
    BOOST_TEST(!slow_of(timed({{{100, 1.0}}})));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::tests
