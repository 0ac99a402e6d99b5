#include "scenario.hpp"
#include "sim/machine/topology.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;
using ringlab::layouts::Schedule;

// What shares a resource on a described machine, one effect at a time.

BOOST_AUTO_TEST_SUITE(contention)

BOOST_AUTO_TEST_CASE(a_copy_slows_compute_by_the_memory_it_takes) {
    // Copies as long as compute, in and out at once: 4200 - 2*389 of 3740 left throughout.
    const Scenario scenario{.ranks = 2, .tokens_per_rank = 1024, .mask = "full"};
    const auto schedule = scenario.schedule();
    auto machine = pair_machine(scenario);
    machine.memory_bytes_per_second = 4200e9;
    machine.attention_memory_bytes_per_second = 3740e9;
    machine.inside_host.link_bytes_per_second = 389e9;
    machine.inside_host.send_memory_ratio = machine.inside_host.receive_memory_ratio = 1;
    const auto prediction = simulate(*schedule, machine, rate_options());
    const double compute = 1024.0 * 1024, hop = double(block_bytes(*schedule, 0)) / 389e9 * 1e12;
    const double speed = (4200 - 2 * 389) / 3740.0;
    // The hop (5.4 us) outlasts step 0 (1.05 us) of compute: all of step 0 is slowed, nothing of step 1.
    BOOST_REQUIRE(hop > compute / speed);
    BOOST_TEST(std::abs(double(prediction.ranks[0].compute) - compute * (1 / speed + 1)) <= 2.0);
    BOOST_TEST(std::abs(double(prediction.makespan) - (hop + compute)) <= 2.0);
    BOOST_TEST(1 / speed > 1.07);
    BOOST_TEST(1 / speed < 1.10);
}

BOOST_AUTO_TEST_CASE(fetches_of_one_owner_share_its_egress) {
    // A prefix mask on contiguous shards: every rank needs the block of rank 0 besides its own, and fetches it at once.
    const int ranks = 5;
    const std::int64_t tokens = 64;
    const Scenario scenario{.ranks = ranks,
                            .tokens_per_rank = tokens,
                            .layout = "contiguous",
                            .mask = "window:0,0+sink:8",
                            .schedule_name = "pull",
                            .query_heads = 1,
                            .kv_heads = 1};
    const auto schedule = scenario.schedule();
    Machine machine;
    machine.inside_host.link_bytes_per_second = 1e9;
    const auto bytes = block_bytes(*schedule, 0);
    const auto prediction = simulate(*schedule, machine, rate_options());
    BOOST_TEST(prediction.makespan == (ranks - 1) * bytes * 1000);
    machine.inside_host.link_bytes_per_second = std::numeric_limits<double>::infinity();
    machine.inside_host.channel_bytes_per_second = 1e9;
    BOOST_TEST(simulate(*schedule, machine, rate_options()).makespan == bytes * 1000);
}

BOOST_AUTO_TEST_CASE(a_kernel_that_waits_for_its_peer_holds_its_sms) {
    // Rank 1 starts late; the send and receive kernels of rank 0 wait for it on 2 of 8 multiprocessors each, and its
    // compute runs at (8 - 4) / 8 meanwhile. Transfers themselves take no time.
    const Scenario scenario{.ranks = 2, .tokens_per_rank = 1024, .mask = "full"};
    const auto schedule = scenario.schedule();
    auto machine = pair_machine(scenario);
    machine.sms = 8;
    machine.inside_host.carrier = LinkCost::Carrier::kernels;
    machine.inside_host.sms_per_channel = 2;
    auto options = rate_options();
    const Picoseconds compute = 1024 * 1024, late = 100 * compute;
    options.start = {0, late};
    const auto prediction = simulate(*schedule, machine, options);
    BOOST_TEST(prediction.ranks[0].compute == 2 * compute + compute);
    BOOST_TEST(prediction.ranks[0].end == late + compute);
    machine.inside_host.carrier = LinkCost::Carrier::copy_engines;
    BOOST_TEST(simulate(*schedule, machine, options).ranks[0].compute == 2 * compute);
}

BOOST_AUTO_TEST_CASE(options_out_of_range_are_refused) {
    const auto schedule = Scenario{}.schedule();
    Machine small;
    small.gpus_per_host = 2;
    BOOST_CHECK_THROW(simulate(*schedule, small, {}), Error);
    SimOptions options;
    options.start = {1, 2};
    BOOST_CHECK_THROW(simulate(*schedule, Machine{}, options), Error);
    options.start = {0, 0, 0, -1};
    BOOST_CHECK_THROW(simulate(*schedule, Machine{}, options), Error);
    options = {};
    options.placement = {0, 1, 2, 2};
    BOOST_CHECK_THROW(simulate(*schedule, Machine{}, options), Error);
    // Several rings.
    small.gpus_per_host = 7;
    options = rate_options();
    options.replicas = 2;
    BOOST_CHECK_THROW(simulate(*schedule, small, options), Error);
    options.placement = {0, 1, 2, 3};
    BOOST_CHECK_THROW(simulate(*schedule, Machine{}, options), Error);
    options.placement.clear();
    options.replicas = 0;
    BOOST_CHECK_THROW(simulate(*schedule, Machine{}, options), Error);
}

BOOST_AUTO_TEST_SUITE_END()

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

BOOST_AUTO_TEST_SUITE_END()
