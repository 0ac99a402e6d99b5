#include "gpu/device/steady.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::gpu {

BOOST_AUTO_TEST_SUITE(steady)

BOOST_AUTO_TEST_CASE(the_median_is_the_middle_or_the_mean_of_two) {
    BOOST_TEST(median({3, 1, 2}) == 2);
    BOOST_TEST(median({4, 1, 3, 2}) == 2.5);
    BOOST_TEST(median({7}) == 7);
}

BOOST_AUTO_TEST_CASE(equal_times_are_steady_as_soon_as_enough_was_spent) {
    Steady watch(1.0);
    int passes = 0;
    for (; !watch.reached(); ++passes) watch.add(0.03125);
    BOOST_TEST(passes == 32);
}

BOOST_AUTO_TEST_CASE(times_that_grow_are_watched_until_they_settle) {
    // 1 % longer every pass up to the 60th. The middle of the last quarter but one is at 5/8 of the passes, so both
    // medians are of settled ones from 60 * 8/5 = 96 passes on, long before four times the least is spent at 126.
    Steady watch(0.5);
    double seconds = 0.01;
    int passes = 0;
    for (; !watch.reached(); ++passes) {
        watch.add(seconds);
        if (passes < 60) seconds *= 1.01;
    }
    BOOST_TEST(passes > 92);
    BOOST_TEST(passes < 100);
}

BOOST_AUTO_TEST_CASE(times_that_never_settle_end_at_four_times_the_least) {
    Steady watch(1.0);
    double spent = 0, seconds = 0.001;
    while (!watch.reached()) {
        watch.add(seconds);
        spent += seconds;
        seconds *= 1.1;
    }
    BOOST_TEST(spent >= 4);
    BOOST_TEST(spent - seconds / 1.1 < 4);
}

BOOST_AUTO_TEST_CASE(no_time_to_spend_is_steady_at_once) { BOOST_TEST(Steady(0).reached()); }

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::gpu
