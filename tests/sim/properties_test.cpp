#include "scenario.hpp"
#include "sim/cost/cost.hpp"
#include "sim/recurrence/max_plus.hpp"
#include "sim/report/breakdown.hpp"
#include "tests/registered.hpp"
#include "tests/thinning.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <map>

using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::OpIndex;
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

/// Longest chain of durations through lanes, dependencies and messages: by recursion over the operations themselves,
/// with nothing in common with either engine but the costs.
Picoseconds critical_path(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    CostModel cost(schedule, machine, options);
    const auto ranks = static_cast<std::size_t>(schedule.ranks());
    std::vector<std::vector<Op>> ops(ranks);
    std::vector<std::vector<Picoseconds>> issued(ranks), ends(ranks);
    std::map<std::tuple<int, int, int, bool>, std::vector<std::size_t>> messages;  // from, to, channel, sends
    std::vector<std::vector<std::size_t>> number(ranks);
    const auto starts = cost.starts();
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        auto host = starts[r];
        PartlyFilledSlots slots;
        auto stream = schedule.ops(rank);
        while (const auto* op = stream.next()) {
            host += cost.issue(*op, slots.had_part(schedule, *op));
            const auto time = cost.is_issued_first(*op) ? starts[r] : host;
            issued[r].push_back(op->transfers() ? time : std::max(time, starts[r] + cost.begin_of_pass(rank)));
            number[r].push_back(0);
            if (op->kind == OpKind::send || op->kind == OpKind::receive) {
                const bool sends = op->kind == OpKind::send;
                auto& list = messages[{sends ? rank : op->peer, sends ? op->peer : rank, op->channel, sends}];
                number[r].back() = list.size();
                list.push_back(ops[r].size());
            }
            ops[r].push_back(*op);
        }
        ends[r].assign(ops[r].size(), -1);
    }
    std::function<Picoseconds(int, std::size_t)> end;
    const auto ready = [&](int rank, std::size_t i) {
        const auto& mine = ops[static_cast<std::size_t>(rank)];
        auto time = issued[static_cast<std::size_t>(rank)][i];
        for (std::size_t j = i; j-- > 0;)
            if (mine[j].lane() == mine[i].lane()) {
                time = std::max(time, end(rank, j));
                break;
            }
        for (const auto j : mine[i].after()) time = std::max(time, end(rank, static_cast<std::size_t>(j)));
        return time;
    };
    end = [&](int rank, std::size_t i) -> Picoseconds {
        auto& known = ends[static_cast<std::size_t>(rank)][i];
        if (known >= 0) return known;
        const auto& op = ops[static_cast<std::size_t>(rank)][i];
        if (!op.transfers()) return known = ready(rank, i) + cost.compute(op, rank, OpIndex(i));
        if (op.kind == OpKind::fetch) {
            const auto transfer = cost.with_noise(cost.transfer(op.peer, rank, op.bytes), rank, OpIndex(i));
            return known = ready(rank, i) + transfer.latency + transfer.duration;
        }
        const bool sends = op.kind == OpKind::send;
        const int source = sends ? rank : op.peer, destination = sends ? op.peer : rank;
        const auto other =
            messages.at({source, destination, op.channel, !sends}).at(number[static_cast<std::size_t>(rank)][i]);
        const auto transfer =
            cost.with_noise(cost.transfer(source, destination, op.bytes), source, OpIndex(sends ? i : other));
        return known = std::max(ready(rank, i), ready(op.peer, other)) + transfer.latency + transfer.duration;
    };
    Picoseconds longest = 0;
    for (std::size_t r = 0; r < ranks; ++r)
        for (std::size_t i = 0; i < ops[r].size(); ++i) longest = std::max(longest, end(static_cast<int>(r), i));
    return longest;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(properties)

BOOST_AUTO_TEST_CASE(max_plus_equals_the_event_queue_to_the_last_tick_where_nothing_is_shared) {
    std::mt19937 bits(1);
    const int trials = ringlab::tests::trials_in_this_build(all_trials, 5);
    for (int trial = 0; trial < trials; ++trial) {
        auto machine = busy_machine();
        if (trial % 2 == 1) {  // copy engines, for which hosts issue computing first
            machine.inside_host.carrier = machine.between_hosts.carrier = LinkCost::Carrier::copy_engines;
            machine.transfer_issue_seconds = pick<double>(bits, {0.7e-6, 4e-6});
        }
        const auto scenario = random_scenario(bits);
        auto options = random_options(bits);
        options.sharing = false;
        const auto schedule = scenario.schedule();
        const auto events = simulate(*schedule, machine, options).timeline;
        const auto recurrence = max_plus(*schedule, machine, options);
        BOOST_REQUIRE_EQUAL(events.spans.size(), recurrence.spans.size());
        for (std::size_t i = 0; i < events.spans.size(); ++i) {
            const auto &a = events.spans[i], &b = recurrence.spans[i];
            BOOST_REQUIRE_MESSAGE(
                a.posted == b.posted && a.begin == b.begin && a.end == b.end && a.op == b.op && a.rank == b.rank,
                scenario.describe() << " rank " << a.rank << " operation " << a.op << ": " << a.begin << ".." << a.end
                                    << " against " << b.begin << ".." << b.end);
        }
        if (!CostModel(*schedule, machine, options).waits_inside_kernel())
            BOOST_TEST(events.makespan() == critical_path(*schedule, machine, options), scenario.describe());
    }
}

BOOST_AUTO_TEST_CASE(symmetric_max_plus_equals_the_event_queue_to_the_last_tick) {
    auto machine = busy_machine();
    int noise = 0, bound = 0;
    constexpr auto infinity = std::numeric_limits<double>::infinity();
    for (const auto& [layout, mask] :
         {std::pair{"zigzag", "causal"}, {"striped", "causal"}, {"striped:4", "full"}, {"contiguous", "full"}})
        for (const auto* algorithm : {"ring", "all-gather:2", "pull"})
            for (const auto pass : {Pass::forward, Pass::backward})
                for (const int ranks : {1, 2, 3, 8, 16}) {
                    const Scenario scenario{
                        .ranks = ranks, .layout = layout, .mask = mask, .algorithm = algorithm, .pass = pass};
                    auto options = rate_options();
                    options.sharing = false;
                    options.jitter.start_skew_seconds = 50e-6;
                    options.jitter.seed = static_cast<std::uint64_t>(++noise);
                    const auto schedule = scenario.schedule();
                    // Clocks that power sets, of all GPUs alike or not.
                    machine.forward.power_flops = machine.backward.power_flops = noise % 3 == 0 ? infinity : 2e11;
                    machine.power_of_gpus.clear();
                    if (noise % 3 == 1) machine.power_of_gpus = {1, 0.7, 0.9, 1.1};
                    const auto expected = simulate(*schedule, machine, options);
                    const auto ends = max_plus_symmetric(*schedule, machine, options);
                    for (std::size_t rank = 0; rank < ends.size(); ++rank)
                        BOOST_TEST(ends[rank] == expected.ranks[rank].end, scenario.describe() << " rank " << rank);
                    bound += expected.clock < 1;
                }
    BOOST_TEST(bound > 20);
}

BOOST_AUTO_TEST_CASE(shortcuts_refuse_what_they_do_not_hold_for) {
    const auto machine = busy_machine();
    const auto schedule = Scenario{}.schedule();
    BOOST_CHECK_THROW(max_plus(*schedule, machine, rate_options()), ringlab::Error);
    BOOST_CHECK_THROW(max_plus_symmetric(*schedule, machine, rate_options()), ringlab::Error);
    auto options = rate_options();
    options.sharing = false;
    const auto uneven = Scenario{.layout = "contiguous"}.schedule();
    BOOST_CHECK_THROW(max_plus_symmetric(*uneven, machine, options), ringlab::Error);
    options.compute = ComputeModel::tiles;
    BOOST_CHECK_THROW(max_plus_symmetric(*schedule, machine, options), ringlab::Error);
    auto hot = machine;
    hot.forward.power_flops = 1e12;
    BOOST_CHECK_THROW(max_plus(*schedule, hot, options), ringlab::Error);
    options.clock = Clock::calibrated;
    BOOST_CHECK_NO_THROW(max_plus(*schedule, hot, options));
}

/// On any layout that is registered and reads no file, with one schedule after the other.
Scenario random_scenario_of_all(std::mt19937& bits, int trial) {
    auto scenario = random_scenario(bits);
    const ringlab::layouts::Problem heads{.query_heads = scenario.query_heads, .kv_heads = scenario.kv_heads};
    static const auto schedules = ringlab::tests::schedules_for(heads, {2, 4, 8});
    scenario.algorithm = schedules[static_cast<std::size_t>(trial) % schedules.size()];
    do scenario.ranks = pick<int>(bits, {2, 4, 8});
    while (!ringlab::tests::suits(heads, scenario.algorithm, scenario.ranks));
    scenario.layout = pick<std::string>(bits, ringlab::tests::layout_examples());
    scenario.tokens_per_rank = ringlab::layouts::layout_granularity(scenario.layout, scenario.ranks);
    scenario.mask = pick<std::string>(bits, {"full", "causal", "window:40,0", "prefix:7", "window:30,0+sink:4"});
    if (scenario.ranks * scenario.tokens_per_rank < 7) scenario.mask = "causal";
    return scenario;
}

BOOST_AUTO_TEST_CASE(every_schedule_ends_and_conserves_pairs_and_bytes) {
    std::mt19937 bits(2);
    const auto machine = busy_machine();
    const int trials = ringlab::tests::trials_in_this_build(all_trials, 5);
    for (int trial = 0; trial < trials; ++trial) {
        const auto scenario = random_scenario_of_all(bits, trial);
        const auto options = random_options(bits);
        const auto schedule = scenario.schedule();
        const auto prediction = simulate(*schedule, machine, options);
        BOOST_TEST_CONTEXT(scenario.describe()) {
            const ringlab::layouts::Run all{0, 1, schedule->problem().tokens};
            const auto pairs =
                ringlab::layouts::visible_pairs(schedule->mask(), {&all, 1}, ringlab::layouts::KeyCounter({&all, 1}));
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
            const auto totals = ringlab::layouts::totals(prediction.timeline);
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
            BOOST_TEST(prediction.makespan >= critical_path(*schedule, machine, options));
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

BOOST_AUTO_TEST_CASE(relabelled_ranks_take_the_same_time) {
    // Which GPU of its host a rank is on does not matter.
    const auto machine = [] {
        auto described = busy_machine();
        described.hosts = 1;
        described.gpus_per_host = 16;
        return described;
    }();
    std::mt19937 bits(6);
    for (int trial = 0; trial < 60; ++trial) {
        const auto scenario = random_scenario(bits);
        const auto schedule = scenario.schedule();
        auto options = random_options(bits);
        const auto plain = simulate(*schedule, machine, options);
        for (int rank = 0; rank < scenario.ranks; ++rank) options.placement.push_back(rank);
        std::shuffle(options.placement.begin(), options.placement.end(), bits);
        const auto relabelled = simulate(*schedule, machine, options);
        for (std::size_t i = 0; i < plain.timeline.spans.size(); ++i)
            BOOST_REQUIRE_EQUAL(plain.timeline.spans[i].end, relabelled.timeline.spans[i].end);
    }
}

BOOST_AUTO_TEST_CASE(unlimited_bandwidth_leaves_compute_and_free_compute_leaves_communication) {
    std::mt19937 bits(8);
    for (int trial = 0; trial < 60; ++trial) {
        auto scenario = random_scenario(bits);
        const auto schedule = scenario.schedule();
        Machine machine;
        machine.forward.flops = machine.backward.flops = 1e12;
        const auto pure_compute = simulate(*schedule, machine, rate_options());
        Picoseconds slowest = 0;
        for (const auto& rank : pure_compute.ranks) {
            BOOST_TEST(rank.communication == 0);
            slowest = std::max(slowest, rank.compute);
        }
        // In the backward pass a rank may wait for another's gradient; forward nobody waits for anybody's compute.
        // Except for slots: a block may not overwrite one that is still attended to.
        BOOST_TEST(pure_compute.makespan >= slowest);
        if (scenario.layout == "zigzag" && (scenario.mask == "causal" || scenario.mask == "full"))
            BOOST_TEST(pure_compute.makespan == slowest, scenario.describe());

        machine = Machine{};
        machine.inside_host.link_bytes_per_second = 1e9;
        const auto pure_communication = simulate(*schedule, machine, rate_options());
        for (const auto& rank : pure_communication.ranks) {
            BOOST_TEST(rank.compute == 0);
            BOOST_TEST(rank.exposed == rank.end);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
