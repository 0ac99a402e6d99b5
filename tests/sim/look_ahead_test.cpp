#include "layouts/program/walk.hpp"
#include "scenario.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>

// A host issues all operations of a pass in order, and nothing of the machine waits for those far behind. So how far
// ahead of what is done a rank's operations are looked at must not show.

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Op;
using ringlab::layouts::OpKind;
using ringlab::layouts::Ops;
using ringlab::layouts::OpWindow;
using ringlab::layouts::Pass;
using ringlab::layouts::Schedule;
namespace data = boost::unit_test::data;

namespace {

Machine cluster() { return shipped_machine("h200_cluster"); }

/// A schedule of which one rank leaves out what it receives last, and what comes behind it.
class Unreceived : public Schedule {
public:
    Unreceived(const Schedule& whole, int rank)
        : Schedule(whole.problem(), whole.mask(), whole.layout(), whole.options()), whole_(whole), rank_(rank) {
        set_channels(whole.channels());
    }

    Ops ops(int rank) const override { return rank == rank_ ? all_but_the_last(rank) : whole_.ops(rank); }

private:
    Ops all_but_the_last(int rank) const {
        int receives = 0;
        for (auto ops = whole_.ops(rank); const auto* op = ops.next();) receives += op->kind == OpKind::receive;
        auto ops = whole_.ops(rank);
        while (const auto* op = ops.next()) {
            if (op->kind == OpKind::receive && --receives == 0) co_return;
            co_yield *op;
        }
    }

    const Schedule& whole_;
    int rank_;
};

Op operation(OpKind kind, std::initializer_list<std::uint32_t> after) {
    Op op;
    op.kind = kind;
    if (op.transfers()) op.peer = 1;
    for (const auto before : after) op.run_after(static_cast<layouts::OpIndex>(before));
    return op;
}

struct Far {
    const char* schedule_name;
    int ranks;
    Pass pass;
    friend std::ostream& operator<<(std::ostream& out, const Far& far) {
        return out << far.schedule_name << " of " << far.ranks << " ranks, " << layouts::to_string(far.pass);
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(look_ahead)

// Hops of joined rings run up to four operations a rank ahead of attends, and pull receives gradients behind all else.
// All ranks do the same, so one that has read all of its operations stands for them.
BOOST_DATA_TEST_CASE(what_runs_thousands_of_operations_ahead_is_predicted_as_if_all_was_looked_at,
                     data::make({Far{"joined-ring", 4096, Pass::forward}, Far{"joined-ring:4", 2048, Pass::forward},
                                 Far{"pull", 1024, Pass::backward}}),
                     far) {
    const auto schedule = Scenario{.ranks = far.ranks,
                                   .tokens_per_rank = 2048,
                                   .schedule_name = far.schedule_name,
                                   .pass = far.pass,
                                   .query_heads = 32,
                                   .kv_heads = 8}
                              .schedule();
    auto machine = cluster();
    machine.between_hosts = machine.inside_host;
    auto options = rate_options();
    options.sharing = false;
    options.clock = Clock::calibrated;
    const auto alone = play_one_rank(*schedule, machine, options, 3);
    BOOST_TEST(simulate(*schedule, machine, options).makespan == layouts::to_picoseconds(alone.seconds));
}

BOOST_AUTO_TEST_CASE(a_receive_that_never_comes_is_found_at_the_end_of_the_schedule) {
    const auto whole =
        Scenario{.ranks = 64, .schedule_name = "pull", .pass = Pass::backward, .query_heads = 8, .kv_heads = 8}
            .schedule();
    BOOST_CHECK_NO_THROW(simulate(*whole, cluster(), rate_options()));
    BOOST_CHECK_EXCEPTION(simulate(Unreceived(*whole, 5), cluster(), rate_options()), Error, [](const auto& error) {
        return std::string(error.what()).find("of rank 4 (send, peer 5) waits for ever") != std::string::npos;
    });
}

BOOST_AUTO_TEST_CASE(a_window_keeps_distances_of_more_than_16_bits) {
    // Attends 1 and behind 70000 receives, which come after nothing.
    constexpr std::uint32_t receives = 70000;
    OpWindow window(3);
    window.push(operation(OpKind::send, {}), 0, 0, 0);
    window.push(operation(OpKind::attend, {}), 0, 0, 0);
    for (std::uint32_t i = 0; i < receives; ++i) window.push(operation(OpKind::receive, {}), 0, 0, 0);
    const std::uint32_t last = 2 + receives;
    window.push(operation(OpKind::attend, {2, last - 1}), 0, 0, 0);
    window.push(operation(OpKind::send, {last}), 0, 0, 0);
    constexpr layouts::Lane compute = 0, out = 1, in = 2;

    window.finish_head(compute);
    BOOST_TEST(window.head(compute) == last);
    BOOST_TEST(!window.may_run(last));
    window.finish_head(in);
    BOOST_TEST(!window.may_run(last));
    for (std::uint32_t i = 2; i < receives; ++i) window.finish_head(in);
    BOOST_TEST(window.head(in) == last - 1);
    BOOST_TEST(!window.may_run(last));
    window.finish_head(in);
    BOOST_TEST(window.head(in) == OpWindow::none);
    BOOST_TEST(window.may_run(last));
    BOOST_TEST(window.head(out) == 0u);
    window.finish_head(out);
    BOOST_TEST(window.head(out) == last + 1);
    BOOST_TEST(window.size() == 2u);
    BOOST_TEST(!window.may_run(last + 1));
    window.finish_head(compute);
    BOOST_TEST(window.may_run(last + 1));
    window.finish_head(out);
    BOOST_TEST(window.empty());
}

BOOST_AUTO_TEST_SUITE_END()
