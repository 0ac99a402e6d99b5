#include "reference/attention/dense.hpp"

#include "reference/error/deviations.hpp"
#include "tests/reference/attention_cases.hpp"

#include <boost/multiprecision/cpp_bin_float.hpp>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace {

namespace data = boost::unit_test::data;
using namespace ringlab;
using layouts::Problem;
using reference::TensorOf;
using tests::AttentionCase;

using Fifty = boost::multiprecision::number<boost::multiprecision::cpp_bin_float<50>, boost::multiprecision::et_off>;

template <class Scalar>
reference::InputsOf<Scalar> widened(const reference::Inputs& in) {
    const auto widen = [](const reference::Tensor& t) { return TensorOf<Scalar>(xt::cast<Scalar>(t)); };
    return {widen(in.q), widen(in.k), widen(in.v), widen(in.dout)};
}

template <class Measured, class Expected>
double largest_difference(const Measured& measured, const Expected& expected) {
    double largest = 0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
        const Fifty want = expected.data()[n], have = measured.data()[n];
        if (have == want) continue;  // both -inf too
        const auto difference = static_cast<double>(abs(have - want));
        largest = std::max(largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
    }
    return largest;
}

const Problem multi_head{.batch = 2, .tokens = 11, .query_heads = 2, .kv_heads = 2, .head_dim = 5, .value_dim = 5};
const Problem grouped{.tokens = 13, .query_heads = 6, .kv_heads = 2, .head_dim = 5, .value_dim = 3};
const Problem wide_values{.tokens = 7, .query_heads = 3, .kv_heads = 1, .head_dim = 2, .value_dim = 7, .scale = 0.7};
const Problem capped{
    .tokens = 13, .query_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .scale = 1.5, .soft_cap = 2.5};
const Problem dropout_factors{
    .tokens = 13, .query_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 3, .dropout = {0.3, 8}};
const Problem negative_scale{.tokens = 5, .head_dim = 3, .value_dim = 2, .scale = -0.5};

const std::vector<AttentionCase> cases{
    {multi_head, "full"},
    {multi_head, "causal"},
    {grouped, "causal"},
    {grouped, "window:3,1"},
    {grouped, "window:2,0+sink:2"},
    {grouped, "window:0,0"},
    {grouped, "documents:4,1,8"},
    {grouped, "causal+documents:4,1,8"},
    {grouped, "prefix:5"},
    {grouped, "block-causal:3,7,3"},
    {grouped, "causal+valid:2-9"},
    {wide_values, "causal"},
    {wide_values, "full+valid:0-1,3-6"},
    {capped, "causal"},
    {dropout_factors, "causal"},
    {capped, "window:4,0+sink:3+valid:1-12"},
    {negative_scale, "causal"},
};

BOOST_AUTO_TEST_SUITE(dense)

BOOST_DATA_TEST_CASE(doubles_agree_with_fifty_digits_within_their_own_rounding, data::make(cases), c) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const auto inputs = tests::normal_inputs(c.problem);
    const auto expected = reference::dense_attention(c.problem, mask, widened<Fifty>(inputs));
    const auto measured = reference::dense_attention(c.problem, mask, inputs);
    const tests::ErrorBounds bounds(c.problem, inputs);
    BOOST_TEST(largest_difference(measured.o, expected.o) <= bounds.o);
    BOOST_TEST(largest_difference(measured.lse, expected.lse) <= bounds.lse);
    BOOST_TEST(largest_difference(measured.dq, expected.dq) <= bounds.dq);
    BOOST_TEST(largest_difference(measured.dk, expected.dk) <= bounds.dk);
    BOOST_TEST(largest_difference(measured.dv, expected.dv) <= bounds.dv);
}

// Central differences of the loss sum(o*dout), step h = 1e-12, in 50 digits: truncation h^2/6 times a third derivative
// below 1e3 here gives at most 2e-22, rounding 1e-50/h only 1e-38.
constexpr double difference_tolerance = 1e-21;

TensorOf<Fifty> numerical_gradient(const AttentionCase& c, reference::InputsOf<Fifty> inputs,
                                   TensorOf<Fifty> reference::InputsOf<Fifty>::*argument) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const Fifty h("1e-12");
    const auto loss = [&] {
        reference::OutputsOf<Fifty> out;
        reference::Dense<Fifty>(c.problem, mask, inputs).forward(out);
        return std::inner_product(out.o.begin(), out.o.end(), inputs.dout.begin(), Fifty(0));
    };
    TensorOf<Fifty> gradient((inputs.*argument).shape());
    for (std::size_t n = 0; n < gradient.size(); ++n) {
        auto& x = (inputs.*argument).data()[n];
        const Fifty at = x;
        x = at + h;
        const Fifty above = loss();
        x = at - h;
        const Fifty below = loss();
        x = at;
        gradient.data()[n] = (above - below) / (2 * h);
    }
    return gradient;
}

const Problem tiny{.tokens = 5, .query_heads = 2, .kv_heads = 1, .head_dim = 3, .value_dim = 2};
const Problem tiny_capped{.batch = 2,
                          .tokens = 4,
                          .query_heads = 2,
                          .kv_heads = 2,
                          .head_dim = 2,
                          .value_dim = 3,
                          .scale = 0.8,
                          .soft_cap = 1.5};
const Problem tiny_dropping{.batch = 2,
                            .tokens = 4,
                            .query_heads = 2,
                            .kv_heads = 1,
                            .head_dim = 2,
                            .value_dim = 3,
                            .soft_cap = 2,
                            .dropout = {0.4, 3}};
const Problem tiny_sinks{
    .batch = 2, .tokens = 4, .query_heads = 2, .kv_heads = 1, .head_dim = 2, .value_dim = 3, .sinks = {0.5, -1}};
const std::vector<AttentionCase> differentiated{{tiny, "full"},
                                                {tiny, "causal"},
                                                {tiny, "window:1,0+sink:1"},
                                                {tiny, "documents:2,3"},
                                                {tiny, "causal+valid:1-4"},
                                                {tiny_capped, "causal"},
                                                {tiny_dropping, "full"},
                                                {tiny_sinks, "causal+valid:1-4"},
                                                {tiny_capped, "full+valid:0-1,2-4"}};

BOOST_DATA_TEST_CASE(gradients_are_numerical_derivatives, data::make(differentiated), c) {
    const auto inputs = widened<Fifty>(tests::normal_inputs(c.problem));
    const auto out = reference::dense_attention(c.problem, layouts::make_mask(c.mask, c.problem.tokens), inputs);
    const auto check = [&](const TensorOf<Fifty>& gradient, TensorOf<Fifty> reference::InputsOf<Fifty>::*argument) {
        BOOST_TEST(largest_difference(gradient, numerical_gradient(c, inputs, argument)) <= difference_tolerance);
    };
    check(out.dq, &reference::InputsOf<Fifty>::q);
    check(out.dk, &reference::InputsOf<Fifty>::k);
    check(out.dv, &reference::InputsOf<Fifty>::v);
}

// By hand: scale 1, dims 1, q = (0, 1, 0), k = (5, 0, log 3), v = (2, 4, 8), do = (1, 1, 1), causal.
//   row 0 sees key 0:      s = 0               p = 1               o = 2        lse = 0
//   row 1 sees keys 0, 1:  written with k0 = log 3 below
//   row 2 sees all, q = 0: s = 0, 0, 0         p = 1/3 each        o = 14/3     lse = log 3
// With k = (log 3, 0, 5): row 1 has s = log 3, 0   p = 3/4, 1/4   o = 5/2   lse = log 4
//   ds = p (v - o): row 0: 0; row 1: 3/4 * -1/2 = -3/8, 1/4 * 3/2 = 3/8; row 2: -8/9, -2/9, 10/9
//   dq = sum ds k:  0; -3/8 log 3; -8/9 log 3 + 50/9
//   dk = sum ds q:  -3/8, 3/8, 0 (only row 1 has q != 0)
//   dv = sum p:     1 + 3/4 + 1/3 = 25/12; 1/4 + 1/3 = 7/12; 1/3
BOOST_AUTO_TEST_CASE(three_causal_tokens_match_the_table) {
    const Problem problem{.tokens = 3, .head_dim = 1, .value_dim = 1, .scale = 1};
    const double log3 = std::log(3.0);
    reference::Inputs in;
    in.q = reference::Tensor({{{{0}}, {{1}}, {{0}}}});
    in.k = reference::Tensor({{{{log3}}, {{0}}, {{5}}}});
    in.v = reference::Tensor({{{{2}}, {{4}}, {{8}}}});
    in.dout = reference::Tensor({{{{1}}, {{1}}, {{1}}}});
    const auto out = reference::dense_attention(problem, layouts::make_mask("causal", 3), in);
    const double log4 = std::log(4.0);
    const double o[] = {2, 2.5, 14.0 / 3}, lse[] = {0, log4, log3};
    const double dq[] = {0, -0.375 * log3, -8.0 / 9 * log3 + 50.0 / 9}, dk[] = {-0.375, 0.375, 0};
    const double dv[] = {25.0 / 12, 7.0 / 12, 1.0 / 3};
    for (std::size_t n = 0; n < 3; ++n) {  // a dozen operations on numbers below 8: 12 * 8 * 1.1e-16 = 1.1e-14
        BOOST_TEST(std::abs(out.o.data()[n] - o[n]) <= 1.1e-14);
        BOOST_TEST(std::abs(out.lse.data()[n] - lse[n]) <= 1.1e-14);
        BOOST_TEST(std::abs(out.dq.data()[n] - dq[n]) <= 1.1e-14);
        BOOST_TEST(std::abs(out.dk.data()[n] - dk[n]) <= 1.1e-14);
        BOOST_TEST(std::abs(out.dv.data()[n] - dv[n]) <= 1.1e-14);
    }
}

BOOST_AUTO_TEST_CASE(rows_that_see_nothing_are_exactly_empty) {
    const Problem problem{.tokens = 6, .query_heads = 2, .kv_heads = 1, .head_dim = 3, .value_dim = 2, .soft_cap = 3};
    const auto mask = layouts::make_mask("causal+valid:2-5", 6);
    const auto out = reference::dense_attention(problem, mask, tests::normal_inputs(problem));
    for (const std::size_t i : {0, 1, 5})
        for (std::size_t h = 0; h < 2; ++h) {
            BOOST_TEST(out.lse(0, i, h) == -std::numeric_limits<double>::infinity());
            for (std::size_t d = 0; d < 2; ++d) BOOST_TEST(out.o(0, i, h, d) == 0);
            for (std::size_t d = 0; d < 3; ++d) BOOST_TEST(out.dq(0, i, h, d) == 0);
        }
    for (const std::size_t j : {0, 1, 5}) {
        for (std::size_t d = 0; d < 3; ++d) BOOST_TEST(out.dk(0, j, 0, d) == 0);
        for (std::size_t d = 0; d < 2; ++d) BOOST_TEST(out.dv(0, j, 0, d) == 0);
    }
}

BOOST_AUTO_TEST_CASE(scores_beyond_the_range_of_exp_do_not_overflow) {
    Problem problem{.tokens = 4, .head_dim = 1, .value_dim = 1, .scale = 1};
    reference::Inputs in{reference::Tensor({1, 4, 1, 1}, 1000.0), reference::Tensor({1, 4, 1, 1}, 3.0),
                         reference::Tensor({1, 4, 1, 1}, 2.0), reference::Tensor({1, 4, 1, 1}, 1.0)};
    const auto out = reference::dense_attention(problem, layouts::make_mask("full", 4), in);
    for (std::size_t i = 0; i < 4; ++i) {
        BOOST_TEST(out.lse(0, i, 0) == 3000 + std::log(4.0), boost::test_tools::tolerance(1e-15));
        BOOST_TEST(out.o(0, i, 0, 0) == 2, boost::test_tools::tolerance(1e-12));  // exp of 3000's own rounding
    }
}

BOOST_AUTO_TEST_CASE(a_shape_that_is_not_the_problems_is_refused_with_both_shapes) {
    const Problem problem{.tokens = 4, .head_dim = 3, .value_dim = 3};
    auto in = tests::normal_inputs(problem);
    in.k = reference::Tensor({1, 4, 1, 2}, 0.0);
    BOOST_CHECK_EXCEPTION(
        reference::dense_attention(problem, layouts::make_mask("full", 4), in), Error, [](const Error& error) {
            const std::string text = error.what();
            return text.find("(1, 4, 1, 2)") != std::string::npos && text.find("(1, 4, 1, 3)") != std::string::npos;
        });
    in = tests::normal_inputs(problem);
    BOOST_CHECK_THROW(reference::dense_attention(problem, layouts::make_mask("full", 5), in), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
