// What a model adds to attention, in the reference and on CPU ranks: rotary embedding, latents, sinks, dropout.
#include "reference/attention/blocked.hpp"
#include "reference/attention/dense.hpp"
#include "reference/error/deviations.hpp"
#include "reference/features/latent.hpp"
#include "reference/features/rotary.hpp"
#include "tests/error_of.hpp"
#include "tests/reference/cpu_gate.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>

namespace ringlab::reference::tests {
namespace {

using layouts::Rotary;

/// Small bases: with 8 dims all pairs turn visibly within 48 tokens.
Rotary half_of_the_dims() { return {.base = 20, .dims = 4, .first = 2, .pairs = Rotary::Pairs::interleaved}; }
Rotary by_document_and_yarn() {
    return {.base = 50,
            .positions = Rotary::Positions::documents,
            .scaling = layouts::parse_rotary_scaling("yarn:4,16,3,0.5")};
}

double dot(const Tensor& x, const Tensor& y) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x.data()[i] * y.data()[i];
    return sum;
}

/// 4 heads of 5 own dims and 3 shared ones, values of 5, all of 6 numbers and those 3; two of these are rotated.
layouts::Problem latent_problem(std::int64_t tokens) {
    auto problem = small_problem(tokens);
    problem.kv_heads = problem.query_heads;
    problem.latent = {.rank = 6, .shared = 3};
    problem.rotary = {.base = 20, .dims = 2, .first = 6, .pairs = layouts::Rotary::Pairs::interleaved};
    return problem;
}

std::string complaint_of_latent(const GateCase& c) {
    const auto inputs = random_inputs(c.problem, 9);
    return complaint_of_run([&] { return run_case(c, inputs, small_tiles()).outputs; }, expected_of(c, inputs));
}

/// Large and small beside the scores, of which lse is about 3.
const std::vector<double> logits{0.5, -4, 6, 2};

/// K and V with a token more at the end, whose score with every row of a head is the head's logit and whose value is 0:
/// query dim 0 is 1, the new key has the logit there, and no old key anything. With a kv head for each query head.
struct Explicit {
    layouts::Problem problem;
    Inputs inputs;
};
Explicit with_explicit_sinks(const layouts::Problem& problem, const Inputs& inputs) {
    Explicit made{problem, inputs};
    made.problem.sinks.clear();
    made.problem.tokens += 1;
    made.problem.queries = {{0, problem.tokens}};
    for (auto* tensor : {&made.inputs.k, &made.inputs.v}) {
        auto shape = tensor->shape();
        shape[1] += 1;
        Tensor longer(shape, 0.0);
        for (std::size_t t = 0; t < tensor->shape(1); ++t)
            for (std::size_t h = 0; h < shape[2]; ++h)
                for (std::size_t d = 0; d < shape[3]; ++d) longer(0, t, h, d) = (*tensor)(0, t, h, d);
        *tensor = longer;
    }
    for (std::size_t h = 0; h < problem.sinks.size(); ++h)
        made.inputs.k(0, static_cast<std::size_t>(problem.tokens), h, 0) = problem.sinks[h] / problem.effective_scale();
    return made;
}

/// The cases of a feature; `change` gives it to a case.
struct Feature {
    std::string name;
    Sweep sweep;
    std::function<void(GateCase&)> change;
    friend std::ostream& operator<<(std::ostream& out, const Feature& feature) { return out << feature.name; }
};

/// Every feature, and those that concern positions with few query rows too.
std::vector<Feature> features() {
    const std::vector<int> all{1, 2, 4, 8}, awkward{2, 3, 4};
    const std::vector<std::string> documents{"causal+documents:7,21,20"},
        packed{"causal+documents:7,21,20", "window:9,3+documents:29,19"};
    const auto few_rows = [](GateCase& c) { c.problem.queries = {{6, 7}, {25, 28}, {47, 48}}; };
    const auto latent = [](GateCase& c) {
        c.problem = latent_problem(48);
        c.problem.batch = c.ranks == 4 ? 2 : 1;
    };
    const auto scaled = [](GateCase& c) { c.problem.rotary = by_document_and_yarn(); };
    return {{"rotary of half of the dims",
             {all, packed, {layouts::Accumulation::carry}},
             [](GateCase& c) { c.problem.rotary = half_of_the_dims(); }},
            {"rotary by document", {all, packed, {layouts::Accumulation::carry}}, scaled},
            {"rotary of few rows", {awkward, documents}, [=](GateCase& c) { scaled(c), few_rows(c); }},
            {"latent", {all, {"causal", packed[0], packed[1]}}, latent},
            {"latent for few rows", {awkward, documents}, [=](GateCase& c) { latent(c), few_rows(c); }},
            {"sinks, with soft cap and dropout",
             {{2, 4}, {"causal", "window:8,0", "window:8,0+sink:3", "causal+documents:1,13,7,27", "valid:2-19,23-45"}},
             [](GateCase& c) {
                 c.problem.batch = 2;
                 c.problem.sinks = logits;
                 if (c.mask == "causal") c.problem.soft_cap = 2.5;
                 if (c.mask != "window:8,0") c.problem.dropout = {0.2, 1234567890123};
             }}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(features_on_ranks)

BOOST_DATA_TEST_CASE(every_schedule_and_layout_equals_dense_attention, boost::unit_test::data::make(features()),
                     feature) {
    GateCase c{small_problem(8), "causal", "zigzag"};
    feature.change(c);
    for (const auto& schedule_name : ringlab::tests::schedules_for(c.problem, feature.sweep.ranks))
        BOOST_TEST_CONTEXT(schedule_name) { check_every_layout(schedule_name, feature.sweep, feature.change); }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(rotary)

BOOST_AUTO_TEST_CASE(gradients_are_those_of_q_and_k_before_they_are_rotated) {
    GateCase c{small_problem(12), "causal+documents:5,7", "zigzag", "ring", 2};
    c.problem.rotary = by_document_and_yarn();
    const auto inputs = random_inputs(c.problem, 2);
    const auto found = run_case(c, inputs, small_tiles()).outputs;
    check_gradient(c, inputs, &Inputs::q, found.dq, 29);
    check_gradient(c, inputs, &Inputs::k, found.dk, 29);
}

BOOST_AUTO_TEST_CASE(scores_depend_on_how_far_apart_tokens_are) {
    auto problem = small_problem(64);
    problem.rotary.base = 10000;
    const auto mask = layouts::make_mask("full", 64);
    Tensor rows({1, 64, 1, 8});
    for (std::size_t t = 0; t < 64; ++t)
        for (std::size_t d = 0; d < 8; ++d) rows(0, t, 0, d) = std::sin(static_cast<double>(d) + 1);
    const auto all = rotated(rows, problem, mask, Rotation::Way::ahead);
    const auto product = [&](std::size_t a, std::size_t b) {
        double sum = 0;
        for (std::size_t d = 0; d < 8; ++d) sum += all(0, a, 0, d) * all(0, b, 0, d);
        return sum;
    };
    for (std::size_t shift = 1; shift < 50; ++shift) {
        BOOST_TEST(product(3, 11) == product(3 + shift, 11 + shift), boost::test_tools::tolerance(1e-12));
        BOOST_TEST(std::abs(product(3, 11) - product(3, 11 + shift)) > 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(a_turn_back_is_the_transpose_and_can_be_undone) {
    auto problem = small_problem(9);
    problem.rotary = by_document_and_yarn();
    const auto mask = layouts::make_mask("documents:4,5", 9);
    const auto a = random_inputs(problem, 6).q, b = random_inputs(problem, 7).q;
    using Way = Rotation::Way;
    const auto whole = rotated(a, problem, mask, Way::ahead);
    BOOST_TEST(dot(whole, b) == dot(a, rotated(b, problem, mask, Way::back)), boost::test_tools::tolerance(1e-12));
    const auto again = rotated(rotated(b, problem, mask, Way::back), problem, mask, Way::inverse_of_back);
    BOOST_TEST(deviation("b", again, b).max_to_largest < 1e-14);

    // Some tokens as all of them.
    const std::vector<std::int64_t> tokens{2, 8};
    const auto part = rotated(take_tokens(a, tokens), problem, mask, Way::ahead, tokens);
    BOOST_TEST((part == take_tokens(whole, tokens)));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(latent)

BOOST_AUTO_TEST_CASE(keys_and_values_are_what_the_definition_says) {
    auto problem = latent_problem(7);
    problem.batch = 2;
    const auto inputs = random_inputs(problem, 1);
    const auto heads = expanded(problem, inputs);
    require_inputs(problem.expanded(), layouts::make_mask("full", 7), heads);
    for (std::size_t b = 0; b < 2; ++b)
        for (std::size_t t = 0; t < 7; ++t)
            for (std::size_t h = 0; h < 4; ++h)
                for (std::size_t row = 0; row < 10; ++row) {
                    double sum = 0;
                    for (std::size_t r = 0; r < 6; ++r) sum += inputs.v(0, h, row, r) * inputs.k(b, t, 0, r);
                    const double made = row < 5 ? heads.k(b, t, h, row) : heads.v(b, t, h, row - 5);
                    BOOST_TEST(std::abs(made - sum) < 1e-14);
                    if (row < 3) BOOST_TEST(heads.k(b, t, h, 5 + row) == inputs.k(b, t, 0, 6 + row));
                }
}

BOOST_AUTO_TEST_CASE(gradients_are_those_of_the_latent_and_its_matrices) {
    const GateCase c{latent_problem(12), "causal+documents:5,7", "zigzag", "ring", 2};
    const auto inputs = random_inputs(c.problem, 2);
    const auto found = run_case(c, inputs, small_tiles()).outputs;
    BOOST_TEST((found.dk.shape() == inputs.k.shape()));
    BOOST_TEST((found.dv.shape() == inputs.v.shape()));
    check_gradient(c, inputs, &Inputs::q, found.dq, 7);
    check_gradient(c, inputs, &Inputs::k, found.dk, 7);
    check_gradient(c, inputs, &Inputs::v, found.dv, 7);
}

BOOST_AUTO_TEST_CASE(it_need_not_share_anything_nor_be_rotated) {
    GateCase c{latent_problem(48), "causal", "zigzag", "ring", 4};
    c.problem.rotary = {};
    BOOST_TEST(complaint_of_latent(c) == "");
    c.problem.latent.shared = 0;
    BOOST_TEST(complaint_of_latent(c) == "");
}

BOOST_AUTO_TEST_CASE(what_makes_no_sense_is_refused_in_one_line) {
    using Change = void (*)(GateCase&);
    for (const auto& [change, said] : std::initializer_list<std::pair<Change, const char*>>{
             {[](GateCase& c) { c.schedule_name = "pass-q"; }, "give expanded:pass-q"},
             {[](GateCase& c) { c.schedule_name = "merge"; }, "give expanded:merge"},
             {[](GateCase& c) { c.schedule_name = "merge:tree"; }, "give expanded:merge:tree"},
             {[](GateCase& c) { c.schedule_name = "all-gather:2"; }, "2 head groups of 1 kv heads"},
             {[](GateCase& c) { c.schedule_name = "expanded"; }, "expanded:ring"},
             {[](GateCase& c) { c.schedule_name = "expanded:pull"; }, "give pull"},
             {[](GateCase& c) { c.schedule_name = "expanded:ring", c.problem.latent = {}, c.problem.rotary = {}; },
              "is for problems with a latent"},
             {[](GateCase& c) { c.problem.latent.shared = 8; }, "must be fewer"},
             {[](GateCase& c) { c.problem.kv_heads = 2; }, "say 4:4"},
             {[](GateCase& c) { c.problem.rotary.first = 4; }, "first:5"}}) {
        GateCase c{latent_problem(48), "causal", "contiguous", "ring", 4};
        change(c);
        const auto refusal = ringlab::tests::error_of([&] { schedule_of(c, layouts::Pass::forward)->ops(0).next(); });
        BOOST_TEST(refusal.find(said) != std::string::npos, refusal);
    }
    for (const auto* spec : {"", "0+64", "512+", "+64", "512-64", "x"})
        BOOST_CHECK_THROW(layouts::parse_latent(spec), Error);
    BOOST_TEST((layouts::parse_latent("512+64") == layouts::Latent{512, 64}));
    BOOST_TEST((layouts::parse_latent("512") == layouts::Latent{512, 0}));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(sinks)

// The same function twice: a logit in the sum, and a key that all rows see with that score and the value 0. The
// gradient by the logit is then that of the key's score: dk in dim 0, over the scale.
BOOST_AUTO_TEST_CASE(a_sink_is_a_key_of_that_score_without_a_value) {
    auto problem = small_problem(24);
    problem.kv_heads = problem.query_heads;
    problem.sinks = logits;
    auto inputs = random_inputs(problem, 4);
    for (std::size_t t = 0; t < 24; ++t)
        for (std::size_t h = 0; h < 4; ++h) {
            inputs.q(0, t, h, 0) = 1;
            inputs.k(0, t, h, 0) = 0;
        }
    const auto found = dense_attention<double>(problem, layouts::make_mask("full", 24), inputs);
    const auto other = with_explicit_sinks(problem, inputs);
    const auto expected = dense_attention<double>(other.problem, layouts::make_mask("full", 25), other.inputs);
    BOOST_TEST(deviation("o", found.o, expected.o).max_to_largest < 1e-13);
    BOOST_TEST(deviation("lse", found.lse, expected.lse).max_to_largest < 1e-13);
    for (std::size_t t = 0; t < 24; ++t)
        for (std::size_t h = 0; h < 4; ++h) {
            for (std::size_t d = 0; d < 8; ++d)
                BOOST_TEST(std::abs(found.dk(0, t, h, d) - expected.dk(0, t, h, d)) < 1e-13);
            for (std::size_t d = 1; d < 8; ++d)  // dim 0 meets the new key's logit, which moves q as well
                BOOST_TEST(std::abs(found.dq(0, t, h, d) - expected.dq(0, t, h, d)) < 1e-13);
        }
    for (std::size_t h = 0; h < 4; ++h)
        BOOST_TEST(std::abs(found.dsinks[h] - expected.dk(0, 24, h, 0) / problem.effective_scale()) < 1e-12);
}

BOOST_AUTO_TEST_CASE(a_row_that_sees_nothing_has_its_sink_for_lse) {
    auto problem = small_problem(12);
    problem.sinks = logits;
    const auto inputs = random_inputs(problem, 4);
    const auto mask = layouts::make_mask("causal+valid:4-8", 12);
    for (const auto& found : {dense_attention<double>(problem, mask, inputs), blocked_attention(problem, mask, inputs)})
        for (const std::size_t row : {0, 3, 8, 11})
            for (std::size_t h = 0; h < 4; ++h) {
                BOOST_TEST(found.lse(0, row, h) == logits[h]);
                for (std::size_t d = 0; d < 5; ++d) BOOST_TEST(found.o(0, row, h, d) == 0);
                for (std::size_t d = 0; d < 8; ++d) BOOST_TEST(found.dq(0, row, h, d) == 0);
            }
    // And adds nothing to the gradient: the sum over the four rows that see something is all.
    auto few = problem;
    few.queries = {{4, 8}};
    auto of_few = inputs;
    for (auto* tensor : {&of_few.q, &of_few.dout}) *tensor = take_tokens(*tensor, {4, 5, 6, 7});
    BOOST_TEST(deviation("dsinks", dense_attention<double>(few, mask, of_few).dsinks,
                         dense_attention<double>(problem, mask, inputs).dsinks)
                   .max_to_largest < 1e-13);
}

BOOST_AUTO_TEST_CASE(logits_far_above_and_below_all_scores_neither_overflow_nor_count) {
    GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    const auto inputs = random_inputs(c.problem, 2);
    const auto without = run_case(c, inputs, small_tiles()).outputs;
    c.problem.sinks = {-1e4, -1e4, 1e4, 1e4};
    const auto found = run_case(c, inputs, small_tiles()).outputs;
    for (std::size_t row = 0; row < 48; ++row)
        for (std::size_t h = 0; h < 4; ++h) {
            BOOST_TEST(found.lse(0, row, h) == (h < 2 ? without.lse(0, row, h) : 1e4));
            for (std::size_t d = 0; d < 5; ++d)
                BOOST_TEST(found.o(0, row, h, d) == (h < 2 ? without.o(0, row, h, d) : 0.0));
        }
    for (const double gradient : found.dsinks) BOOST_TEST(gradient == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(dropout)

BOOST_AUTO_TEST_CASE(rows_fewer_than_keys_drop_by_their_position) {
    GateCase c{small_problem(48), "causal", "zigzag", "ring", 4};
    c.problem.queries = {{12, 13}, {37, 45}};
    c.problem.dropout = {0.3, 5};
    const auto inputs = random_inputs(c.problem, 2);
    BOOST_TEST(complaint(run_case(c, inputs, small_tiles()).outputs, expected_of(c, inputs)) == "");
    BOOST_TEST(
        complaint(blocked_attention(c.problem, layouts::make_mask(c.mask, 48), inputs), expected_of(c, inputs)) == "");
}

BOOST_AUTO_TEST_CASE(lse_is_that_of_all_keys_and_o_the_same_on_average) {
    GateCase c{small_problem(48), "full", "contiguous", "ring", 2};
    const auto inputs = random_inputs(c.problem, 2);
    const auto whole = run_case(c, inputs, small_tiles()).outputs;
    Tensor mean(whole.o.shape(), 0.0);
    const int seeds = ringlab::tests::trials_in_this_build(400, 8);
    for (int seed = 0; seed < seeds; ++seed) {
        c.problem.dropout = {0.2, static_cast<std::uint64_t>(seed)};
        const auto out = run_case(c, inputs, {}).outputs;
        BOOST_TEST(deviation("lse", out.lse, whole.lse).max_to_largest < 1e-13);
        mean += out.o / seeds;
    }
    // var(o_d) = p/(1-p) sum_j p_j^2 v_jd^2 of one seed; all rows and dims together 5.5 standard deviations, and no
    // sum_j p_j^2 v^2 is above the largest |v|^2.
    double largest = 0;
    for (const double x : inputs.v) largest = std::max(largest, std::abs(x));
    BOOST_TEST(deviation("o", mean, whole.o).max_abs < 5.5 * std::sqrt(0.25 / seeds) * largest);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::reference::tests
