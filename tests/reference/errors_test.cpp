#include "reference/error/deviations.hpp"
#include "tests/error_of.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

namespace ringlab::reference {
namespace {

Deviation of(const std::vector<double>& measured, const std::vector<double>& expected) {
    return deviation("numbers", measured, expected);
}

constexpr double exact = 1e-12;  // a handful of roundings
constexpr double infinity = std::numeric_limits<double>::infinity();

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
    for (const double expected : {0.0, least, 1e-310, 1e-200, vanishing / 2}) {
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

BOOST_AUTO_TEST_CASE(equal_infinities_are_no_deviation_and_others_and_nan_are_infinite) {
    BOOST_TEST(of({-infinity, 1}, {-infinity, 1}).max_abs == 0);
    const double nan = std::nan("");
    for (const auto& [measured, expected] : {std::pair{-infinity, -1e300},
                                             {-1e300, -infinity},
                                             {infinity, -infinity},
                                             {nan, 1.0},
                                             {1.0, nan},
                                             {nan, nan}}) {
        const auto d = of({measured, 1}, {expected, 1});
        for (const double each : {d.relative_rms, d.max_abs, d.max_to_largest}) BOOST_TEST(each == infinity);
    }
}

BOOST_AUTO_TEST_CASE(different_shapes_are_refused_with_both) {
    BOOST_TEST(ringlab::tests::error_of([] {
                   of({0, 0}, {0, 0, 0});
               }) == "numbers: measured shape (2, 1, 1, 1) differs from expected shape (3, 1, 1, 1)");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference
