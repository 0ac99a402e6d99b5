#include "layouts/problem/problem.hpp"

#include "layouts/basics/checked_arithmetic.hpp"

#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <limits>
#include <ostream>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

const Problem good{.tokens = 100, .query_heads = 8, .kv_heads = 2};

struct BadProblem {
    void (*spoil)(Problem&);
    std::string error;
};
std::ostream& operator<<(std::ostream& out, const BadProblem& c) { return out << c.error; }

constexpr auto largest_number = std::numeric_limits<std::int64_t>::max();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

const std::vector<BadProblem> bad_problems{
    {[](Problem& p) { p.batch = 0; }, "batch is 0; it must be at least 1"},
    {[](Problem& p) { p.tokens = 0; }, "tokens is 0; the sequence must hold at least 1 token"},
    {[](Problem& p) { p.tokens = -3; }, "tokens is -3; the sequence must hold at least 1 token"},
    {[](Problem& p) { p.tokens = (std::int64_t{1} << 31) + 1; },
     "tokens is 2147483649; at most 2^31 are supported (pairs are counted in 64 bits)"},
    {[](Problem& p) { p.query_heads = 0; }, "heads are 0:2; both must be at least 1"},
    {[](Problem& p) { p.kv_heads = -1; }, "heads are 8:-1; both must be at least 1"},
    {[](Problem& p) { p.kv_heads = 3; },
     "8 query heads do not share 3 kv heads evenly; query heads must be a multiple of kv heads"},
    {[](Problem& p) { p.kv_heads = 16; },
     "8 query heads do not share 16 kv heads evenly; query heads must be a multiple of kv heads"},
    {[](Problem& p) { p.head_dim = 0; }, "head and value dims are 0 and 128; both must be at least 1"},
    {[](Problem& p) { p.value_dim = -1; }, "head and value dims are 128 and -1; both must be at least 1"},
    {[](Problem& p) { p.query_heads = p.kv_heads = (1 << 20) + 1; },
     "heads are 1048577:1048577; at most 1048576 are supported"},
    {[](Problem& p) { p.query_heads = std::int64_t{1'000'000'000'000'000}; },
     "heads are 1000000000000000:2; at most 1048576 are supported"},
    {[](Problem& p) { p.head_dim = largest_number; },
     "head and value dims are 9223372036854775807 and 128; at most 1048576 are supported"},
    {[](Problem& p) { p.batch = largest_number; },
     "batch 9223372036854775807 of 100 tokens with 8:2 heads of 128 and 128 makes tensors of more than 2^58 bytes; "
     "give a smaller batch, fewer tokens or heads, or smaller dims"},
    {[](Problem& p) { p.scale = nan; }, "scale is nan; it must be finite"},
    {[](Problem& p) { p.scale = infinity; }, "scale is inf; it must be finite"},
    {[](Problem& p) {
         p.sinks = {1, 2};
     },
     "there are 2 sink logits for 8 query heads; give one for each head, or none"},
    {[](Problem& p) { p.sinks.assign(8, nan); },
     "a sink logit is nan; it must be a number, or -inf for a head without a sink"},
    {[](Problem& p) { p.dropout.probability = 1; },
     "the probability of dropout is 1; it must be from 0, for none, to below 1"},
    {[](Problem& p) { p.dropout.probability = -0.5; },
     "the probability of dropout is -0.5; it must be from 0, for none, to below 1"},
    {[](Problem& p) { p.dropout.probability = nan; },
     "the probability of dropout is nan; it must be from 0, for none, to below 1"},
    {[](Problem& p) { p.soft_cap = -1; }, "soft cap is -1; it must be positive, or 0 for none"},
    {[](Problem& p) { p.soft_cap = infinity; }, "soft cap is inf; it must be positive, or 0 for none"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(problem)

BOOST_AUTO_TEST_CASE(sizes_that_fit_are_accepted) {
    BOOST_CHECK_NO_THROW(good.validate());
    auto largest = good;
    largest.tokens = std::int64_t{1} << 31;
    BOOST_CHECK_NO_THROW(largest.validate());
}

BOOST_DATA_TEST_CASE(sizes_that_do_not_fit_are_named_with_their_value, data::make(bad_problems)) {
    auto spoilt = good;
    sample.spoil(spoilt);
    BOOST_TEST(error_of([&] { spoilt.validate(); }) == sample.error);
}

BOOST_AUTO_TEST_CASE(bytes_of_the_largest_accepted_sizes_can_be_counted) {
    auto p = good;
    p.tokens = std::int64_t{1} << 31;
    p.query_heads = p.kv_heads = 1 << 10;
    p.head_dim = p.value_dim = 1 << 10;
    BOOST_CHECK_NO_THROW(p.validate());
    BOOST_TEST(tensor_bytes(p, 2).value() == std::int64_t{1} << 55);
    p.batch = 1 << 3;
    BOOST_TEST(error_of([&] { p.validate(); }).starts_with("batch 8 of 2147483648 tokens"));
    p.batch = largest_number;
    BOOST_TEST(!tensor_bytes(p, 8).has_value());
}

BOOST_AUTO_TEST_CASE(a_product_that_64_bits_cannot_hold_is_none) {
    static_assert(checked_product({3, 4, 5}) == 60);
    BOOST_TEST(checked_product({largest_number, 1}).value() == largest_number);
    BOOST_TEST(!checked_product({largest_number, 2}).has_value());
    BOOST_TEST(!checked_product({largest_number, largest_number}).has_value());
    BOOST_TEST(checked_product({largest_number, largest_number, 0}).value() == 0);
}

BOOST_AUTO_TEST_CASE(times_that_no_timeline_holds_are_refused) {
    BOOST_TEST(checked_picoseconds(9.1e6) == 9'100'000'000'000'000'000);
    for (const double seconds : {9.3e6, -9.3e6, infinity, -infinity})
        BOOST_TEST(error_of([&] { checked_picoseconds(seconds); }).starts_with("a time exceeds 106 days"));
    BOOST_TEST(checked_sum(3, 4) == 7);
    BOOST_TEST(error_of([] { checked_sum(largest_number, 1); }).starts_with("a time exceeds 106 days"));
}

BOOST_AUTO_TEST_CASE(scale_is_one_over_root_of_head_dim_unless_given) {
    auto p = good;
    p.head_dim = 64;
    BOOST_TEST(p.effective_scale() == 0.125);
    p.scale = -2.5;
    BOOST_TEST(p.effective_scale() == -2.5);
}

BOOST_AUTO_TEST_CASE(bytes_and_flop_count_both_dims_and_all_batches) {
    const Problem p{.batch = 3, .tokens = 10, .query_heads = 8, .kv_heads = 2, .head_dim = 192, .value_dim = 128};
    BOOST_TEST(p.query_heads_per_kv_head() == 4);
    BOOST_TEST(tensor_bytes(p, 4).value() == 2 * 4 * 3 * 10 * (8 + 2) * (192 + 128));
    BOOST_TEST(p.forward_flop_per_pair() == 2 * 192 + 2 * 128);
    // Again q.k (192), do.v (128), dv (128), dq (192) and dk (192).
    BOOST_TEST(p.backward_flop_per_pair() == 2 * (192 + 128 + 128 + 192 + 192));
}

BOOST_AUTO_TEST_CASE(rows_are_counted_by_position) {
    Problem problem{.tokens = 10};
    BOOST_TEST(problem.rows() == 10);
    BOOST_TEST(problem.rows_below(7) == 7);
    problem.queries = {{2, 4}, {9, 10}};
    BOOST_TEST(problem.rows() == 3);
    BOOST_TEST(problem.row_positions() == (std::vector<std::int64_t>{2, 3, 9}), boost::test_tools::per_element());
    BOOST_TEST(problem.rows_below(3) == 1);
    BOOST_TEST(problem.rows_below(9) == 2);
    problem.validate();
    for (const auto& wrong : {std::vector<Interval>{{4, 4}}, {{5, 6}, {2, 3}}, {{8, 11}}}) {
        problem.queries = wrong;
        BOOST_CHECK_THROW(problem.validate(), ringlab::Error);
    }
}

BOOST_AUTO_TEST_SUITE_END()
