// Where the time of a pass goes: what is said to be saved by a cause is what a machine file without it would take less.

#include "sim/report/breakdown.hpp"
#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <functional>
#include <limits>
#include <numeric>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;
using ringlab::layouts::Schedule;

namespace {

/// Of the pass, as the issue of its cause promises.
constexpr double two_points = 0.02;

void free_links(Machine& machine) {
    for (auto* link : {&machine.inside_host, &machine.between_hosts}) {
        link->latency_seconds = 0;
        link->link_bytes_per_second = link->channel_bytes_per_second = std::numeric_limits<double>::infinity();
        link->carrier = LinkCost::Carrier::copy_engines;
    }
}

void free_issue(Machine& machine) {
    machine.transfer_issue_seconds = 0;
    machine.inside_host.piece_issue_seconds = 0;
}

void free_ends(Machine& machine) {
    for (auto* cost : {&machine.forward, &machine.backward}) cost->begin_seconds = cost->begin_memory_ratio = 0;
}

void free_attends(Machine& machine) {
    for (auto* cost : {&machine.forward, &machine.backward}) {
        cost->launch_seconds = cost->work_tile_seconds = cost->full_tile_seconds = cost->partial_tile_seconds = 0;
        cost->resume_seconds = 0;
        cost->tail_seconds_per_byte = 0;
        cost->flops = std::numeric_limits<double>::infinity();
    }
}

/// Where what begins a pass does not go by the memory's rate, which is then free too.
void free_memory(Machine& machine) {
    machine.memory_bytes_per_second = std::numeric_limits<double>::infinity();
    machine.accumulate_launch_seconds = 0;
}

/// Everything costs something, over copy engines.
Machine copying_machine() {
    auto machine = busy_machine();
    for (auto* link : {&machine.inside_host, &machine.between_hosts}) link->carrier = LinkCost::Carrier::copy_engines;
    for (auto* cost : {&machine.forward, &machine.backward}) cost->begin_memory_ratio = 0;
    return machine;
}

Breakdown broken_down(const Schedule& schedule, const Machine& machine, const SimOptions& options) {
    return break_down(schedule, machine, options, simulate(schedule, machine, options));
}

/// Of `passes` of such a length in all, with P = 2, full, by rate: an attend takes `attend`, a hop `hop`.
struct Pair {
    Scenario scenario{.ranks = 2, .layout = "contiguous", .mask = "full"};
    Machine machine = pair_machine(scenario);
    std::unique_ptr<Schedule> schedule = scenario.schedule();
    Picoseconds attend = scenario.tokens_per_rank * scenario.tokens_per_rank;

    void hop_takes(Picoseconds hop) {
        machine.inside_host.link_bytes_per_second =
            static_cast<double>(block_bytes(*schedule, 0)) / layouts::to_seconds(hop);
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(breakdown)

BOOST_AUTO_TEST_CASE(each_cause_saves_what_a_machine_without_it_takes_less) {
    const std::vector<std::pair<Cause, std::function<void(Machine&)>>> edits{{Cause::attends, free_attends},
                                                                             {Cause::ends, free_ends},
                                                                             {Cause::issue, free_issue},
                                                                             {Cause::links, free_links},
                                                                             {Cause::memory, free_memory}};
    std::mt19937 bits(31);
    for (int trial = 0; trial < 120; ++trial) {
        const auto scenario = random_scenario(bits);
        const auto schedule = scenario.schedule();
        const auto machine = copying_machine();
        SimOptions options;
        options.compute = bits() % 3 ? ComputeModel::tiles : ComputeModel::rate;
        options.replicas = scenario.ranks <= 4 ? 1 + static_cast<int>(bits() % 2) : 1;
        const auto found = broken_down(*schedule, machine, options);
        const auto pass = static_cast<double>(found.pass);
        for (const auto& [cause, edit] : edits) {
            auto edited = machine;
            edit(edited);
            const auto without = static_cast<double>(simulate(*schedule, edited, options).makespan);
            BOOST_TEST(std::abs(static_cast<double>(found.of(cause)) - (pass - without)) <= two_points * pass,
                       to_string(cause) << " of " << scenario.describe() << ": " << found.of(cause) << " of "
                                        << found.pass << ", without it " << without);
        }
        BOOST_TEST(std::accumulate(found.saved.begin(), found.saved.end(), found.shared()) == found.pass);
        for (const auto part : {found.last.computing, found.last.transferring, found.last.waiting, found.launches()})
            BOOST_TEST(part >= 0, scenario.describe());
    }
}

BOOST_AUTO_TEST_CASE(links_whose_kernels_hold_sms_give_them_back) {
    std::mt19937 bits(32);
    for (int trial = 0; trial < 40; ++trial) {
        auto scenario = random_scenario(bits);
        scenario.schedule_name =
            pick<std::string>(bits, {"ring", "all-gather"});  // the same launches over copy engines
        const auto schedule = scenario.schedule();
        auto machine = busy_machine();
        free_issue(machine);  // the order in which a host issues goes by whether messages are kernels
        auto edited = machine;
        free_links(edited);
        const SimOptions options;
        const auto found = broken_down(*schedule, machine, options);
        BOOST_TEST(found.pass - found.of(Cause::links) == simulate(*schedule, edited, options).makespan,
                   scenario.describe());
    }
}

BOOST_AUTO_TEST_CASE(the_same_holds_on_machines_as_they_were_calibrated) {
    std::mt19937 bits(33);
    for (const auto* name : {"2xh200_calibrated", "2xh200_calibrated_nccl", "4xh200_calibrated_nccl", "h200_cluster"}) {
        auto machine = shipped_machine(name);
        machine.kernels.clear();  // only those that are edited below
        // A sample, one of each way that messages travel: more parts or groups make more of the same.
        for (const auto* schedule_name :
             {"ring", "joined-ring", "pull", "all-gather", "seen", "merge", "pass-q", "ulysses"})
            for (const auto pass : {Pass::forward, Pass::backward}) {
                const bool one_host =
                    std::string(schedule_name) == "joined-ring" || std::string(schedule_name) == "pull";
                const Scenario scenario{.ranks = machine.hosts > 1 && !one_host ? 16 : 2,
                                        .tokens_per_rank = pick<std::int64_t>(bits, {256, 1024}),
                                        .schedule_name = schedule_name,
                                        .pass = pass,
                                        .query_heads = 16,
                                        .kv_heads = 16};
                const auto schedule = scenario.schedule();
                SimOptions options;
                options.clock = bits() % 2 ? Clock::sustained : Clock::calibrated;
                const auto found = broken_down(*schedule, machine, options);
                const auto pass_time = static_cast<double>(found.pass);
                using Edit = void (*)(Machine&);
                for (const auto& [cause, edit] : {std::pair<Cause, Edit>{Cause::attends, free_attends},
                                                  {Cause::ends, free_ends},
                                                  {Cause::issue, free_issue}}) {
                    auto edited = machine;
                    edit(edited);
                    const auto without = static_cast<double>(simulate(*schedule, edited, options).makespan);
                    BOOST_TEST(std::abs(static_cast<double>(found.of(cause)) - (pass_time - without)) <=
                                   two_points * pass_time,
                               to_string(cause) << " of " << scenario.describe() << " on " << name);
                }
            }
    }
}

BOOST_AUTO_TEST_CASE(what_hides_behind_something_else_is_shared) {
    Pair pair;
    pair.hop_takes(pair.attend / 2);  // behind the first attend: the pass takes two attends, without them a hop
    auto found = broken_down(*pair.schedule, pair.machine, rate_options());
    BOOST_TEST(found.pass == 2 * pair.attend);
    BOOST_TEST(found.of(Cause::attends) == 2 * pair.attend - pair.attend / 2);
    BOOST_TEST(found.of(Cause::links) == 0);
    BOOST_TEST(found.shared() == pair.attend / 2);
    pair.hop_takes(2 * pair.attend);  // and the second attend waits for it: the pass takes a hop and an attend
    found = broken_down(*pair.schedule, pair.machine, rate_options());
    BOOST_TEST(found.pass == 3 * pair.attend);
    BOOST_TEST(found.of(Cause::attends) == pair.attend);
    BOOST_TEST(found.of(Cause::links) == pair.attend);
    BOOST_TEST(found.shared() == pair.attend);
    BOOST_TEST(found.of(Cause::ends) + found.of(Cause::issue) + found.of(Cause::memory) == 0);
    BOOST_TEST(found.last.computing == 2 * pair.attend);
    BOOST_TEST(found.last.transferring == pair.attend);
    BOOST_TEST(found.last.waiting + found.launches() == 0);
}

BOOST_AUTO_TEST_CASE(a_rank_that_ends_last_has_waited_for_a_late_peer) {
    Pair pair;
    pair.hop_takes(2 * pair.attend);
    auto options = rate_options();
    options.start = {0, 5 * pair.attend};
    // Rank 0 has attended to its own block by 1 attend, and the other comes on its way at 5.
    const auto played = simulate(*pair.schedule, pair.machine, options);
    BOOST_TEST(played.ranks[0].end == 8 * pair.attend);
    BOOST_TEST(played.ranks[1].end == 8 * pair.attend);
    BOOST_TEST(break_down(*pair.schedule, pair.machine, options, played).last.waiting == 4 * pair.attend);
    options.start = {};
    BOOST_TEST(broken_down(*pair.schedule, pair.machine, options).last.waiting == 0);
}

BOOST_AUTO_TEST_CASE(sms_without_a_work_tile_are_the_tail) {
    // 17 query tiles of one full tile each on 16 multiprocessors: two turns for the work of 17 / 16.
    const Scenario scenario{
        .ranks = 1, .tokens_per_rank = 17, .layout = "contiguous", .mask = "full", .query_heads = 1, .kv_heads = 1};
    Machine machine;
    machine.sms = 16;
    machine.forward.tile_rows = 1;
    machine.forward.tile_keys = 17;
    machine.forward.full_tile_seconds = 16e-6;
    machine.forward.launch_seconds = 3e-6;
    const auto found = broken_down(*scenario.schedule(), machine, {});
    BOOST_TEST(found.pass == 35'000'000);
    BOOST_TEST(found.tail == 35'000'000 - 17'000'000);
    BOOST_TEST(found.of(Cause::attends) == found.pass);
    BOOST_TEST(broken_down(*scenario.schedule(), machine, rate_options()).tail == 0);  // which knows of no tiles
}

BOOST_AUTO_TEST_CASE(work_beyond_the_mean_is_imbalance) {
    // Of a causal mask in contiguous blocks of n tokens, rank r has n * n * r + n (n + 1) / 2 pairs.
    const Scenario scenario{.ranks = 4, .layout = "contiguous"};
    const auto n = scenario.tokens_per_rank;
    const auto found = broken_down(*scenario.schedule(), pair_machine(scenario), rate_options());
    BOOST_TEST(found.pass == 3 * n * n + n * (n + 1) / 2);
    BOOST_TEST(found.imbalance == 3 * n * n / 2);
    BOOST_TEST(found.last.waiting == 0);
}

BOOST_AUTO_TEST_SUITE_END()
