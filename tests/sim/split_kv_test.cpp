#include "sim/tiles/kernels.hpp"

#include "scenario.hpp"
#include "sim/cost/cost.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;

BOOST_AUTO_TEST_SUITE(split_kv)

BOOST_AUTO_TEST_CASE(a_few_rows_read_their_cache_at_the_rate_of_memory_or_of_the_blocks_that_share_it) {
    layouts::Problem problem{.batch = 4, .tokens = 2048, .query_heads = 8, .kv_heads = 4, .head_dim = 128};
    problem.queries = {{2047, 2048}};
    const auto schedule = schedule_of(problem, "full", "contiguous", 2);
    Machine machine;
    machine.sms = 8;
    machine.forward.launch_seconds = 100e-6;  // of a kernel for many rows
    machine.split_kv = {.rows = 16, .launch_seconds = 10e-6, .bytes_per_second = 4e12};
    const auto seconds = [&] {
        auto ops = schedule->ops(1);
        const auto* op = ops.next();
        while (op->kind != layouts::OpKind::attend) op = ops.next();
        return split_kv_seconds(*schedule, *op, machine);
    };
    const double bytes = 4. * 4 * 1024 * 2 * 128 * 2;
    const auto close = boost::test_tools::tolerance(1e-12);
    BOOST_TEST(seconds() == 10e-6 + bytes / 4e12, close);
    // 16 work tiles, two turns on 8 SMs, of 512 KB each.
    machine.split_kv.block_bytes_per_second = 1e9;
    BOOST_TEST(seconds() == 10e-6 + 2 * bytes / 16 / 1e9, close);
    // Four blocks share a work tile, two work tiles at a time: eight turns of a quarter are no less. Sixteen would be.
    machine.split_kv.groups = {{4, 2}};
    BOOST_TEST(seconds() == 10e-6 + 2 * bytes / 16 / 1e9, close);
    machine.split_kv.groups = {{4, 2}, {16, 4}};
    BOOST_TEST(seconds() == 10e-6 + 4 * bytes / 16 / 16 / 1e9, close);
    // The whole pass goes by it.
    machine.inside_host.latency_seconds = 0;
    const auto predicted = simulate(*schedule, machine);
    BOOST_TEST(layouts::to_seconds(predicted.ranks[1].compute) == 2 * seconds(), boost::test_tools::tolerance(1e-6));
}

// Rank 1 owns the row. Rank 0 has it after 3 us, while its launch begins, and sends its result back in 3 us more; the
// merge is in the launch, too. By `merge` rank 0 begins its launch when it has the row, and the merge is one more.
BOOST_AUTO_TEST_CASE(a_pass_that_is_one_launch_pays_for_one) {
    layouts::Problem problem{.tokens = 2048, .query_heads = 8, .kv_heads = 4, .head_dim = 128};
    problem.queries = {{2047, 2048}};
    const auto makespan = [&](const std::string& schedule_name, const Machine& machine) {
        const auto schedule = schedule_of(problem, "full", "contiguous", 2, {schedule_name});
        return layouts::to_seconds(simulate(*schedule, machine).makespan);
    };
    Machine machine;
    machine.sms = 8;
    machine.split_kv = {.rows = 16, .launch_seconds = 10e-6, .bytes_per_second = 4e12};
    machine.inside_host.latency_seconds = 3e-6;
    machine.accumulate_launch_seconds = 5e-6;
    machine.transfer_issue_seconds = 2e-6;
    const double reading = 4. * 1024 * 2 * 128 * 2 / 4e12;
    const auto close = boost::test_tools::tolerance(1e-6);
    BOOST_TEST(makespan("joined-merge", machine) == 10e-6 + reading + 3e-6, close);
    machine.transfer_issue_seconds = 0;
    BOOST_TEST(makespan("merge", machine) == 3e-6 + 10e-6 + reading + 3e-6 + 5e-6, close);
    // Kernels that carry messages cannot store in a peer's memory.
    machine.inside_host.carrier = LinkCost::Carrier::kernels;
    BOOST_TEST(makespan("joined-merge", machine) == makespan("merge", machine), close);
}

// Eight sequences of 256 tokens with one row each: eight row groups of one kv head, each of which reads 256 keys.
BOOST_AUTO_TEST_CASE(row_groups_of_a_batch_read_the_keys_of_their_own_sequences) {
    layouts::Problem problem{.tokens = 2048, .query_heads = 16, .kv_heads = 1, .head_dim = 128};
    std::string mask = "causal+documents:256";
    for (int sequence = 0; sequence < 8; ++sequence) {
        problem.queries.push_back({256 * sequence + 255, 256 * sequence + 256});
        if (sequence > 0) mask += ",256";
    }
    const auto schedule = schedule_of(problem, mask, "contiguous", 1);
    Machine machine;
    machine.sms = 4;
    machine.split_kv = {.rows = 16, .launch_seconds = 0, .bytes_per_second = 1e15, .block_bytes_per_second = 1e9};
    auto ops = schedule->ops(0);
    const double bytes_of_sequence = 256. * 2 * 128 * 2;
    BOOST_TEST(split_kv_seconds(*schedule, *ops.next(), machine) == 2 * bytes_of_sequence / 1e9,
               boost::test_tools::tolerance(1e-12));
}

// What a decoded token took on one H200, by the figures in gpu/kernels/measurements.md that the machine file is made
// of.
BOOST_AUTO_TEST_CASE(a_decoded_token_takes_what_it_took_on_an_h200) {
    const auto machine = shipped_machine("4xh200_calibrated");
    struct Took {
        std::int64_t tokens, batch, query_heads, kv_heads, head_dim;
        double us;
    };
    for (const auto& took :
         {Took{8192, 1, 32, 8, 128, 26}, Took{65536, 1, 32, 8, 128, 84.7}, Took{262144, 1, 32, 8, 128, 260.9},
          Took{1048576, 1, 32, 8, 128, 958.3}, Took{8192, 16, 32, 8, 128, 131}, Took{65536, 1, 128, 8, 128, 78.9},
          Took{65536, 1, 32, 1, 256, 124.9}}) {
        layouts::Problem problem{.batch = took.batch,
                                 .tokens = took.tokens,
                                 .query_heads = took.query_heads,
                                 .kv_heads = took.kv_heads,
                                 .head_dim = took.head_dim,
                                 .value_dim = took.head_dim};
        problem.queries = {{took.tokens - 1, took.tokens}};
        const auto schedule = schedule_of(problem, "full", "contiguous", 1);
        auto ops = schedule->ops(0);
        const auto seconds = split_kv_seconds(*schedule, *ops.next(), machine);
        BOOST_TEST(std::abs(seconds * 1e6 / took.us - 1) < 0.09, seconds * 1e6 << " us for " << took.us);
    }
}

BOOST_AUTO_TEST_SUITE_END()
