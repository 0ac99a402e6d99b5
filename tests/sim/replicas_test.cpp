#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;

// Several rings side by side on one machine.

BOOST_AUTO_TEST_SUITE(replicas)

BOOST_AUTO_TEST_CASE(rings_that_share_nothing_each_take_what_one_takes) {
    std::mt19937 bits(12);
    auto machine = busy_machine();
    machine.hosts = 1;
    machine.gpus_per_host = 48;
    for (int trial = 0; trial < 60; ++trial) {
        const auto scenario = random_scenario(bits);
        const auto schedule = scenario.schedule();
        SimOptions options;
        options.trace = true;
        const auto one = simulate(*schedule, machine, options);
        options.replicas = 3;
        const auto three = simulate(*schedule, machine, options);
        const auto ranks = static_cast<std::size_t>(scenario.ranks), spans = one.timeline.spans.size();
        BOOST_TEST_CONTEXT(scenario.describe()) {
            BOOST_REQUIRE_EQUAL(three.ranks.size(), 3 * ranks);
            BOOST_REQUIRE_EQUAL(three.timeline.spans.size(), 3 * spans);
            for (std::size_t i = 0; i < 3 * spans; ++i) {
                const auto &a = one.timeline.spans[i % spans], &b = three.timeline.spans[i];
                const auto first = static_cast<int>(i / spans * ranks);
                BOOST_REQUIRE_EQUAL(b.rank, first + a.rank);
                BOOST_REQUIRE_EQUAL(b.peer, a.peer < 0 ? a.peer : first + a.peer);
                BOOST_REQUIRE_EQUAL(b.begin, a.begin);
                BOOST_REQUIRE_EQUAL(b.end, a.end);
            }
            BOOST_TEST(three.makespan == one.makespan);
        }
    }
}

BOOST_AUTO_TEST_CASE(rings_from_host_to_host_share_the_ports_of_hosts) {
    // Hosts of 4 GPUs, 4 rings with a rank on each host: every hop goes through a port, which 4 / ports rings share.
    const Scenario scenario{.ranks = 6, .mask = "full"};
    const auto schedule = scenario.schedule();
    Machine machine;
    machine.hosts = 6;
    machine.gpus_per_host = 4;
    machine.between_hosts.link_bytes_per_second = 1e9;
    const auto hop = 1000 * block_bytes(*schedule, 0);
    auto options = rate_options();
    options.replicas = 4;
    for (int ring = 0; ring < 4; ++ring)
        for (int rank = 0; rank < 6; ++rank) options.placement.push_back(4 * rank + ring);
    for (const int ports : {1, 2, 4}) {
        machine.nics_per_host = ports;
        BOOST_TEST(simulate(*schedule, machine, options).makespan == 5 * (4 / ports) * hop);
    }
    // In order most hops stay inside hosts, where they take no time. Of the rings of 6 ranks, two begin in the middle
    // of a host and cross to others twice, two begin with one and cross twice as well; each port carries two rings at
    // the most, 5 blocks of each.
    options.placement.clear();
    machine.nics_per_host = 1;
    BOOST_TEST(simulate(*schedule, machine, options).makespan == 5 * 2 * hop);
}

BOOST_AUTO_TEST_CASE(rings_that_do_not_fit_are_refused) {
    const auto schedule = Scenario{}.schedule();
    Machine machine;
    machine.gpus_per_host = 7;
    auto options = rate_options();
    options.replicas = 2;
    BOOST_CHECK_THROW(simulate(*schedule, machine, options), Error);
    machine.gpus_per_host = 8;
    BOOST_CHECK_NO_THROW(simulate(*schedule, machine, options));
    options.placement = {0, 1, 2, 3};
    BOOST_CHECK_THROW(simulate(*schedule, machine, options), Error);
    options.placement.clear();
    options.replicas = 0;
    BOOST_CHECK_THROW(simulate(*schedule, machine, options), Error);
}

BOOST_AUTO_TEST_SUITE_END()
