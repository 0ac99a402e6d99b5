#include "reference/attention/blocked.hpp"

#include "layouts/basics/require.hpp"
#include "reference/attention/blocked_exp.hpp"
#include "reference/attention/dense.hpp"
#include "reference/error/deviations.hpp"
#include "reference/tensors/blas.hpp"
#include "tests/reference/attention_cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace {

namespace data = boost::unit_test::data;
using namespace ringlab;
using layouts::Problem;
using tests::AttentionCase;

const Problem odd{.tokens = 97, .query_heads = 3, .kv_heads = 3, .head_dim = 11, .value_dim = 11};
const Problem many_heads{.tokens = 193, .query_heads = 26, .kv_heads = 13, .head_dim = 5, .value_dim = 9};
const Problem batches{
    .batch = 3, .tokens = 61, .query_heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 4, .scale = 0.9};
const Problem capped{
    .tokens = 131, .query_heads = 2, .kv_heads = 1, .head_dim = 7, .value_dim = 6, .scale = 1.2, .soft_cap = 3};
const Problem dropout_factors{
    .batch = 2, .tokens = 131, .query_heads = 4, .kv_heads = 2, .head_dim = 7, .value_dim = 6, .dropout = {0.2, 6}};
const Problem single{.tokens = 1, .head_dim = 3, .value_dim = 2};

const std::vector<AttentionCase> cases{
    {odd, "full"},
    {odd, "causal"},
    {odd, "window:9,4"},
    {odd, "window:0,0"},
    {odd, "window:9,0+sink:3"},
    {odd, "window:5,0+sink:40"},
    {odd, "documents:20,1,33,43"},
    {odd, "causal+documents:20,1,33,43"},
    {odd, "prefix:31"},
    {odd, "block-causal:13,64,20"},
    {odd, "causal+valid:10-30,31-32,50-90"},
    {odd, "window:3,0+valid:0-2,70-97"},
    {many_heads, "causal"},
    {batches, "causal"},
    {batches, "window:11,0+sink:2+valid:1-60"},
    {capped, "causal"},
    {capped, "full+valid:5-100"},
    {dropout_factors, "causal"},
    {dropout_factors, "window:30,0+sink:2+valid:1-120"},
    {single, "causal"},
};

const std::vector<reference::BlockedOptions> options{
    {},  // one tile holds all but the largest
    {.threads = 2, .tile_rows = 16, .tile_keys = 24},
    {.threads = 3, .tile_rows = 70, .tile_keys = 13},
    {.threads = 1, .tile_rows = 1, .tile_keys = 1},
};

BOOST_AUTO_TEST_SUITE(blocked)

BOOST_DATA_TEST_CASE(blocked_equals_dense_within_rounding, data::make(cases), c) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const auto inputs = tests::normal_inputs(c.problem);
    const auto expected = reference::dense_attention(c.problem, mask, inputs);
    // Both sides round; the running softmax rounds once more per tile than the bounds count, at most once per key,
    // which doubles their sum over tokens.
    const tests::ErrorBounds bounds(c.problem, inputs);
    const double sides = 3;
    for (const auto& option : options) {
        BOOST_TEST_CONTEXT("tiles " << option.tile_rows << " x " << option.tile_keys) {
            const auto measured = reference::blocked_attention(c.problem, mask, inputs, option);
            const auto d = reference::deviations(measured, expected);
            BOOST_TEST(d.o.max_abs <= sides * bounds.o);
            BOOST_TEST(d.lse.max_abs <= sides * bounds.lse);
            BOOST_TEST(d.dq.max_abs <= sides * bounds.dq);
            BOOST_TEST(d.dk.max_abs <= sides * bounds.dk);
            BOOST_TEST(d.dv.max_abs <= sides * bounds.dv);
        }
    }
}

BOOST_DATA_TEST_CASE(results_do_not_depend_on_the_number_of_threads_bit_for_bit, data::make(cases), c) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const auto inputs = tests::normal_inputs(c.problem);
    const auto run = [&](int threads) {
        return reference::blocked_attention(c.problem, mask, inputs,
                                            {.threads = threads, .tile_rows = 16, .tile_keys = 24});
    };
    const auto one = run(1);
    for (const int threads : {2, 3, 7}) {
        const auto several = run(threads);
        BOOST_TEST((several.o == one.o));
        BOOST_TEST((several.lse == one.lse));
        BOOST_TEST((several.dq == one.dq));
        BOOST_TEST((several.dk == one.dk));
        BOOST_TEST((several.dv == one.dv));
    }
}

BOOST_AUTO_TEST_CASE(rows_that_see_nothing_are_exactly_empty) {
    const auto mask = layouts::make_mask("causal+valid:40-80", 97);
    const auto out = reference::blocked_attention(odd, mask, tests::normal_inputs(odd), {.tile_rows = 16});
    for (const std::size_t i : {0, 39, 80, 96}) {
        BOOST_TEST(out.lse(0, i, 1) == -std::numeric_limits<double>::infinity());
        for (std::size_t d = 0; d < 11; ++d) {
            BOOST_TEST(out.o(0, i, 1, d) == 0);
            BOOST_TEST(out.dq(0, i, 1, d) == 0);
            BOOST_TEST(out.dk(0, i, 1, d) == 0);
            BOOST_TEST(out.dv(0, i, 1, d) == 0);
        }
    }
}

BOOST_AUTO_TEST_CASE(a_nan_in_the_inputs_is_not_lost) {
    auto inputs = tests::normal_inputs(odd);
    inputs.q(0, 50, 1, 3) = std::nan("");
    const auto out = reference::blocked_attention(odd, layouts::make_mask("causal", 97), inputs, {.tile_rows = 16});
    BOOST_TEST(std::isnan(out.lse(0, 50, 1)));
    BOOST_TEST(std::isnan(out.o(0, 50, 1, 0)));
    BOOST_TEST(std::isnan(out.dq(0, 50, 1, 0)));
    BOOST_TEST(std::isnan(out.dk(0, 20, 1, 0)));
    BOOST_TEST(!std::isnan(out.lse(0, 49, 1)));
}

BOOST_AUTO_TEST_CASE(scores_beyond_the_range_of_exp_do_not_overflow) {
    auto inputs = tests::normal_inputs(odd);
    inputs.q *= 1e4;
    const auto mask = layouts::make_mask("causal", 97);
    const auto expected = reference::dense_attention(odd, mask, inputs);
    const auto measured = reference::blocked_attention(odd, mask, inputs, {.tile_rows = 16, .tile_keys = 24});
    const tests::ErrorBounds bounds(odd, inputs);
    const auto d = reference::deviations(measured, expected);
    BOOST_TEST(d.o.max_abs <= 2 * bounds.o);
    BOOST_TEST(d.dq.max_abs <= 2 * bounds.dq);
    BOOST_TEST(d.dk.max_abs <= 2 * bounds.dk);
    BOOST_TEST(d.dv.max_abs <= 2 * bounds.dv);
}

// Read before any test runs: a guard that forgot to restore it would hide itself from a later look.
const int blas_threads_at_start = reference::blas_threads();

BOOST_AUTO_TEST_CASE(blas_has_its_threads_back_after_the_guard) {
    reference::blocked_attention(odd, layouts::make_mask("causal", 97), tests::normal_inputs(odd));
    BOOST_TEST(reference::blas_threads() == blas_threads_at_start);
    {
        const reference::SingleThreadedBlas guard;
        BOOST_TEST(reference::blas_threads() == 1);
    }
    BOOST_TEST(reference::blas_threads() == blas_threads_at_start);
}

BOOST_AUTO_TEST_CASE(exp_is_within_a_unit_in_the_last_place_and_keeps_special_values) {
    using Vector = xsimd::batch<double>;
    const auto exp_of = [](double x) { return reference::exp_of(Vector(x)).get(0); };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double largest = 0;
    for (int n = -708000; n <= 709000; n += 7) {
        const double x = n * 1e-3;
        const long double exact = std::exp(static_cast<long double>(x));
        largest = std::max(largest, static_cast<double>(std::abs(exp_of(x) - exact) / exact));
    }
    BOOST_TEST(largest <= std::numeric_limits<double>::epsilon());
    BOOST_TEST(exp_of(0) == 1);
    BOOST_TEST(exp_of(-infinity) == 0);
    BOOST_TEST(exp_of(-1e300) == 0);
    BOOST_TEST(exp_of(infinity) == infinity);
    BOOST_TEST(exp_of(1000) == infinity);
    BOOST_TEST(std::isnan(exp_of(std::nan(""))));
}

BOOST_AUTO_TEST_CASE(tiles_of_no_size_are_refused) {
    const auto inputs = tests::normal_inputs(single);
    BOOST_CHECK_THROW(reference::blocked_attention(single, layouts::make_mask("full", 1), inputs, {.tile_rows = 0}),
                      Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
