#include "recursion.hpp"
#include "scenario.hpp"
#include "sim/cost/cost.hpp"
#include "sim/report/breakdown.hpp"
#include "tests/registered.hpp"
#include "tests/thinning.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::OpKind;
using ringlab::layouts::Pass;
using ringlab::layouts::Span;

namespace {

constexpr int all_trials = 250;

/// Options that say nothing special, or start skewed, with either compute model.
SimOptions random_options(std::mt19937& bits) {
    SimOptions options;
    options.trace = true;
    options.compute = bits() % 2 ? ComputeModel::tiles : ComputeModel::rate;
    options.jitter.seed = bits();
    if (bits() % 2) options.jitter.start_skew_seconds = 30e-6;
    if (bits() % 4 == 0) options.free = causes[bits() % causes.size()];
    if (bits() % 2)
        options.jitter = {.seed = bits(),
                          .slow_gpus = 1,
                          .slow_gpu_factor = 1.3,
                          .slow_links = 1,
                          .slow_link_factor = 2,
                          .compute_noise = 0.1,
                          .transfer_noise = 0.2};
    return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(properties)

/// On any layout that is registered and reads no file, with one schedule after the other.
Scenario random_scenario_of_all(std::mt19937& bits, int trial) {
    auto scenario = random_scenario(bits);
    const layouts::Problem heads{.query_heads = scenario.query_heads, .kv_heads = scenario.kv_heads};
    static const auto schedules = tests::schedules_for(heads, {2, 4, 8});
    scenario.schedule_name = schedules[static_cast<std::size_t>(trial) % schedules.size()];
    do scenario.ranks = pick<int>(bits, {2, 4, 8});
    while (!tests::suits(heads, scenario.schedule_name, scenario.ranks));
    scenario.layout = pick<std::string>(bits, tests::layout_examples());
    scenario.tokens_per_rank = layouts::layout_granularity(scenario.layout, scenario.ranks);
    scenario.mask = pick<std::string>(bits, {"full", "causal", "window:40,0", "prefix:7", "window:30,0+sink:4"});
    if (scenario.ranks * scenario.tokens_per_rank < 7) scenario.mask = "causal";
    return scenario;
}

BOOST_AUTO_TEST_CASE(where_nothing_is_shared_every_operation_runs_when_recursion_says_to_the_last_tick) {
    std::mt19937 bits(1);
    const int trials = tests::trials_in_this_build(2 * all_trials, 5);
    for (int trial = 0; trial < trials; ++trial) {
        auto machine = busy_machine();
        if (trial % 2 == 1) {  // copy engines, for which hosts issue computing first
            machine.inside_host.carrier = machine.between_hosts.carrier = LinkCost::Carrier::copy_engines;
            machine.transfer_issue_seconds = pick<double>(bits, {0.7e-6, 4e-6});
        }
        const auto scenario = trial % 4 < 2 ? random_scenario(bits) : random_scenario_of_all(bits, trial / 4);
        auto options = random_options(bits);
        options.sharing = false;
        const auto schedule = scenario.schedule();
        // Attends of a fused launch are priced in their order.
        const bool fused = CostModel(*schedule, machine, options).prices_fused_launches();
        if (!fused || options.compute == ComputeModel::rate)
            require_as_by_recursion(*schedule, machine, options, scenario.describe());
    }
}

BOOST_AUTO_TEST_CASE(every_schedule_ends_and_conserves_pairs_and_bytes) {
    std::mt19937 bits(2);
    const auto machine = busy_machine();
    const int trials = tests::trials_in_this_build(all_trials, 5);
    for (int trial = 0; trial < trials; ++trial) {
        const auto scenario = random_scenario_of_all(bits, trial);
        const auto options = random_options(bits);
        const auto schedule = scenario.schedule();
        const auto prediction = simulate(*schedule, machine, options);
        BOOST_TEST_CONTEXT(scenario.describe()) {
            const layouts::Run all{0, 1, schedule->problem().tokens};
            const auto pairs = layouts::visible_pairs(schedule->mask(), {&all, 1}, layouts::KeyCounter({&all, 1}));
            std::int64_t pair_count = 0, sent = 0, received = 0, fetched = 0;
            for (const auto& span : prediction.timeline.spans) {
                BOOST_TEST(span.end >= span.begin);
                BOOST_TEST(span.begin >= span.posted);
                if (span.kind == OpKind::send) sent += span.bytes;
                if (span.kind == OpKind::receive) received += span.bytes;
                if (span.kind == OpKind::fetch) fetched += span.bytes;
                pair_count += span.pair_count;
            }
            BOOST_TEST(pair_count == pairs * options.replicas);
            BOOST_TEST(sent == received);
            // Totals that were kept on the fly are those of the timeline.
            const auto totals = layouts::totals(prediction.timeline);
            std::int64_t total_in = 0;
            for (std::size_t rank = 0; rank < totals.size(); ++rank) {
                const auto &a = prediction.ranks[rank], &b = totals[rank];
                BOOST_TEST(a.compute == b.compute);
                BOOST_TEST(a.communication == b.communication);
                BOOST_TEST(a.waiting == b.waiting);
                BOOST_TEST(a.exposed == b.exposed);
                BOOST_TEST(a.end == b.end);
                BOOST_TEST(a.pair_count == b.pair_count);
                BOOST_TEST(a.bytes_sent == b.bytes_sent);
                BOOST_TEST(a.bytes_received == b.bytes_received);
                total_in += a.bytes_received;
            }
            BOOST_TEST(total_in == received + fetched);
            BOOST_TEST(prediction.makespan == prediction.timeline.makespan());
            // Sharing only ever slows: no run is shorter than its critical path.
            BOOST_TEST(prediction.makespan >= longest_chain(*schedule, machine, options));
        }
    }
}

BOOST_AUTO_TEST_CASE(the_same_inputs_give_the_same_picoseconds_with_and_without_a_trace) {
    std::mt19937 bits(3);
    const auto machine = busy_machine();
    for (int trial = 0; trial < 60; ++trial) {
        const auto scenario = random_scenario(bits);
        auto options = random_options(bits);
        const auto schedule = scenario.schedule();
        const auto first = simulate(*schedule, machine, options), second = simulate(*schedule, machine, options);
        for (std::size_t i = 0; i < first.timeline.spans.size(); ++i)
            BOOST_REQUIRE(first.timeline.spans[i].begin == second.timeline.spans[i].begin &&
                          first.timeline.spans[i].end == second.timeline.spans[i].end);
        BOOST_TEST(first.events == second.events);
        options.trace = false;
        const auto third = simulate(*schedule, machine, options);
        BOOST_TEST(third.timeline.spans.empty());
        BOOST_TEST(third.makespan == first.makespan);
    }
}

BOOST_AUTO_TEST_SUITE_END()
