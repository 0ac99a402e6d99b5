// Dropout on a device: the pairs that the reference drops, in both passes, whatever the schedule and the kernels' dims.

#include "reference/attention/blocked.hpp"
#include "reference/error/deviations.hpp"
#include "tests/covering.hpp"
#include "tests/dropped_pairs.hpp"
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

layouts::Problem dropping_problem() {
    auto p = small_problem();
    p.dropout = {0.3, 1234567890123};
    return p;
}

const Names dropping_schedules([] { return schedules_for(dropping_problem(), {1, 4}); });
const Names family_names([] {
    std::vector<std::string> names;
    for (const auto* family : gpu::kernel_families()) names.push_back(family->name());
    return names;
});

bool runs_here(const std::string& family) { return gpu::kernel_family(family)->why_not_on_this_device().empty(); }

}  // namespace

BOOST_AUTO_TEST_SUITE(dropout_on_gpu, *boost::unit_test::precondition(has_gpu))

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

// Masks and layouts take turns.
BOOST_DATA_TEST_CASE(every_schedule_agrees_with_the_reference, data::make(dropping_schedules), schedule) {
    const std::vector<std::string> masks{"causal", "causal+documents:97,43,300,136", "window:31,17+valid:100-200"};
    const auto number = dropping_schedules.place_of(schedule);
    Combinations combinations;
    for (const int ranks : {1, 4}) {
        if (!combinations.take(suits(dropping_problem(), schedule, ranks))) continue;
        const auto turn = number + static_cast<std::size_t>(ranks);
        agrees_with_the_reference(
            {dropping_problem(), masks[turn % masks.size()], layout_in_turn(turn), schedule, ranks});
        agrees_with_the_reference(
            {dropping_problem(), "causal", "zigzag", schedule, ranks, Accumulation::partials, DType::bf16});
    }
}

// Shards of 768 tokens are whole patches and have tiles that the mask leaves full; those of 390 tokens are not.
BOOST_DATA_TEST_CASE(every_dim_agrees_with_the_reference, data::make(family_names), family) {
    if (!runs_here(family)) return;
    constexpr std::array head_dims{64, 128, 192, 256, 40, 130};
    constexpr std::array dtypes{DType::bf16, DType::fp16};
    for (const auto& [h, d, deterministic, capped, whole] : pairwise<5>({head_dims.size(), dtypes.size(), 2, 2, 2})) {
        auto p = dropping_problem();
        p.batch = 2;
        p.tokens = whole == 1 ? 768 : 390;
        p.query_heads = 6;
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

BOOST_AUTO_TEST_CASE(few_query_rows_drop_by_their_position) {
    auto p = dropping_problem();
    p.queries = {{96, 97}, {439, 440}, {570, 576}};
    for (const auto& layout : layout_examples()) agrees_with_the_reference({p, "causal", layout, "ring", 4});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
