// Which keys a row sees is read off the results: without scores each row's o is the mean of the values that it sees,
// and with the identity for V and dO every pair has a place of its own in o and in dV.

#include "tests/layouts/mask_oracles.hpp"
#include "tests/reference/cpu_gate.hpp"

#include "reference/attention/dense.hpp"
#include "reference/attention/samples.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::reference::tests {
namespace {

using mask_oracles::Joined;
using mask_oracles::pick;

constexpr std::int64_t kv_heads = 4, query_heads = 8;

layouts::Problem problem_without_scores(std::int64_t tokens) {
    auto problem = small_problem(tokens);
    problem.query_heads = query_heads;
    problem.kv_heads = kv_heads;
    problem.value_dim = tokens;
    return problem;
}

Inputs inputs_without_scores(const layouts::Problem& problem) {
    auto inputs = random_inputs(problem, 1);
    for (auto* tensor : {&inputs.q, &inputs.v, &inputs.dout}) std::fill(tensor->begin(), tensor->end(), 0.0);
    for (std::size_t token = 0; token < static_cast<std::size_t>(problem.tokens); ++token) {
        for (std::size_t head = 0; head < kv_heads; ++head) inputs.v(0, token, head, token) = 1;
        for (std::size_t head = 0; head < query_heads; ++head) inputs.dout(0, token, head, token) = 1;
    }
    return inputs;
}

/// Pairs that the results have and the oracle has not, or the reverse. Each visible one is 1/n of a row of n keys in o,
/// and as much for each query head of the group in dV; all others are 0.
std::int64_t pairs_told_otherwise(const Tensor& o, const Tensor& dv, const std::vector<std::int64_t>& rows,
                                  const std::vector<std::int64_t>& columns, const Joined& oracle) {
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const auto tokens = static_cast<std::int64_t>(o.shape(3));
    const auto least = 0.5 / static_cast<double>(tokens);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::int64_t key = 0; key < tokens; ++key)
            for (std::size_t head = 0; head < query_heads; ++head)
                wrong += (o(0, i, head, at(key)) > least) != oracle.sees(rows[i], key);
    for (std::size_t j = 0; j < columns.size(); ++j)
        for (std::int64_t row = 0; row < tokens; ++row)
            for (std::size_t head = 0; head < kv_heads; ++head)
                wrong += (dv(0, j, head, at(row)) > least) != oracle.sees(row, columns[j]);
    return wrong;
}

std::int64_t pairs_told_otherwise(const Outputs& out, const Joined& oracle) {
    const auto all = all_positions(static_cast<std::int64_t>(out.o.shape(1)));
    return pairs_told_otherwise(out.o, out.dv, all, all, oracle);
}

std::int64_t pairs_of(const Joined& oracle, std::int64_t tokens) {
    std::int64_t pairs = 0;
    for (std::int64_t row = 0; row < tokens; ++row)
        for (std::int64_t key = 0; key < tokens; ++key) pairs += oracle.sees(row, key);
    return pairs;
}

std::int64_t pairs_of_spans(const layouts::Timeline& timeline) {
    std::int64_t pairs = 0;
    for (const auto& span : timeline.spans) pairs += span.pair_count;
    return pairs;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(visible)

BOOST_AUTO_TEST_CASE(references_see_what_the_oracle_sees) {
    std::mt19937_64 random(1);
    const int trials = ringlab::tests::trials_in_this_build(300, 6);
    for (int trial = 0; trial < trials; ++trial) {
        const auto tokens = pick(random, 2, 30);
        const auto spec = mask_oracles::random_join(random, tokens, 4);
        const auto mask = layouts::make_mask(spec, tokens);
        const Joined oracle(spec, tokens);
        const auto problem = problem_without_scores(tokens);
        const auto inputs = inputs_without_scores(problem);
        BOOST_TEST_CONTEXT(spec << " over " << tokens << " tokens") {
            BOOST_TEST(pairs_told_otherwise(dense_attention(problem, mask, inputs), oracle) == 0);
            const BlockedOptions tiles{1, pick(random, 1, 12), pick(random, 1, 12)};
            BOOST_TEST(pairs_told_otherwise(blocked_attention(problem, mask, inputs, tiles), oracle) == 0);
            auto few = all_positions(tokens);
            std::erase_if(few, [&](std::int64_t token) { return token > 0 && pick(random, 0, 2) > 0; });
            const auto rows = sampled_rows(problem, mask, inputs, few, tiles);
            const auto columns =
                sampled_columns(problem, mask, inputs, few, row_statistics(problem, mask, inputs, few, tiles), tiles);
            BOOST_TEST(pairs_told_otherwise(rows.o, columns.dv, few, few, oracle) == 0);
        }
    }
}

BOOST_AUTO_TEST_CASE(ranks_see_what_the_oracle_sees_on_every_schedule) {
    const auto algorithms = ringlab::tests::schedules_for(problem_without_scores(8), {4});
    const auto layouts = ringlab::tests::layout_examples();
    std::mt19937_64 random(2);
    const int trials = ringlab::tests::trials_in_this_build(300, 6);
    BOOST_TEST_REQUIRE(trials > std::ssize(algorithms));  // each schedule has its turn
    for (int trial = 0; trial < trials; ++trial) {
        const auto any = [&](const auto& names) {
            return names[static_cast<std::size_t>(pick(random, 0, std::ssize(names) - 1))];
        };
        const auto layout = any(layouts);
        const auto tokens = ringlab::tests::padded_tokens(layout, pick(random, 4, 40), 4);
        GateCase one{problem_without_scores(tokens), mask_oracles::random_join(random, tokens, 4), layout};
        one.algorithm = trial < std::ssize(algorithms) ? algorithms[static_cast<std::size_t>(trial)] : any(algorithms);
        one.ranks = 4;
        BOOST_TEST_CONTEXT(one.mask << " over " << tokens << " tokens, " << one.layout << ", " << one.algorithm) {
            const auto run = run_case(one, inputs_without_scores(one.problem), small_tiles());
            const Joined oracle(one.mask, tokens);
            BOOST_TEST(pairs_told_otherwise(run.outputs, oracle) == 0);
            BOOST_TEST(pairs_of_spans(run.forward) == pairs_of(oracle, tokens));
            BOOST_TEST(pairs_of_spans(run.backward) == pairs_of(oracle, tokens));
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
