// Who sees whom under random joins of masks: references and ranks against attention by its definition, which asks the
// mask pair by pair. Masks are compared with oracles in tests/layouts/.

#include "tests/layouts/mask_oracles.hpp"
#include "tests/reference/cpu_gate.hpp"

#include "reference/attention/dense.hpp"
#include "reference/attention/samples.hpp"
#include "reference/error/deviations.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::reference::tests {
namespace {

using mask_oracles::pick;

std::int64_t pairs_of(const layouts::Mask& mask) {
    std::int64_t pairs = 0;
    for (std::int64_t row = 0; row < mask.tokens(); ++row)
        for (std::int64_t key = 0; key < mask.tokens(); ++key) pairs += mask.visible(row, key);
    return pairs;
}

std::int64_t pairs_of_spans(const layouts::Timeline& timeline) {
    std::int64_t pairs = 0;
    for (const auto& span : timeline.spans) pairs += span.pair_count;
    return pairs;
}

/// The largest difference of any number: roundings, as in cpu_gate.hpp, and not in proportion to results, which are
/// nothing but roundings where rows see one key. A pair too many or too few changes o by its p, and more.
double largest_difference(const Outputs& measured, const Outputs& expected) {
    const auto d = deviations(measured, expected);
    return std::max({d.o.max_abs, d.lse.max_abs, d.dq.max_abs, d.dk.max_abs, d.dv.max_abs});
}
constexpr double roundings = 1e-12;

}  // namespace

BOOST_AUTO_TEST_SUITE(visible)

BOOST_AUTO_TEST_CASE(references_see_what_the_mask_shows) {
    std::mt19937_64 random(1);
    const int trials = ringlab::tests::trials_in_this_build(300, 6);
    for (int trial = 0; trial < trials; ++trial) {
        const auto problem = small_problem(pick(random, 2, 30));
        const auto spec = mask_oracles::random_join(random, problem.tokens, 4);
        const auto mask = layouts::make_mask(spec, problem.tokens);
        const auto inputs = random_inputs(problem, 1);
        const auto expected = dense_attention(problem, mask, inputs);
        BOOST_TEST_CONTEXT(spec << " over " << problem.tokens << " tokens") {
            const BlockedOptions tiles{1, pick(random, 1, 12), pick(random, 1, 12)};
            BOOST_TEST(largest_difference(blocked_attention(problem, mask, inputs, tiles), expected) < roundings);
            auto few = all_positions(problem.tokens);
            std::erase_if(few, [&](std::int64_t token) { return token > 0 && pick(random, 0, 2) > 0; });
            const auto rows = sampled_rows(problem, mask, inputs, few, tiles);
            const auto columns =
                sampled_columns(problem, mask, inputs, few, row_statistics(problem, mask, inputs, few, tiles), tiles);
            BOOST_TEST(deviation("o", rows.o, take_tokens(expected.o, few)).max_abs < roundings);
            BOOST_TEST(deviation("dv", columns.dv, take_tokens(expected.dv, few)).max_abs < roundings);
        }
    }
}

BOOST_AUTO_TEST_CASE(ranks_see_what_the_mask_shows_on_every_schedule) {
    const auto schedule_names = ringlab::tests::schedules_for(small_problem(8), {4});
    const auto layouts = ringlab::tests::layout_examples();
    std::mt19937_64 random(2);
    const int trials = ringlab::tests::trials_in_this_build(300, 6);
    BOOST_TEST_REQUIRE(trials > std::ssize(schedule_names));  // each schedule has its turn
    for (int trial = 0; trial < trials; ++trial) {
        const auto any = [&](const auto& names) {
            return names[static_cast<std::size_t>(pick(random, 0, std::ssize(names) - 1))];
        };
        const auto layout = any(layouts);
        const auto tokens = ringlab::tests::padded_tokens(layout, pick(random, 4, 40), 4);
        GateCase one{small_problem(tokens), mask_oracles::random_join(random, tokens, 4), layout};
        one.schedule_name =
            trial < std::ssize(schedule_names) ? schedule_names[static_cast<std::size_t>(trial)] : any(schedule_names);
        one.ranks = 4;
        BOOST_TEST_CONTEXT(one.mask << " over " << tokens << " tokens, " << one.layout << ", " << one.schedule_name) {
            const auto inputs = random_inputs(one.problem, 2);
            const auto run = run_case(one, inputs, small_tiles());
            BOOST_TEST(largest_difference(run.outputs, expected_of(one, inputs)) < roundings);
            const auto pairs = pairs_of(ringlab::layouts::make_mask(one.mask, tokens));
            BOOST_TEST(pairs_of_spans(run.forward) == pairs);
            BOOST_TEST(pairs_of_spans(run.backward) == pairs);
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
