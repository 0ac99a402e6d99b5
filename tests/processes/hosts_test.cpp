#include "processes/session.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::processes::tests {

BOOST_AUTO_TEST_SUITE(hosts)

BOOST_AUTO_TEST_CASE(ranks_are_gathered_by_host_in_the_order_of_first_ranks) {
    const auto found = hosts_from({0, 1, 0, 1, 0}, {"b", "a", "b", "a", "b"});
    BOOST_REQUIRE(found.size() == 2u);
    BOOST_TEST(found[0].name == "b");
    BOOST_TEST(found[0].ranks == (std::vector<int>{0, 2, 4}), boost::test_tools::per_element());
    BOOST_TEST(found[1].name == "a");
    BOOST_TEST(found[1].ranks == (std::vector<int>{1, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(hosts_that_call_themselves_the_same_are_told_apart) {
    const auto found = hosts_from({0, 0, 2}, {"node", "node", "node"});
    BOOST_REQUIRE(found.size() == 2u);
    BOOST_TEST(found[0].name == "node (of rank 0)");
    BOOST_TEST(found[1].name == "node (of rank 2)");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::processes::tests
