#include "layouts/program/program.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/simulate.hpp"
#include "tests/registered.hpp"
#include "tests/sim/scenario.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <vector>

namespace ringlab::sim {
namespace {

using layouts::OpKind;
using layouts::Pass;

constexpr Picoseconds microsecond = 1'000'000;

/// A host that takes 10 us for a message, which copy engines move or kernels.
Machine machine_over(LinkCost::Carrier carrier) {
    Machine machine;
    machine.transfer_issue_seconds = 10e-6;
    machine.inside_host.carrier = carrier;
    if (carrier == LinkCost::Carrier::kernels) {
        machine.sms = 8;
        machine.inside_host.sms_per_channel = 1;
    }
    return machine;
}

/// When the host of rank 0 has issued the rank's operations of this kind, us.
std::vector<Picoseconds> issued(const test::Scenario& scenario, LinkCost::Carrier carrier, OpKind kind) {
    SimOptions options;
    options.trace = true;
    const auto schedule = scenario.schedule();
    const auto found = simulate(*schedule, machine_over(carrier), options);
    std::vector<Picoseconds> times;
    for (std::size_t i = 0; i < found.timeline.spans.size(); ++i)
        if (found.timeline.spans[i].rank == 0 && found.timeline.spans[i].kind == kind)
            times.push_back(found.host_issue[i].end / microsecond);
    return times;
}

void check_issued(const test::Scenario& scenario, LinkCost::Carrier carrier, OpKind kind,
                  const std::vector<Picoseconds>& expected) {
    BOOST_TEST_CONTEXT(layouts::to_string(kind))
    BOOST_TEST(issued(scenario, carrier, kind) == expected, boost::test_tools::per_element());
}

tests::Names every_schedule() {
    return tests::Names([] { return tests::schedules_for({.query_heads = 8, .kv_heads = 4}, {4}); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(host_issue)

// Two receive slots: the third block comes into one that was used before, so its receive is a call of its own. Attends
// that wait for a block are issued behind the messages before them in the schedule.
BOOST_AUTO_TEST_CASE(a_receive_into_a_fresh_slot_takes_the_host_no_time) {
    const test::Scenario ring{.ranks = 4, .mask = "full"};
    const auto copies = LinkCost::Carrier::copy_engines;
    check_issued(ring, copies, OpKind::send, {10, 20, 30});
    check_issued(ring, copies, OpKind::receive, {10, 20, 40});
    check_issued(ring, copies, OpKind::attend, {0, 20, 40, 40});
}

BOOST_AUTO_TEST_CASE(every_message_takes_the_host_time_where_messages_are_kernels) {
    const test::Scenario ring{.ranks = 4, .mask = "full"};
    const auto kernels = LinkCost::Carrier::kernels;
    check_issued(ring, kernels, OpKind::send, {10, 30, 50});
    check_issued(ring, kernels, OpKind::receive, {20, 40, 60});
    check_issued(ring, kernels, OpKind::attend, {20, 40, 60, 60});
}

BOOST_AUTO_TEST_CASE(a_rank_issues_nothing_before_it_starts) {
    const auto schedule = test::Scenario{.ranks = 2, .mask = "full"}.schedule();
    SimOptions options;
    options.trace = true;
    options.start = {0, 500 * microsecond};
    const auto found = simulate(*schedule, machine_over(LinkCost::Carrier::copy_engines), options);
    BOOST_TEST(!found.timeline.spans.empty());
    for (std::size_t i = 0; i < found.timeline.spans.size(); ++i)
        BOOST_TEST(found.host_issue[i].begin >= options.start[static_cast<std::size_t>(found.timeline.spans[i].rank)]);
}

// The launch waits for blocks itself, so it is issued before all messages.
BOOST_AUTO_TEST_CASE(attends_of_a_fused_launch_are_issued_with_its_first) {
    const test::Scenario ring{.ranks = 4, .mask = "full", .schedule_name = "joined-ring"};
    check_issued(ring, LinkCost::Carrier::copy_engines, OpKind::attend, {0, 0, 0, 0});
    check_issued(ring, LinkCost::Carrier::copy_engines, OpKind::send, {10, 20, 30});
}

// What executes the schedule sets a flag where Instruction::may_arrive_early says so.
BOOST_DATA_TEST_CASE(messages_whose_sender_sets_a_flag_are_those_of_the_program, every_schedule(), schedule_name) {
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const test::Scenario scenario{
            .ranks = 4, .mask = "full", .schedule_name = schedule_name, .pass = pass, .query_heads = 8, .kv_heads = 4};
        const auto schedule = scenario.schedule();
        const auto machine = machine_over(LinkCost::Carrier::copy_engines);
        const SimOptions options;
        const CostModel cost(*schedule, machine, options);
        for (const auto& rank : layouts::resolve(*schedule).ranks) {
            PartlyFilledSlots slots;
            for (std::size_t i = 0; i < rank.operations; ++i) {
                const auto& one = rank.code[i];
                const auto issue = cost.issue(one.op, slots.had_part(*schedule, one.op));
                if (one.op.kind != OpKind::receive) continue;
                BOOST_TEST((issue == 0) == one.may_arrive_early,
                           layouts::describe(rank.rank, static_cast<layouts::OpIndex>(i), one));
            }
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::sim
