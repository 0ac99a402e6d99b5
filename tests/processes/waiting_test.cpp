#include "processes/waiting.hpp"

#include <boost/test/unit_test.hpp>

#include <thread>

namespace ringlab::processes::tests {

BOOST_AUTO_TEST_SUITE(waiting)

BOOST_AUTO_TEST_CASE(of_a_pause_between_two_looks_a_second_counts) {
    Waiting waiting;
    std::this_thread::sleep_for(Waiting::longest_step * 3 / 2);
    BOOST_TEST((waiting.so_far() == Waiting::longest_step));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto both = waiting.so_far();
    BOOST_TEST((both >= Waiting::longest_step + std::chrono::milliseconds(20)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    BOOST_TEST((waiting.skip() == both));
}

BOOST_AUTO_TEST_CASE(a_wait_that_begins_anew_has_not_waited) {
    Waiting waiting;
    std::this_thread::sleep_for(Waiting::longest_step);
    waiting.restart();
    BOOST_TEST((waiting.so_far() < Waiting::longest_step));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::processes::tests
