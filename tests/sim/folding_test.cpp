#include "scenario.hpp"
#include "sim/play/fold.hpp"
#include "tests/thinning.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <random>
#include <tuple>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;
using ringlab::layouts::RankTotals;
using ringlab::layouts::Schedule;

// Ranks that cannot differ are played once: see Fold.

namespace {

/// Of a causal zigzag ring, or another scenario, by the rate model.
int ranks_played(const Machine& machine, const Scenario& scenario = {.ranks = 8}, SimOptions options = rate_options()) {
    return sim::ranks_played(*scenario.schedule(), machine, options);
}

Machine hosts_of(int gpus) {
    auto machine = busy_machine();
    machine.hosts = 64;
    machine.gpus_per_host = machine.nics_per_host = gpus;
    return machine;
}

Machine random_machine(std::mt19937& bits) {
    auto machine = hosts_of(pick<int>(bits, {1, 2, 4, 8, 32}));
    if (machine.gpus_per_host > 1 && bits() % 2) machine.nics_per_host = machine.gpus_per_host / 2;
    machine.network.hosts_per_leaf = pick<int>(bits, {0, 1, 2});
    machine.network.leaves = bits() % 2 ? Network::Leaves::hosts : Network::Leaves::rails;
    machine.network.oversubscription = pick<double>(bits, {1, 2, 4});
    machine.network.spine_latency_seconds = 1e-6;
    machine.memory_bytes_per_second = pick<double>(bits, {3e12, 3e12, 1e11, 4e10});
    machine.attention_memory_bytes_per_second = 0.96 * machine.memory_bytes_per_second;
    const auto kernels = pick<double>(bits, {0, 0.5, 2});
    machine.inside_host.sms_per_channel = machine.between_hosts.sms_per_channel = kernels;
    if (kernels > 0) machine.inside_host.carrier = machine.between_hosts.carrier = LinkCost::Carrier::kernels;
    if (bits() % 2) machine.inside_host.busy_speed_ratio = machine.between_hosts.busy_speed_ratio = 1;
    if (bits() % 4 == 0) machine.inside_host.latency_seconds = 0;
    machine.forward.power_flops = machine.backward.power_flops = pick<double>(bits, {2e10, 2e11, 1e12});
    return machine;
}

/// Schedules and layouts by which ranks are alike, most of them: drawn from a list, so that folding is what is tested.
Scenario random_ring(std::mt19937& bits) {
    auto scenario = random_scenario(bits);
    scenario.ranks = pick<int>(bits, {1, 2, 4, 8, 16, 24});
    scenario.schedule_name = pick<std::string>(
        bits, {"ring", "ring", "bidirectional", "all-gather", "all-gather:2", "pull", "joined-ring", "pass-q"});
    scenario.mask = pick<std::string>(bits, {"full", "causal", "causal", "window:40,0"});
    scenario.layout = pick<std::string>(bits, {"zigzag", "zigzag", "striped", "contiguous"});
    return scenario;
}

std::array<Picoseconds, 5> times(const RankTotals& totals) {
    return {totals.compute, totals.communication, totals.waiting, totals.exposed, totals.end};
}

/// What simulate() throws; empty: nothing.
std::string error_of(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    try {
        simulate(schedule, machine, options);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

/// Where resources are too small, speeds are rounded in another order, which can decide what of two things comes first.
/// Of these rings, the makespans of 28 in 1,300 differ, one of them by 1e-5, and other times by 9e-5 of the pass: the
/// tolerance was set after that was measured.
void require_same(const Prediction& folded, const Prediction& apart) {
    const auto rounding = 2 + 1e-4 * static_cast<double>(apart.makespan);
    const auto near = [&](Picoseconds one, Picoseconds other) {
        return std::abs(static_cast<double>(one - other)) <= rounding;
    };
    BOOST_REQUIRE_EQUAL(folded.ranks.size(), apart.ranks.size());
    for (std::size_t rank = 0; rank < apart.ranks.size(); ++rank) {
        const auto &a = folded.ranks[rank], &b = apart.ranks[rank];
        for (std::size_t i = 0; i < times(a).size(); ++i) BOOST_REQUIRE(near(times(a)[i], times(b)[i]));
        BOOST_REQUIRE(std::tuple(a.pair_count, a.bytes_sent, a.bytes_received) ==
                      std::tuple(b.pair_count, b.bytes_sent, b.bytes_received));
    }
    BOOST_TEST(near(folded.makespan, apart.makespan));
    BOOST_TEST(near(folded.naive_overlapped, apart.naive_overlapped));
    BOOST_TEST(near(folded.naive_serial, apart.naive_serial));
    BOOST_TEST(folded.events == apart.events);
    BOOST_TEST(folded.timeline.ranks == apart.timeline.ranks);
    BOOST_TEST(folded.notes == apart.notes, boost::test_tools::per_element());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(folding)

BOOST_AUTO_TEST_CASE(a_fold_predicts_every_figure_of_every_rank_as_a_play_of_all_of_them) {
    std::mt19937 bits(29);
    int folded = 0, failed = 0, bound = 0, slowed = 0;
    const int trials = tests::trials_in_this_build(3000, 8);
    for (int trial = 0; trial < trials; ++trial) {
        const auto scenario = random_ring(bits);
        const auto machine = random_machine(bits);
        const auto schedule = scenario.schedule();
        auto options = rate_options();
        options.clock = bits() % 2 ? Clock::sustained : Clock::calibrated;
        options.sharing = bits() % 4 != 0;
        options.replicas = bits() % 4 == 0 ? 2 : 1;
        const auto all = schedule->ranks() * options.replicas;
        if (all > machine.gpus() || sim::ranks_played(*schedule, machine, options) == all) continue;
        auto apart = options;
        apart.fold = false;
        if (const auto error = error_of(*schedule, machine, apart); !error.empty()) {
            BOOST_TEST(!error_of(*schedule, machine, options).empty());
            ++failed;
            continue;
        }
        ++folded;
        BOOST_TEST_CONTEXT("trial " << trial << ": " << scenario.describe() << ", hosts of " << machine.gpus_per_host) {
            const auto expected = simulate(*schedule, machine, apart);
            require_same(simulate(*schedule, machine, options), expected);
            bound += expected.clock < 1;
            apart.sharing = false;
            slowed += options.sharing && expected.makespan > simulate(*schedule, machine, apart).makespan;
        }
    }
    BOOST_TEST_MESSAGE(folded << " folded, " << slowed << " slowed by sharing, " << failed << " failed");
    BOOST_TEST(folded > trials / 5);
    BOOST_TEST(bound > trials / 10);  // by power
    BOOST_TEST(slowed > trials / 10);
    BOOST_TEST(failed > trials / 600);  // kernels of transfers that leave attends no multiprocessors
}

BOOST_AUTO_TEST_CASE(of_one_host_one_rank_is_played_and_of_several_a_hosts) {
    BOOST_TEST(ranks_played(hosts_of(8)) == 1);
    BOOST_TEST(ranks_played(hosts_of(32)) == 1);
    BOOST_TEST(ranks_played(hosts_of(4)) == 4);
    BOOST_TEST(ranks_played(hosts_of(1)) == 1);
    BOOST_TEST(ranks_played(hosts_of(4), {.ranks = 6}) == 6);  // one host is not full
}

BOOST_AUTO_TEST_CASE(where_leaves_join_hosts_a_leafs_ranks_are_played) {
    auto machine = hosts_of(2);
    machine.network.hosts_per_leaf = 2;
    BOOST_TEST(ranks_played(machine) == 4);
    BOOST_TEST(ranks_played(machine, {.ranks = 4}) == 2);  // within one leaf
    BOOST_TEST(ranks_played(machine, {.ranks = 6}) == 6);  // a leaf is not full
    machine.network.leaves = Network::Leaves::rails;       // whose spine joins GPUs of one host
    BOOST_TEST(ranks_played(machine) == 4);
    BOOST_TEST(ranks_played(machine, {.ranks = 4}) == 4);
    machine.network.hosts_per_leaf = 8;
    BOOST_TEST(ranks_played(machine) == 8);
}

BOOST_AUTO_TEST_CASE(rings_that_stay_in_their_hosts_are_one_rank) {
    auto options = rate_options();
    options.replicas = 4;
    BOOST_TEST(ranks_played(hosts_of(8), {.ranks = 4}, options) == 1);
    BOOST_TEST(ranks_played(hosts_of(4), {.ranks = 8}, options) == 4);
    BOOST_TEST(ranks_played(hosts_of(8), {.ranks = 6}, options) == 24);
}

BOOST_AUTO_TEST_CASE(ranks_that_may_differ_are_all_played) {
    const auto machine = hosts_of(8);
    BOOST_TEST(ranks_played(machine, {.ranks = 8, .layout = "contiguous"}) == 8);
    BOOST_TEST(ranks_played(machine, {.ranks = 8, .layout = "striped"}) == 8);  // lesser ranks see less of greater ones
    BOOST_TEST(ranks_played(machine, {.ranks = 8, .layout = "striped", .mask = "full"}) == 1);
    BOOST_TEST(ranks_played(machine, {.ranks = 8, .mask = "window:40,0"}) == 8);
    const auto played_with = [&](auto change) {
        auto options = rate_options();
        change(options);
        return ranks_played(machine, {.ranks = 8}, options);
    };
    BOOST_TEST(played_with([](SimOptions&) {}) == 1);
    BOOST_TEST(played_with([](SimOptions& options) { options.fold = false; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.trace = true; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.compute = ComputeModel::tiles; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.clock = Clock::calibrated; }) == 1);
    auto apart = machine;  // in what power leaves them of their clock
    apart.power_of_gpus = {1, 1, 1, 0.9, 1, 1, 1, 1};
    BOOST_TEST(ranks_played(apart) == 8);
    apart.power_of_gpus = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9};
    BOOST_TEST(ranks_played(apart) == 1);
    BOOST_TEST(played_with([](SimOptions& options) { options.placement = {1, 0, 2, 3, 4, 5, 6, 7}; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.start = {0, 0, 0, 9, 0, 0, 0, 0}; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.jitter.slow_gpus = 1; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.jitter.slow_links = 1; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.jitter.compute_noise = 0.1; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.jitter.transfer_noise = 0.1; }) == 8);
    BOOST_TEST(played_with([](SimOptions& options) { options.jitter.start_skew_seconds = 1e-6; }) == 8);
}

BOOST_AUTO_TEST_SUITE_END()
