#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;

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

BOOST_AUTO_TEST_CASE(blocks_and_gradients_on_one_link_share_it) {
    // Backward on two ranks without compute time. One link per direction carries K,V and then dK,dV.
    const Scenario scenario{.ranks = 2, .tokens_per_rank = 1024, .mask = "full", .pass = Pass::backward};
    const auto schedule = scenario.schedule();
    Machine machine;
    machine.inside_host.link_bytes_per_second = 1e9;
    const auto together = simulate(*schedule, machine, rate_options());
    auto options = rate_options();
    options.sharing = false;
    const auto apart = simulate(*schedule, machine, options);
    BOOST_TEST(together.makespan >= apart.makespan);
    std::int64_t bytes = together.ranks[0].bytes_sent;
    // A link is never faster than its bytes allow.
    BOOST_TEST(double(together.makespan) >= double(bytes) * 1e3 - 1);
}

BOOST_AUTO_TEST_CASE(fetches_of_one_owner_share_its_egress) {
    // A prefix mask on contiguous shards: every rank needs the block of rank 0 besides its own, and fetches it at once.
    const int ranks = 5;
    const std::int64_t tokens = 64;
    const Scenario scenario{.ranks = ranks,
                            .tokens_per_rank = tokens,
                            .layout = "contiguous",
                            .mask = "window:0,0+sink:8",
                            .algorithm = "pull",
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
}

BOOST_AUTO_TEST_SUITE_END()
