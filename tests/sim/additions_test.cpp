#include "scenario.hpp"
#include "sim/cost/cost.hpp"

#include <boost/test/unit_test.hpp>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;

BOOST_AUTO_TEST_SUITE(additions)

BOOST_AUTO_TEST_CASE(dropout_takes_its_time_for_every_tile) {
    for (const auto model : {ComputeModel::tiles, ComputeModel::rate})
        for (const std::int64_t head_dim : {64, 128}) {
            layouts::Problem problem{.batch = 2,
                                     .tokens = 256,
                                     .query_heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = head_dim,
                                     .value_dim = head_dim};
            Machine machine;
            SimOptions options;
            options.compute = model;
            const auto predicted = [&] {
                return simulate(*schedule_of(problem, "full", "contiguous", 1), machine, options);
            };
            const auto unknown = [&] {
                return std::ranges::any_of(predicted().notes, [](const auto& note) {
                    return note.find("no price of dropout") != std::string::npos;
                });
            };
            BOOST_TEST(!unknown());
            problem.dropout.probability = 0.1;
            BOOST_TEST(unknown());
            BOOST_TEST(predicted().makespan == 0);
            machine.forward.dropout_tile_seconds = 1e-6;
            BOOST_TEST(!unknown());
            BOOST_TEST(predicted().makespan == 32'000'000);
            problem.dropout.probability = 0;
            BOOST_TEST(predicted().makespan == 0);
        }
}

BOOST_AUTO_TEST_CASE(what_rotates_q_and_k_reads_and_writes_them_once) {
    auto machine = pair_machine(Scenario{});
    machine.accumulate_launch_seconds = 3e-6;
    machine.add_memory_ratio = 3;  // reads two, writes one
    machine.memory_bytes_per_second = 1e12;
    layouts::Problem problem{.batch = 2, .tokens = 4096, .query_heads = 8, .kv_heads = 2, .head_dim = 64};
    const auto seconds = [&](layouts::Pass pass) {
        const auto schedule = schedule_of(problem, "causal", "zigzag", 4, {"ring", pass});
        return sim::rotation_seconds(*schedule, machine, 1024);
    };
    BOOST_TEST(seconds(layouts::Pass::forward) == 0);
    problem.rotary.base = 10000;
    const double numbers = 2 * 1024 * (8 + 2) * 64;
    BOOST_TEST(seconds(layouts::Pass::forward) == 6e-6 + 2 * 2 * numbers / 1e12, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(seconds(layouts::Pass::backward) == 6e-6 + 2 * 4 * numbers / 1e12, boost::test_tools::tolerance(1e-12));
    machine.rotate_memory_ratio = 8;  // calibrated
    machine.rotate_back_memory_ratio = 3;
    BOOST_TEST(seconds(layouts::Pass::forward) == 6e-6 + 8 * 2 * numbers / 1e12, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(seconds(layouts::Pass::backward) == 6e-6 + 3 * 4 * numbers / 1e12, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(a_latent_is_expanded_and_compressed_at_the_rate_of_matrix_products) {
    auto machine = pair_machine(Scenario{});
    machine.accumulate_launch_seconds = 3e-6;
    machine.memory_bytes_per_second = 1e12;
    machine.matrix_product_flops = 1e14;
    const layouts::Problem problem{.batch = 2,
                                   .tokens = 4096,
                                   .query_heads = 8,
                                   .kv_heads = 8,
                                   .head_dim = 192,
                                   .value_dim = 128,
                                   .latent = {.rank = 512, .shared = 64}};
    const auto seconds_of = [&](layouts::Pass pass, layouts::OpKind kind) {
        const auto schedule = schedule_of(problem, "causal", "zigzag", 4, {"ring", pass});
        const SimOptions options;
        CostModel cost(*schedule, machine, options);
        auto ops = schedule->ops(1);
        while (const auto* op = ops.next())
            if (op->kind == kind) return layouts::to_seconds(cost.compute(*op, 1));
        return -1.0;
    };
    using enum layouts::OpKind;
    const double numbers = 2 * 1024 * 8 * (128 + 128), product = 2 * numbers * 512 / 1e14;
    const auto near = boost::test_tools::tolerance(1e-6);
    BOOST_TEST(seconds_of(layouts::Pass::forward, expand) == 9e-6 + product, near);
    const double dkv = 2 * 1024 * 8 * (192 + 128) * 4;
    BOOST_TEST(seconds_of(layouts::Pass::backward, compress) == 9e-6 + (dkv + 2 * numbers) / 1e12 + 2 * product, near);
    // Products so fast that writing K and V is what takes the time.
    machine.matrix_product_flops = 1e18;
    BOOST_TEST(seconds_of(layouts::Pass::forward, expand) == 9e-6 + 2 * 1024 * 8 * (192 + 128) * 2 / 1e12, near);
    // A file that does not say: as forward attends.
    machine.matrix_product_flops = 0;
    machine.forward.flops = 1e14;
    BOOST_TEST(seconds_of(layouts::Pass::forward, expand) == 9e-6 + product, near);
}

BOOST_AUTO_TEST_SUITE_END()
