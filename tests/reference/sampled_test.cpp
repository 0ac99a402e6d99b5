#include "reference/attention/samples.hpp"

#include "layouts/basics/require.hpp"
#include "reference/attention/dense.hpp"
#include "reference/error/deviations.hpp"
#include "tests/reference/attention_cases.hpp"

#if __has_include(<xtensor/views/xview.hpp>)
#include <xtensor/core/xmath.hpp>
#include <xtensor/views/xview.hpp>
#else
#include <xtensor/xmath.hpp>
#include <xtensor/xview.hpp>
#endif
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace {

namespace data = boost::unit_test::data;
using namespace ringlab;
using layouts::Problem;
using tests::AttentionCase;

const Problem odd{.batch = 2, .tokens = 97, .query_heads = 4, .kv_heads = 2, .head_dim = 11, .value_dim = 6};
const Problem capped_scores{
    .tokens = 193, .query_heads = 13, .kv_heads = 13, .head_dim = 5, .value_dim = 7, .soft_cap = 2};
const Problem dropping{
    .tokens = 131, .query_heads = 4, .kv_heads = 2, .head_dim = 7, .value_dim = 6, .dropout = {0.25, 3}};

const std::vector<AttentionCase> sampled_cases{
    {odd, "full"},
    {odd, "causal"},
    {odd, "window:9,0+sink:3"},
    {odd, "causal+documents:20,1,33,43"},
    {odd, "causal+valid:10-30,50-90"},
    {odd, "window:3,0+valid:5-8,60-97"},
    {capped_scores, "causal"},
    {capped_scores, "window:20,3"},
    {dropping, "window:30,0"},
};

// Ends, neighbours and far ones; some are padding in some of the masks.
const std::vector<std::int64_t> positions{0, 1, 6, 7, 8, 31, 55, 56, 89, 96};

reference::Tensor tokens_at(const reference::Tensor& tensor, const std::vector<std::int64_t>& at) {
    return xt::view(tensor, xt::all(), xt::keep(at));
}
reference::Lse tokens_at(const reference::Lse& lse, const std::vector<std::int64_t>& at) {
    return xt::view(lse, xt::all(), xt::keep(at));
}

BOOST_AUTO_TEST_SUITE(sampled)

/// From statistics of their own.
reference::SampledColumns exact_columns(const layouts::Problem& problem, const layouts::Mask& mask,
                                        const reference::Inputs& inputs, const std::vector<std::int64_t>& columns,
                                        const reference::BlockedOptions& options = {}) {
    const auto statistics = reference::row_statistics(problem, mask, inputs, columns, options);
    return reference::sampled_columns(problem, mask, inputs, columns, statistics, options);
}

BOOST_DATA_TEST_CASE(sampled_rows_and_columns_equal_those_of_dense, data::make(sampled_cases), c) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const auto inputs = tests::normal_inputs(c.problem);
    const auto expected = reference::dense_attention(c.problem, mask, inputs);
    const tests::ErrorBounds bounds(c.problem, inputs);  // two sides round, and the tiles a little: see blocked
    const auto check = [&](const char* name, const auto& sample, const auto& all, double bound) {
        BOOST_TEST(reference::deviation(name, sample, tokens_at(all, positions)).max_abs <= 3 * bound);
    };
    const auto check_columns = [&](const reference::SampledColumns& sample) {
        check("dk", sample.dk, expected.dk, bounds.dk);
        check("dv", sample.dv, expected.dv, bounds.dv);
    };
    for (const auto& options : {reference::BlockedOptions{},
                                {.threads = 2, .tile_rows = 3, .tile_keys = 24},
                                {.threads = 2, .tile_rows = 16, .tile_keys = 3}}) {
        const auto sample = reference::sampled_rows(c.problem, mask, inputs, positions, options);
        check("o", sample.o, expected.o, bounds.o);
        check("lse", sample.lse, expected.lse, bounds.lse);
        check("dq", sample.dq, expected.dq, bounds.dq);
        check_columns(exact_columns(c.problem, mask, inputs, positions, options));
    }
    // The same from statistics of all rows.
    check_columns(reference::sampled_columns(
        c.problem, mask, inputs, positions,
        {reference::all_positions(c.problem.tokens), expected.lse, reference::row_delta(inputs.dout, expected.o)}));
}

BOOST_DATA_TEST_CASE(rows_that_see_a_column_are_those_of_the_definition, data::make(sampled_cases), c) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    std::vector<std::int64_t> expected;
    for (std::int64_t i = 0; i < c.problem.tokens; ++i)
        if (std::any_of(positions.begin(), positions.end(), [&](std::int64_t j) { return mask.visible(i, j); }))
            expected.push_back(i);
    BOOST_TEST(reference::rows_that_see(c.problem, mask, positions) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(keys_that_nobody_sees_have_no_gradient) {
    const auto mask = layouts::make_mask("causal+valid:10-90", 97);
    const auto sample = exact_columns(odd, mask, tests::normal_inputs(odd), {3, 95});
    BOOST_TEST(xt::amax(xt::abs(sample.dk))() == 0);
    BOOST_TEST(xt::amax(xt::abs(sample.dv))() == 0);
}

BOOST_AUTO_TEST_CASE(positions_that_do_not_increase_or_lie_outside_are_refused) {
    const auto mask = layouts::make_mask("causal", 97);
    const auto inputs = tests::normal_inputs(odd);
    for (const auto& bad : std::vector<std::vector<std::int64_t>>{{}, {3, 3}, {5, 4}, {-1}, {97}}) {
        BOOST_CHECK_THROW(reference::sampled_rows(odd, mask, inputs, bad), Error);
        BOOST_CHECK_THROW(exact_columns(odd, mask, inputs, bad), Error);
    }
}

BOOST_AUTO_TEST_CASE(statistics_that_lack_a_row_are_refused) {
    const auto mask = layouts::make_mask("causal", 97);
    const auto inputs = tests::normal_inputs(odd);
    const auto statistics = reference::row_statistics(odd, mask, inputs, {50});
    BOOST_CHECK_THROW(reference::sampled_columns(odd, mask, inputs, {40}, statistics), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
