#include "scenario.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;
using ringlab::layouts::Schedule;
using ringlab::layouts::to_seconds;
namespace data = boost::unit_test::data;

// Stragglers and noise against closed forms.

namespace {

struct Moments {
    double mean = 0, deviation = 0;
};

Moments moments(const std::vector<double>& values) {
    Moments found;
    for (const auto value : values) found.mean += value / double(values.size());
    for (const auto value : values) found.deviation += std::pow(value - found.mean, 2) / double(values.size() - 1);
    found.deviation = std::sqrt(found.deviation);
    return found;
}

/// Logarithms of makespans over the undisturbed one.
std::vector<double> log_slowdowns(const Scenario& scenario, const Machine& machine, const Jitter& jitter, int count) {
    const auto schedule = scenario.schedule();
    const auto alone = simulate(*schedule, machine, rate_options()).makespan;
    auto options = rate_options();
    options.jitter = jitter;
    std::vector<double> logarithms;
    for (const auto makespan : simulate_repeatedly(*schedule, machine, options, count, 1))
        logarithms.push_back(std::log(double(makespan) / double(alone)));
    return logarithms;
}

/// Rank by rank whether it computes for longer than undisturbed.
std::vector<bool> slow_ranks(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    const auto alone = simulate(schedule, machine, rate_options()), disturbed = simulate(schedule, machine, options);
    std::vector<bool> slow;
    for (std::size_t rank = 0; rank < alone.ranks.size(); ++rank)
        slow.push_back(disturbed.ranks[rank].compute > alone.ranks[rank].compute);
    return slow;
}

constexpr int many = 2000;
// Four standard errors of a mean and of a standard deviation of so many normal draws: 1 in 16000 is further off, and
// the draws are the same every time.
const double mean_error = 4 / std::sqrt(double(many)), deviation_error = 4 / std::sqrt(2.0 * many);

}  // namespace

BOOST_AUTO_TEST_SUITE(jitter)

BOOST_DATA_TEST_CASE(a_ring_is_as_slow_as_its_slowest_gpu, data::make({2, 3, 8}), ranks) {
    // Each rank has P blocks to attend to; the slow one never waits for those that are quicker, and its last attend is
    // the last of all.
    const Scenario scenario{.ranks = ranks, .mask = "full"};
    const auto schedule = scenario.schedule();
    auto options = rate_options();
    options.jitter = {.slow_gpus = 1, .slow_gpu_factor = 1.5};
    const auto block = 32 * 32;
    BOOST_TEST(simulate(*schedule, pair_machine(scenario), options).makespan == ranks * block * 3 / 2);
    // As slow as one: several.
    options.jitter.slow_gpus = ranks;
    BOOST_TEST(simulate(*schedule, pair_machine(scenario), options).makespan == ranks * block * 3 / 2);
}

BOOST_DATA_TEST_CASE(a_ring_is_as_slow_as_its_slowest_link, data::make({true, false}), sharing) {
    // Of all blocks but one each crosses the slow link; compute takes no time.
    const int ranks = 6;
    const Scenario scenario{.ranks = ranks, .mask = "full"};
    const auto schedule = scenario.schedule();
    Machine machine;
    machine.inside_host.link_bytes_per_second = 1e9;
    auto options = rate_options();
    options.sharing = sharing;
    options.jitter = {.slow_links = 1, .slow_link_factor = 4};
    const auto hop = 1000 * block_bytes(*schedule, 0);
    BOOST_TEST(simulate(*schedule, machine, options).makespan == (ranks - 1) * 4 * hop);
    // Channels that need no more than the quarter that is left do not notice.
    machine.inside_host.channel_bytes_per_second = 0.25e9;
    BOOST_TEST(simulate(*schedule, machine, options).makespan == (ranks - 1) * 4 * hop);
    options.jitter.slow_link_factor = 8;
    BOOST_TEST(simulate(*schedule, machine, options).makespan == (ranks - 1) * 8 * hop);
}

BOOST_AUTO_TEST_CASE(who_shares_the_port_of_a_slow_link_is_slow_as_well) {
    // Two rings from host to host, of which both send through one port; one of the four ranks has the slow link.
    const Scenario scenario{.ranks = 2, .mask = "full"};
    const auto schedule = scenario.schedule();
    Machine machine;
    machine.hosts = machine.gpus_per_host = 2;
    machine.between_hosts.link_bytes_per_second = 1e9;
    auto options = rate_options();
    options.replicas = 2;
    options.placement = {0, 2, 1, 3};
    options.jitter = {.slow_links = 1, .slow_link_factor = 4};
    const auto prediction = simulate(*schedule, machine, options);
    const auto hop = 1000 * block_bytes(*schedule, 0);
    BOOST_TEST(prediction.makespan == 2 * 4 * hop);
    // Receivers of the other port's blocks have theirs after two.
    std::vector<Picoseconds> ends;
    for (const auto& rank : prediction.ranks) ends.push_back(rank.communication);
    BOOST_TEST(*std::max_element(ends.begin(), ends.end()) == 8 * hop);
}

BOOST_DATA_TEST_CASE(noise_is_log_normal_around_the_undisturbed_time, data::make({0.02, 0.3}), deviation) {
    // One rank, one attend; and two ranks without compute, one hop each way, of which the later counts. The larger of
    // two standard normal numbers has mean 1 / sqrt(pi) and variance 1 - 1 / pi.
    const Scenario one{.ranks = 1, .tokens_per_rank = 4096, .mask = "full"};
    for (const auto pass : {Pass::forward, Pass::backward}) {
        auto scenario = one;
        scenario.pass = pass;
        const auto found = moments(log_slowdowns(scenario, pair_machine(scenario), {.compute_noise = deviation}, many));
        BOOST_TEST(std::abs(found.mean) < deviation * mean_error);
        BOOST_TEST(std::abs(found.deviation / deviation - 1) < deviation_error);
    }
    const Scenario two{.ranks = 2, .tokens_per_rank = 4096, .mask = "full"};
    Machine machine;
    machine.inside_host.link_bytes_per_second = 1e9;
    const auto found = moments(log_slowdowns(two, machine, {.transfer_noise = deviation}, many));
    BOOST_TEST(std::abs(found.mean / deviation - 1 / std::sqrt(M_PI)) < mean_error);
    BOOST_TEST(std::abs(found.deviation / deviation - std::sqrt(1 - 1 / M_PI)) < deviation_error);
}

BOOST_AUTO_TEST_CASE(start_skew_costs_the_latest_of_all_starts) {
    // Nobody needs anybody: the latest start of P, drawn evenly, is at P / (P + 1) on average, with variance
    // P / ((P + 1)^2 (P + 2)).
    const int ranks = 7;
    const Scenario scenario{.ranks = ranks, .layout = "contiguous", .mask = "window:0,0"};
    const auto schedule = scenario.schedule();
    auto options = rate_options();
    options.jitter.start_skew_seconds = 1e-3;
    std::vector<double> latest;
    for (const auto makespan : simulate_repeatedly(*schedule, Machine{}, options, many, 1))
        latest.push_back(to_seconds(makespan) / 1e-3);
    const double variance = ranks / (std::pow(ranks + 1, 2) * (ranks + 2));
    BOOST_TEST(std::abs(moments(latest).mean - ranks / (ranks + 1.0)) < std::sqrt(variance) * mean_error);
}

BOOST_AUTO_TEST_CASE(any_rank_may_straggle_and_it_is_the_same_in_both_passes) {
    Scenario scenario{.ranks = 5, .mask = "full"};
    const auto forward = scenario.schedule();
    scenario.pass = Pass::backward;
    const auto backward = scenario.schedule();
    const auto machine = pair_machine(scenario);
    auto options = rate_options();
    options.jitter = {.slow_gpus = 2, .slow_gpu_factor = 2};
    std::vector<int> drawn(5);
    for (int repeat = 0; repeat < 500; ++repeat) {
        options.jitter.repeat = repeat;
        const auto slow = slow_ranks(*forward, machine, options);
        BOOST_REQUIRE_EQUAL(std::count(slow.begin(), slow.end(), true), 2);
        BOOST_REQUIRE((slow == slow_ranks(*backward, machine, options)));
        for (std::size_t rank = 0; rank < 5; ++rank) drawn[rank] += slow[rank];
    }
    // Each in 2 of 5 repeats: binomial with standard deviation 11; four of them.
    for (const auto count : drawn) BOOST_TEST(std::abs(count - 200) < 44);
}

BOOST_AUTO_TEST_CASE(repetitions_are_the_same_one_by_one_and_on_any_number_of_threads) {
    const auto machine = busy_machine();
    std::mt19937 bits(9);
    for (int trial = 0; trial < 20; ++trial) {
        const auto schedule = random_scenario(bits).schedule();
        SimOptions options;
        options.jitter = {.seed = bits(),
                          .slow_gpus = 1,
                          .slow_gpu_factor = 1.7,
                          .slow_links = 1,
                          .slow_link_factor = 3,
                          .compute_noise = 0.1,
                          .transfer_noise = 0.4,
                          .start_skew_seconds = 1e-5};
        if (trial % 4 == 0) options.clock = Clock::sustained;
        const auto makespans = simulate_repeatedly(*schedule, machine, options, 7, 1);
        for (const int threads : {2, 3, 16})
            BOOST_TEST(simulate_repeatedly(*schedule, machine, options, 7, threads) == makespans,
                       boost::test_tools::per_element());
        for (int repeat = 0; repeat < 7; ++repeat) {
            options.jitter.repeat = repeat;
            BOOST_TEST(simulate(*schedule, machine, options).makespan == makespans[static_cast<std::size_t>(repeat)]);
        }
        BOOST_TEST((makespans != std::vector<Picoseconds>(7, makespans.front())));
        ++options.jitter.seed;
        BOOST_TEST((simulate_repeatedly(*schedule, machine, options, 7, 2) != makespans));
    }
}

BOOST_AUTO_TEST_CASE(jitter_out_of_range_is_refused_on_any_thread) {
    const auto schedule = Scenario{}.schedule();
    const auto refused = [&](const Jitter& jitter) {
        auto options = rate_options();
        options.jitter = jitter;
        for (const int threads : {1, 3})
            BOOST_CHECK_THROW(simulate_repeatedly(*schedule, Machine{}, options, 5, threads), Error);
    };
    refused({.slow_gpus = 5});
    refused({.slow_gpus = -1});
    refused({.slow_gpus = 1, .slow_gpu_factor = 0.5});
    refused({.slow_links = 1, .slow_link_factor = NAN});
    refused({.compute_noise = -0.1});
    refused({.transfer_noise = 4});
    refused({.start_skew_seconds = -1});
}

BOOST_AUTO_TEST_SUITE_END()
