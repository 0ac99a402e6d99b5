#include "reference/error/deviations.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>

namespace ringlab::reference {
namespace {

Deviation of(const std::vector<double>& measured, const std::vector<double>& expected) {
    return deviation("numbers", measured, expected);
}

constexpr double exact = 1e-12;  // a handful of roundings

}  // namespace

BOOST_AUTO_TEST_SUITE(errors)

BOOST_AUTO_TEST_CASE(a_deviation_is_relative_to_norm_and_to_the_largest) {
    const auto d = of({3, 4.5}, {3, 4});
    BOOST_TEST(d.relative_rms == 0.5 / 5, boost::test_tools::tolerance(exact));
    BOOST_TEST(d.max_abs == 0.5);
    BOOST_TEST(d.max_to_largest == 0.5 / 4);
}

// The square of 2e-170 is no double: the difference is there all the same.
BOOST_AUTO_TEST_CASE(differences_whose_squares_vanish_are_counted) {
    const auto d = of({1e-140, 3e-170}, {1e-140, 1e-170});
    BOOST_TEST(d.relative_rms == 2e-30, boost::test_tools::tolerance(exact));
    BOOST_TEST(d.max_to_largest == 2e-30, boost::test_tools::tolerance(exact));
}

// Where all that is expected is below `vanishing`, subnormal or not, it counts as 0 and differences as they are.
BOOST_AUTO_TEST_CASE(subnormal_numbers_count_as_nothing_and_never_as_nan) {
    constexpr double least = std::numeric_limits<double>::denorm_min();
    for (const double expected : {least, 1e-310, 1e-200, vanishing / 2}) {
        BOOST_TEST_CONTEXT(expected << " expected") {
            const auto d = of({3 * expected, 0}, {expected, 0});
            BOOST_TEST(d.relative_rms == 2 * expected, boost::test_tools::tolerance(exact));
            BOOST_TEST(d.max_to_largest == 2 * expected);
            BOOST_TEST(of({0, 0}, {expected, -expected}).relative_rms < 1e-100);
            BOOST_TEST(of({1, 0}, {expected, 0}).relative_rms == 1);
        }
    }
    const auto above = of({4 * vanishing, 0}, {2 * vanishing, 0});
    BOOST_TEST(above.relative_rms == 1);
    BOOST_TEST(above.max_to_largest == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference
