#include "experiments/options/values.hpp"
#include "experiments/study/in_order.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <stdexcept>
#include <string>

namespace ringlab::experiments {

BOOST_AUTO_TEST_SUITE(parallel)

BOOST_DATA_TEST_CASE(what_is_made_on_threads_is_taken_in_order, boost::unit_test::data::make({1, 2, 5, 200}), threads) {
    std::atomic<int> made = 0;
    std::vector<std::size_t> taken;
    make_in_parallel(
        100, threads,
        [&](std::size_t i) {
            ++made;
            if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return std::to_string(i);
        },
        [&](std::size_t i, const std::string& result) {
            BOOST_REQUIRE(result == std::to_string(i));
            // Nobody runs far ahead of what is taken, so that few results wait.
            BOOST_REQUIRE(made <= static_cast<int>(i) + 1 + 2 * threads);
            taken.push_back(i);
        });
    BOOST_TEST(taken.size() == 100u);
    BOOST_TEST(made == 100);
    make_in_parallel(
        0, threads, [](std::size_t i) { return i; }, [](std::size_t, std::size_t) { BOOST_ERROR("none"); });
}

BOOST_DATA_TEST_CASE(an_error_comes_when_its_turn_does, boost::unit_test::data::make({1, 4}), threads) {
    for (const bool while_making : {true, false}) {
        std::size_t taken = 0;
        const auto all = [&] {
            make_in_parallel(
                50, threads,
                [&](std::size_t i) {
                    if (while_making && i == 20) throw std::runtime_error("twenty");
                    return i;
                },
                [&](std::size_t i, std::size_t) {
                    if (!while_making && i == 20) throw std::runtime_error("twenty");
                    ++taken;
                });
        };
        BOOST_CHECK_EXCEPTION(all(), std::runtime_error,
                              [](const auto& error) { return std::string(error.what()) == "twenty"; });
        BOOST_TEST(taken == 20u);
    }
}

BOOST_AUTO_TEST_CASE(percentiles_lie_between_neighbours) {
    BOOST_TEST(percentile({5}, 99) == 5);
    BOOST_TEST(percentile({4, 1, 3, 2}, 0) == 1);
    BOOST_TEST(percentile({4, 1, 3, 2}, 50) == 2.5);
    BOOST_TEST(percentile({4, 1, 3, 2}, 100) == 4);
    BOOST_TEST(percentile({10, 20, 30, 40, 50}, 95) == 48);  // NumPy's numbers
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
