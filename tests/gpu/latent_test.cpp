// Multi-head latent attention by the executor, all ranks on one GPU, against the fp64 reference that expands first.

#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;
using layouts::DType;

/// Heads as DeepSeek has them, of a smaller latent; YaRN, and a few tokens that no tile divides.
layouts::Problem latent_problem() {
    layouts::Problem p;
    p.tokens = 576;
    p.query_heads = p.kv_heads = 4;
    p.head_dim = 192;
    p.value_dim = 128;
    p.latent = {.rank = 96, .shared = 64};
    p.rotary = {.base = 10000,
                .dims = 64,
                .first = 128,
                .pairs = layouts::Rotary::Pairs::interleaved,
                .scaling = layouts::parse_rotary_scaling("yarn:40,64")};
    return p;
}

BOOST_AUTO_TEST_SUITE(latent, *boost::unit_test::precondition(has_gpu))

const Names latent_schedules([] { return schedules_for(latent_problem(), {1, 2, 4}); });

// Masks take turns, and of two layouts the other one on the next number of ranks.
BOOST_DATA_TEST_CASE(every_schedule_that_it_travels_in_agrees_with_the_reference, data::make(latent_schedules),
                     schedule) {
    const std::vector<std::string> masks{"causal", "causal+documents:97,43,300,136", "window:31,17+valid:100-200"};
    auto turn = latent_schedules.place_of(schedule);
    Combinations combinations;
    for (const int ranks : {1, 2, 4}) {
        if (!combinations.take(suits(latent_problem(), schedule, ranks))) continue;
        const bool zigzag = turn % 2;
        RingCase c{latent_problem(), masks[turn++ % masks.size()], zigzag ? "zigzag" : "contiguous", schedule, ranks};
        c.options.repeats = zigzag ? 2 : 1;  // each from a gradient of 0
        agrees_with_the_reference(c);
    }
}

BOOST_AUTO_TEST_CASE(awkward_latents_agree_with_the_reference) {
    auto p = latent_problem();
    p.batch = 2;
    p.tokens = 390;
    p.dtype = DType::fp16;
    p.rotary = {};
    p.latent = {.rank = 40, .shared = 0};
    agrees_with_the_reference({p, "causal+documents:111,200,79", "zigzag", "ring", 3});
    p.head_dim = p.value_dim = 64;
    p.latent.shared = 8;
    p.query_heads = p.kv_heads = 6;
    agrees_with_the_reference({p, "causal", "contiguous", "seen", 3});
    agrees_with_the_reference({p, "causal", "striped", "ulysses:3", 6});
}

BOOST_DATA_TEST_CASE(every_policy_of_latents_agrees_with_the_reference,
                     data::make({"ring", "bidirectional", "expanded:ring"}) * data::make({DType::fp32, DType::bf16}),
                     schedule, gradients) {
    for (const auto accumulation : {Accumulation::carry, Accumulation::partials})
        agrees_with_the_reference({latent_problem(), "causal", "zigzag", schedule, 4, accumulation, gradients});
    RingCase c{latent_problem(), "causal", "zigzag", schedule, 4};
    c.options.round_results = true;
    c.options.repeats = 2;
    if (gradients == DType::fp32) run_case(c, host_inputs(c.problem, 1));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
