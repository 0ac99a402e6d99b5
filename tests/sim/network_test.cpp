#include "scenario.hpp"
#include "sim/machine/topology.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Schedule;

// Leaf switches and the spine above them. Compute takes no time: a ring of P ranks that all hop in T ends after (P - 1)
// T.

namespace {

constexpr double giga = 1e9;

/// Hosts of one GPU and one port each, in leaves of `hosts_per_leaf`; a port does 1 GB/s.
Machine network(int hosts, int hosts_per_leaf, double oversubscription) {
    Machine machine;
    machine.hosts = hosts;
    machine.gpus_per_host = 1;
    machine.between_hosts.link_bytes_per_second = giga;
    machine.network = {.hosts_per_leaf = hosts_per_leaf, .oversubscription = oversubscription};
    return machine;
}

/// Hops are in picoseconds as long as blocks are in bytes, times 1000.
Picoseconds hop(const Schedule& schedule) { return 1000 * block_bytes(schedule, 0); }

}  // namespace

BOOST_AUTO_TEST_SUITE(network_of_leaves)

BOOST_AUTO_TEST_CASE(a_hop_between_leaves_takes_as_many_times_as_long_as_they_are_oversubscribed) {
    const Scenario scenario{.ranks = 6, .mask = "full"};
    const auto schedule = scenario.schedule();
    for (const int oversubscription : {1, 2, 4}) {
        // Every host a leaf of its own.
        auto machine = network(6, 1, oversubscription);
        BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == 5 * oversubscription * hop(*schedule));
        machine.between_hosts.latency_seconds = 2e-6;
        machine.network.spine_latency_seconds = 3e-6;
        BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan ==
                   5 * (oversubscription * hop(*schedule) + 5000000));
    }
}

BOOST_AUTO_TEST_CASE(a_ring_that_leaves_each_leaf_once_shares_its_links_up_with_nobody) {
    // Two leaves of four hosts. In order, one of four ports' flows goes up: 4:1 oversubscribed is just enough. Placed
    // from leaf to leaf in turns, all four do, and each has a quarter.
    const Scenario scenario{.ranks = 8, .mask = "full"};
    const auto schedule = scenario.schedule();
    const auto machine = network(8, 4, 4);
    BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == 7 * hop(*schedule));
    auto options = rate_options();
    options.placement = {0, 4, 1, 5, 2, 6, 3, 7};
    BOOST_TEST(simulate(*schedule, machine, options).makespan == 7 * 4 * hop(*schedule));
    // With everything to itself a flow has all links up.
    options.sharing = false;
    BOOST_TEST(simulate(*schedule, machine, options).makespan == 7 * hop(*schedule));
}

BOOST_AUTO_TEST_CASE(rails_keep_what_goes_from_port_i_to_port_i_off_the_spine) {
    // Two hosts of two GPUs with a port each. In order, GPU 1 sends to GPU 2 and GPU 3 to GPU 0, both from rail 1 to
    // rail 0: its links up do 2 ports / 8, an eighth of a port each. Backwards through the second host, GPU 1 sends to
    // GPU 3 and GPU 2 to GPU 0, each on one rail.
    const Scenario scenario{.ranks = 4, .mask = "full"};
    const auto schedule = scenario.schedule();
    auto machine = network(2, 2, 8);
    machine.gpus_per_host = machine.nics_per_host = 2;
    machine.network.leaves = Network::Leaves::rails;
    BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == 3 * 8 * hop(*schedule));
    auto options = rate_options();
    options.placement = {0, 1, 3, 2};
    BOOST_TEST(simulate(*schedule, machine, options).makespan == 3 * hop(*schedule));
    // A fat tree has both hosts on one leaf.
    machine.network.leaves = Network::Leaves::hosts;
    BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == 3 * hop(*schedule));
}

BOOST_AUTO_TEST_CASE(routes_follow_hosts_leaves_and_rails) {
    Machine machine;
    machine.hosts = 4;
    machine.gpus_per_host = 4;
    machine.nics_per_host = 2;  // GPUs 0 and 1 of a host on port 0, 2 and 3 on port 1
    const auto route = [&](int source, int destination) {
        return Topology(16, machine, {}).route(source, destination);
    };
    BOOST_TEST((route(0, 3) == Route::inside_host));
    BOOST_TEST((route(0, 15) == Route::leaf));  // one switch
    machine.network.hosts_per_leaf = 2;
    BOOST_TEST((route(0, 7) == Route::leaf));
    BOOST_TEST((route(7, 8) == Route::spine));
    machine.network.leaves = Network::Leaves::rails;
    BOOST_TEST((route(0, 5) == Route::leaf));
    BOOST_TEST((route(0, 6) == Route::spine));
    BOOST_TEST((route(2, 7) == Route::leaf));
    BOOST_TEST((route(2, 10) == Route::spine));
    // Ports of the whole machine, and leaves: two groups of hosts with a rail for each port.
    const Topology topology(16, machine, {});
    BOOST_TEST(topology.port(6) == 3);
    BOOST_TEST(topology.leaf(6) == 1);
    BOOST_TEST(topology.leaf(8) == 2);
    BOOST_TEST(topology.hosts() == 4);
}

BOOST_AUTO_TEST_SUITE_END()
