// What models add to attention, on a device, against the fp64 reference: dropout, learned sink logits, and multi-head
// latent attention, which the reference expands first.

#include "reference/attention/blocked.hpp"
#include "tests/covering.hpp"
#include "tests/dropped_pairs.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/executor_case.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <array>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::Accumulation;
using layouts::DType;

layouts::Problem dropping_problem() {
    auto p = small_problem();
    p.dropout = {0.3, 1234567890123};
    return p;
}

layouts::Problem sink_problem() {
    auto p = small_problem();
    p.sinks = {0.5, -4, 9, 3};
    return p;
}

/// Heads as DeepSeek has them, of a smaller latent; YaRN, and a few tokens that no tile divides.
layouts::Problem latent_problem() {
    auto p = small_problem();
    p.kv_heads = 4;
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

const Names dropping_schedules([] { return schedules_for(dropping_problem(), {1, 4}); });
const Names sink_schedules([] { return schedules_for(sink_problem(), {1, 4}); });
const Names latent_schedules([] { return schedules_for(latent_problem(), {1, 2, 4}); });
const Names family_names([] {
    std::vector<std::string> names;
    for (const auto* family : gpu::kernel_families()) names.push_back(family->name());
    return names;
});

bool runs_here(const std::string& family) { return gpu::kernel_family(family)->why_not_on_this_device().empty(); }

/// Masks and layouts take turns by the number of the schedule and of ranks. `further`: makes another case of each.
void check_in_turns(const layouts::Problem& problem, const Names& schedules, const std::string& schedule,
                    const std::vector<int>& all_ranks, const std::vector<std::string>& layouts,
                    const std::function<RingCase(RingCase, std::size_t turn)>& further = {}) {
    const std::vector<std::string> some_masks{"causal", "causal+documents:97,43,300,136", "window:31,17+valid:100-200"};
    Combinations combinations;
    for (const int ranks : all_ranks) {
        if (!combinations.take(suits(problem, schedule, ranks))) continue;
        const auto turn = schedules.place_of(schedule) + static_cast<std::size_t>(ranks);
        RingCase c{problem, some_masks[turn % some_masks.size()], layouts[turn % layouts.size()], schedule, ranks};
        c.options.repeats = 2;  // each from results and gradients as the pass before left them
        agrees_with_the_reference(c);
        if (further) agrees_with_the_reference(further({problem, "causal", "zigzag", schedule, ranks}, turn));
    }
}

RingCase with_partials(RingCase c) {
    c.accumulation = Accumulation::partials;
    c.gradient_dtype = DType::bf16;
    return c;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(features_on_gpu, *boost::unit_test::precondition(has_gpu))

BOOST_DATA_TEST_CASE(every_schedule_with_dropout_agrees, data::make(dropping_schedules), schedule) {
    check_in_turns(dropping_problem(), dropping_schedules, schedule, {1, 4}, layout_examples(),
                   [](const RingCase& c, std::size_t) { return with_partials(c); });
}

BOOST_DATA_TEST_CASE(every_schedule_with_sinks_agrees, data::make(sink_schedules), schedule) {
    check_in_turns(sink_problem(), sink_schedules, schedule, {1, 4}, layout_examples(),
                   [](RingCase c, std::size_t turn) {
                       if (turn % 2 == 0) return with_partials(c);
                       c.problem.dropout = {0.2, 4};
                       c.problem.soft_cap = 20;
                       return c;
                   });
}

BOOST_DATA_TEST_CASE(every_schedule_that_a_latent_travels_in_agrees, data::make(latent_schedules), schedule) {
    check_in_turns(latent_problem(), latent_schedules, schedule, {1, 2, 4}, {"contiguous", "zigzag"});
}

// Shards of 768 tokens are whole patches of dropout and have tiles that the mask leaves full; those of 390 are not.
BOOST_DATA_TEST_CASE(dropout_and_sinks_agree_for_all_dims, data::make(family_names), family) {
    if (!runs_here(family)) return;
    constexpr std::array head_dims{64, 128, 192, 256, 40, 130, 33};
    constexpr std::array dtypes{DType::bf16, DType::fp16};
    for (const auto& [h, d, deterministic, capped, whole, sinks] :
         pairwise<6>({head_dims.size(), dtypes.size(), 2, 2, 2, 3})) {
        auto p = sinks == 0 ? dropping_problem() : sink_problem();
        if (sinks == 1) p.dropout = dropping_problem().dropout;
        p.batch = 2;
        p.tokens = whole == 1 ? 768 : 390;
        p.head_dim = head_dims[h];
        p.value_dim = head_dims[h] == 192 ? 128 : head_dims[h];
        p.dtype = dtypes[d];
        p.soft_cap = capped == 1 ? 20 : 0;
        RingCase c{p, whole == 1 ? "causal+documents:311,457" : "causal+documents:111,200,79", "zigzag", "ring", 3};
        c.options.deterministic = deterministic == 1;
        c.options.kernels = gpu::kernel_family(family);
        agrees_with_the_reference(c);
    }
}

// Layouts, a fixed order of sums and 192 tokens, of which contiguous shards over 4 ranks are whole patches, take turns.
// With 240 tokens they are not, nor whole tiles.
BOOST_DATA_TEST_CASE(every_pair_is_dropped_as_the_reference_says,
                     data::make(dropping_schedules) * data::make(family_names), schedule, family) {
    if (!runs_here(family)) return;
    const auto number = dropping_schedules.place_of(schedule);
    Combinations combinations;
    for (const int ranks : {1, 4}) {
        if (!combinations.take(suits(dropping_problem(), schedule, ranks))) continue;
        auto problem = dropping_problem();
        problem.batch = 2;
        const auto turn = number + static_cast<std::size_t>(ranks);
        const std::uint32_t tokens = turn / 2 % 2 == 0 ? 192 : 240;
        problem.tokens = problem.value_dim = tokens;
        problem.kv_heads = problem.query_heads;
        RingCase c{problem, "causal", layout_in_turn(turn), schedule, ranks};
        c.options.deterministic = turn % 2 == 0;
        c.options.kernels = gpu::kernel_family(family);
        const auto inputs = telling(random_inputs(problem, 3));
        const int wrong = wrong_pairs(problem, to_reference(run_case(c, host_inputs(inputs, problem.dtype)).outputs));
        BOOST_TEST(wrong == 0, c << ", " << tokens << " tokens: " << wrong << " wrong");
    }
}

BOOST_AUTO_TEST_CASE(few_query_rows_drop_by_their_position) {
    auto p = dropping_problem();
    p.queries = {{96, 97}, {439, 440}, {570, 576}};
    for (const auto& layout : layout_examples()) agrees_with_the_reference({p, "causal", layout, "ring", 4});
}

BOOST_AUTO_TEST_CASE(sinks_far_below_all_scores_change_no_bit_and_far_above_leave_nothing) {
    RingCase c{small_problem(), "causal", "zigzag", "ring", 4};
    const auto inputs = host_inputs(c.problem, 5);
    c.options.deterministic = true;
    const auto without = run_case(c, inputs).outputs;
    c.problem.sinks.assign(4, -1e4);
    auto with = run_case(c, inputs).outputs;
    for (const double gradient : with.dsinks) BOOST_TEST(gradient == 0);
    check_identical(with, without);
    c.problem.sinks.assign(4, 1e4);
    with = run_case(c, inputs).outputs;
    for (const float o : with.o.values) BOOST_TEST_REQUIRE(o == 0);
    for (const float lse : with.lse.values) BOOST_TEST_REQUIRE(lse == 1e4f);
    for (const float dv : with.dv.values) BOOST_TEST_REQUIRE(dv == 0);
}

BOOST_AUTO_TEST_CASE(awkward_latents_agree) {
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

BOOST_DATA_TEST_CASE(every_policy_of_latents_agrees,
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

}  // namespace ringlab::tests
