#include "sim/cost/split_kv.hpp"

#include "scenario.hpp"
#include "sim/cost/cost.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab::sim;
using namespace ringlab::sim::test;

BOOST_AUTO_TEST_SUITE(split_kv)

BOOST_AUTO_TEST_CASE(a_few_rows_read_their_cache_at_the_rate_of_memory_or_of_the_blocks_that_share_it) {
    ringlab::layouts::Problem problem{.batch = 4, .tokens = 2048, .query_heads = 8, .kv_heads = 4, .head_dim = 128};
    problem.queries = {{2047, 2048}};
    const auto schedule =
        ringlab::layouts::make_schedule(problem, ringlab::layouts::make_mask("full", 2048),
                                        ringlab::layouts::make_layout("contiguous", 2048, 2), {"ring"});
    Machine machine;
    machine.sms = 8;
    machine.forward.launch_seconds = 100e-6;  // of a kernel for many rows
    machine.split_kv = {.rows = 16, .launch_seconds = 10e-6, .bytes_per_second = 4e12};
    const auto seconds = [&] {
        auto ops = schedule->ops(1);
        const auto* op = ops.next();
        while (op->kind != ringlab::layouts::OpKind::attend) op = ops.next();
        return ringlab::sim::split_kv_seconds(*schedule, *op, machine);
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
    const auto predicted = ringlab::sim::simulate(*schedule, machine);
    BOOST_TEST(ringlab::layouts::to_seconds(predicted.ranks[1].compute) == 2 * seconds(),
               boost::test_tools::tolerance(1e-6));
}

// What a decoded token took on one H200, by the figures in gpu/kernels/README.md that the machine file is made of.
BOOST_AUTO_TEST_CASE(a_decoded_token_takes_what_it_took_on_an_h200) {
    const auto machine = ringlab::sim::load_machine(RINGLAB_SOURCE_DIR "/experiments/machines/4xh200_calibrated.toml");
    struct Took {
        std::int64_t tokens, batch, query_heads, kv_heads, head_dim;
        double us;
    };
    for (const auto& took :
         {Took{8192, 1, 32, 8, 128, 26}, Took{65536, 1, 32, 8, 128, 84.7}, Took{262144, 1, 32, 8, 128, 260.9},
          Took{1048576, 1, 32, 8, 128, 958.3}, Took{8192, 16, 32, 8, 128, 131}, Took{65536, 1, 128, 8, 128, 78.9},
          Took{65536, 1, 32, 1, 256, 124.9}}) {
        ringlab::layouts::Problem problem{.batch = took.batch,
                                          .tokens = took.tokens,
                                          .query_heads = took.query_heads,
                                          .kv_heads = took.kv_heads,
                                          .head_dim = took.head_dim,
                                          .value_dim = took.head_dim};
        problem.queries = {{took.tokens - 1, took.tokens}};
        const auto schedule =
            ringlab::layouts::make_schedule(problem, ringlab::layouts::make_mask("full", took.tokens),
                                            ringlab::layouts::make_layout("contiguous", took.tokens, 1), {"ring"});
        auto ops = schedule->ops(0);
        const auto seconds = ringlab::sim::split_kv_seconds(*schedule, *ops.next(), machine);
        BOOST_TEST(std::abs(seconds * 1e6 / took.us - 1) < 0.09, seconds * 1e6 << " us for " << took.us);
    }
}

// 2 batch elements x 4 query heads x 2 x 2 tiles of 128 x 128, all of them full: 32 tiles, on a processor that takes no
// time for anything else; whatever the head dim.

BOOST_AUTO_TEST_SUITE_END()
