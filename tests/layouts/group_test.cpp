#include "layouts/basics/ring_group.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <set>
#include <vector>

using ringlab::layouts::RingGroup;
using Placement = RingGroup::Placement;
namespace data = boost::unit_test::data;

BOOST_AUTO_TEST_SUITE(group)

BOOST_AUTO_TEST_CASE(three_rings_of_two_lie_in_a_world_of_six) {
    const auto ranks = [](Placement placement, int replica) {
        const RingGroup group{.ring = 2, .replicas = 3, .placement = placement};
        return std::vector<int>{group.global_rank(replica, 0), group.global_rank(replica, 1)};
    };
    BOOST_TEST(ranks(Placement::consecutive, 0) == (std::vector<int>{0, 1}), boost::test_tools::per_element());
    BOOST_TEST(ranks(Placement::consecutive, 2) == (std::vector<int>{4, 5}), boost::test_tools::per_element());
    BOOST_TEST(ranks(Placement::strided, 0) == (std::vector<int>{0, 3}), boost::test_tools::per_element());
    BOOST_TEST(ranks(Placement::strided, 2) == (std::vector<int>{2, 5}), boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(every_global_rank_is_one_ring_rank_of_one_replica,
                     data::make({1, 2, 3, 8}) * data::make({1, 2, 5}) * data::make({false, true}), ring, replicas,
                     strided) {
    const RingGroup group{
        .ring = ring, .replicas = replicas, .placement = strided ? Placement::strided : Placement::consecutive};
    BOOST_TEST(group.world() == ring * replicas);
    std::set<int> seen;
    for (int replica = 0; replica < replicas; ++replica)
        for (int rank = 0; rank < ring; ++rank) {
            const int global = group.global_rank(replica, rank);
            BOOST_TEST((0 <= global && global < group.world()));
            BOOST_TEST(group.ring_rank(global) == rank);
            BOOST_TEST(group.replica(global) == replica);
            seen.insert(global);
        }
    BOOST_TEST(static_cast<int>(seen.size()) == group.world());
}

BOOST_AUTO_TEST_SUITE_END()
