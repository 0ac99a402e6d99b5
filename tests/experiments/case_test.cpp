#include "experiments/options/case.hpp"
#include "experiments/calibration/least_squares.hpp"
#include "experiments/console/table.hpp"
#include "experiments/inputs/inputs.hpp"
#include "experiments/options/config.hpp"
#include "experiments/study/judge.hpp"
#include "layouts/basics/require.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/features/latent.hpp"
#include "reference/features/rotary.hpp"

#include <boost/test/unit_test.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace ringlab::experiments {

using Words = std::vector<std::string>;

BOOST_AUTO_TEST_SUITE(least_squares)

BOOST_AUTO_TEST_CASE(exact_equations_give_their_solution) {
    // 2x + y = 4, x + 3y = 7, x - y = -1: x = 1, y = 2.
    const auto x = nonnegative_least_squares({2, 1, 1, 3, 1, -1}, {4, 7, -1}, 2).values;
    BOOST_TEST(std::abs(x[0] - 1) < 1e-14);
    BOOST_TEST(std::abs(x[1] - 2) < 1e-14);
}

BOOST_AUTO_TEST_CASE(an_unknown_that_would_be_negative_is_zero_and_the_others_are_solved_again) {
    // Without the bound y = -1; with y = 0 the best x for x = 1, x = 3 is their mean.
    const auto x = nonnegative_least_squares({1, 0, 1, -2}, {1, 3}, 2);
    BOOST_TEST(x.values[1] == 0);
    BOOST_TEST(x.determined[1]);
    BOOST_TEST(std::abs(x.values[0] - 2) < 1e-14);
}

BOOST_AUTO_TEST_CASE(an_unknown_that_the_equations_do_not_determine_is_zero_and_said_to_be) {
    // The third column is the sum of the first two, the fourth is empty, and so much of the fifth is its own that an
    // error of b of a thousandth moves it by more than all of b. Their lengths differ by 1e9: seconds beside counts.
    constexpr double own = timing_error / 10;
    const auto x = nonnegative_least_squares({1e9, 0,  1e9,     0, 1,     //
                                              0,   1,  1,       0, 1e-9,  //
                                              1e9, 1,  1e9 + 1, 0, 1,     //
                                              1e9, -1, 1e9 - 1, 0, 1 + own},
                                             {2, 3, 5, -1}, 5);
    BOOST_TEST((x.determined == std::vector<bool>{true, true, false, false, false}));
    for (const auto unknown : {2, 3, 4}) BOOST_TEST(x.values[static_cast<std::size_t>(unknown)] == 0);
    // x = 2e-9, y = 3 fit all exactly.
    BOOST_TEST(std::abs(x.values[0] - 2e-9) < 1e-22);
    BOOST_TEST(std::abs(x.values[1] - 3) < 1e-13);
}

BOOST_AUTO_TEST_CASE(an_unknown_counts_again_where_one_that_it_depends_on_is_zero) {
    // The third column is the first less the second, and b is the third: the second would be -1.
    const auto x = nonnegative_least_squares({1, 0, 1,   //
                                              0, 1, -1,  //
                                              1, 1, 0},
                                             {1, -1, 0}, 3);
    BOOST_TEST((x.determined == std::vector<bool>{true, true, true}));
    BOOST_TEST(std::abs(x.values[0]) < 1e-14);
    BOOST_TEST(x.values[1] == 0);
    BOOST_TEST(std::abs(x.values[2] - 1) < 1e-14);
}

BOOST_AUTO_TEST_CASE(of_more_unknowns_than_equations_the_first_are_found) {
    const auto x = nonnegative_least_squares({2, 1}, {4}, 2);
    BOOST_TEST((x.determined == std::vector<bool>{true, false}));
    BOOST_TEST(std::abs(x.values[0] - 2) < 1e-14);
    BOOST_CHECK_THROW(nonnegative_least_squares({1, 2}, {1}, 3), Error);
    BOOST_CHECK_THROW(nonnegative_least_squares({1, std::nan("")}, {1}, 2), Error);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(sweep)

Config two_by_two() {
    Config config;
    config.sweep.masks = {"causal", "full"};
    config.sweep.layouts = {"contiguous", "zigzag"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {2};
    config.sweep.tokens_per_rank = {16};
    return config;
}

BOOST_AUTO_TEST_CASE(cases_are_the_product_with_layouts_side_by_side) {
    const auto cases = all_cases(two_by_two().sweep, two_by_two().prediction.machines, 0);
    BOOST_REQUIRE(cases.size() == 4u);
    BOOST_TEST(cases[0].name() == "causal contiguous P=2 S=32 ring");
    BOOST_TEST(cases[1].name() == "causal zigzag P=2 S=32 ring");
    BOOST_TEST(cases[3].name() == "full zigzag P=2 S=32 ring");
}

BOOST_AUTO_TEST_CASE(planned_is_made_for_seen_or_for_schedules_that_move_whole_blocks) {
    const layouts::Problem problem{.tokens = 16384, .query_heads = 64, .kv_heads = 8};
    const auto mask = layouts::make_mask("causal+documents:512x16,8192", 16384);
    const auto shards_under = [&](const std::string& layout, const std::string& schedule) {
        const auto laid = laid_out(layout, schedule, mask, 4, problem, layouts::DType::fp32);
        std::vector<layouts::Run> runs;
        for (int rank = 0; rank < 4; ++rank) runs.insert(runs.end(), laid.shard(rank).begin(), laid.shard(rank).end());
        return runs;
    };
    for (const auto* planned : {"planned", "planned:h200_cluster"}) {
        BOOST_TEST((shards_under(planned, "pull:2") == shards_under("balanced", "pull")));
        BOOST_TEST((shards_under(planned, "seen:64:2") != shards_under("balanced", "seen")));
        BOOST_TEST((shards_under(planned, "expanded:seen:64:2") == shards_under(planned, "seen:64:2")));
        BOOST_TEST((shards_under(planned, "expanded:pull:2") == shards_under(planned, "pull:2")));
    }
}

BOOST_AUTO_TEST_CASE(a_case_given_twice_is_refused) {
    auto config = two_by_two();
    config.sweep.layouts = {"zigzag", "zigzag"};
    BOOST_CHECK_THROW(all_cases(config.sweep, config.prediction.machines, 0), Error);
}

BOOST_AUTO_TEST_CASE(inputs_are_called_by_their_own_names_and_told_apart) {
    auto config = two_by_two();
    config.sweep.masks = {"causal"};
    config.sweep.layouts = {"zigzag"};
    config.sweep.inputs = {"a/b.h5", "a_b.h5", "normal"};
    Words names;
    for (const auto& one : all_cases(config.sweep, config.prediction.machines, 0))
        names.push_back(one.name().substr(28));
    BOOST_TEST(names == (Words{"b.h5", "a_b.h5", "normal"}), boost::test_tools::per_element());
    config.sweep.inputs.push_back("c/b.h5");
    BOOST_CHECK_THROW(all_cases(config.sweep, config.prediction.machines, 0), Error);
}

BOOST_AUTO_TEST_CASE(lengths_from_files_are_written_out) {
    const auto path = std::filesystem::temp_directory_path() / fmt::format("ringlab-lengths-{}", getpid());
    std::ofstream(path) << "3 3 3\n5,1x2\n";
    BOOST_TEST(expand_mask("causal+documents:@" + path.string() + "+sink:2", 16, {}) ==
               "causal+documents:3x3,5,1x2+sink:2");
    BOOST_TEST(expand_mask("documents:input+causal", 7, {2, 2, 2, 2}) == "documents:2x3,1+causal");
    BOOST_TEST(expand_mask("+causal", 7, {}) == "+causal");
    std::filesystem::remove(path);
}

BOOST_AUTO_TEST_CASE(documents_of_the_input_are_cut_where_the_sequence_ends) {
    BOOST_TEST(expand_mask("causal+documents:input", 30, {20, 20, 5}) == "causal+documents:20,10");
    BOOST_TEST(expand_mask("causal", 30, {}) == "causal");
    BOOST_CHECK_THROW(expand_mask("documents:input", 30, {}), Error);
    BOOST_CHECK_THROW(expand_mask("documents:input", 30, {20}), Error);
}

BOOST_AUTO_TEST_CASE(padding_rounds_up_to_what_the_layout_divides_and_hides_what_it_adds) {
    layouts::Problem problem;
    const auto plan = make_plan(
        {.mask = "full", .layout = "zigzag", .schedule = "ring", .ranks = 2, .tokens = 30, .pad = true}, problem);
    BOOST_TEST(plan.problem.tokens == 32);
    BOOST_TEST(!plan.mask().visible(0, 30));
    BOOST_TEST(!plan.mask().visible(31, 0));
    BOOST_TEST(plan.mask().visible(29, 29));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(judging)

struct Judged {
    layouts::Problem problem;
    layouts::Mask mask;
    reference::Inputs inputs;
    reference::Outputs outputs;

    Judged()
        : problem{.tokens = 300, .query_heads = 2, .head_dim = 8, .value_dim = 8, .dtype = layouts::DType::fp64},
          mask(layouts::make_mask("causal", 300)),
          inputs(generate_inputs("normal", problem, 7).inputs),
          outputs(reference::blocked_attention(problem, mask, inputs)) {}

    Verdict by(Judge& judge) const { return judge(problem, mask, inputs, "normal", outputs, outputs.o); }
};

/// The largest of relative RMS and relative largest element over all tensors.
double worst(const Verdict& verdict) {
    double largest = 0;
    for (const auto& one : verdict) largest = worse(largest, worse(one.relative_rms, one.max_to_largest));
    return largest;
}

/// The verdict on right results but for one tensor.
Verdict verdict_on_wrong(Judge& judge, std::size_t wrong, double amount) {
    Judged one;
    auto o_unrounded = one.outputs.o;
    if (wrong == 0) one.outputs.o *= 1 + amount;
    if (wrong == 1) o_unrounded *= 1 + amount;
    if (wrong == 2) one.outputs.lse += amount;
    if (wrong == 3) one.outputs.dq *= 1 + amount;
    if (wrong == 4) one.outputs.dk *= 1 + amount;
    if (wrong == 5) one.outputs.dv *= 1 + amount;
    return judge(one.problem, one.mask, one.inputs, "normal", one.outputs, o_unrounded);
}

BOOST_AUTO_TEST_CASE(right_results_pass_whole_or_by_sample) {
    const Judged one;
    const std::pair<JudgeLimits, Extent> kinds[] = {
        {{.whole_tokens = 1000}, Extent::whole},
        {{.whole_tokens = 100}, Extent::sampled},
        {{.whole_tokens = 100, .statistics_flop = 1}, Extent::sampled_by_own_rows}};
    for (const auto& [limits, extent] : kinds) {
        Judge judge(limits);
        // Two evaluations in fp64, in other orders: rounding alone.
        BOOST_TEST(worst(one.by(judge)) < 1e-13, to_string(extent));
        BOOST_TEST((judge.extent() == extent), to_string(extent));
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_rotated_inputs_are_judged_before_the_rotation) {
    using reference::Rotation;
    Judged one;
    one.problem.rotary = {.base = 500, .scaling = layouts::parse_rotary_scaling("yarn:4,64")};
    one.outputs = blocked_attention(one.problem, one.mask, with_rotation(one.problem, one.mask, one.inputs));
    const auto turned = [&](const reference::Tensor& tensor) {
        return rotated(tensor, one.problem, one.mask, Rotation::Way::back);
    };
    for (const std::int64_t limit : {1000, 100}) {
        auto right = one;
        right.outputs.dq = turned(one.outputs.dq);
        right.outputs.dk = turned(one.outputs.dk);
        Judge judge({.whole_tokens = limit});
        BOOST_TEST(worst(right.by(judge)) < 1e-13);
        auto wrong = right;
        wrong.outputs.dk = one.outputs.dk;
        const auto verdict = wrong.by(judge);
        for (std::size_t tensor = 0; tensor < judged_tensors.size(); ++tensor)
            BOOST_TEST((verdict[tensor].relative_rms > 0.1) == (tensor == 4), judged_tensors[tensor]);
        // The same input under the same mask, but not rotated.
        auto other = one;
        other.problem.rotary = {};
        BOOST_TEST(other.by(judge)[0].relative_rms > 0.1);
    }
}

// What is judged first leaves a ring's tolerance behind; results that travel are rounded once more.
BOOST_AUTO_TEST_CASE(results_that_travel_have_a_tolerance_of_their_own) {
    Judged one;
    one.problem.query_heads = one.problem.kv_heads = 2;
    one.problem.dtype = layouts::DType::bf16;
    one.inputs = generate_inputs("normal", one.problem, 7).inputs;
    one.outputs = reference::blocked_attention(one.problem, one.mask, one.inputs);
    Judge judge({.whole_tokens = 1000});
    one.by(judge);
    const auto o_unrounded = [&](const std::string& schedule_name) {
        const auto made = [&](layouts::Pass pass) {
            return layouts::make_schedule(one.problem, one.mask, layouts::make_layout("contiguous", 300, 2),
                                          {.schedule = schedule_name, .pass = pass});
        };
        return judge
            .tolerance(*made(layouts::Pass::forward), *made(layouts::Pass::backward), one.inputs, "normal", false)
            .relative_rms[1];
    };
    const auto ring = o_unrounded("ring");
    BOOST_TEST(o_unrounded("ulysses") > 1.2 * ring);
    BOOST_TEST(o_unrounded("ring") == ring);
}

BOOST_AUTO_TEST_CASE(a_latent_is_judged_by_what_it_expands_to_and_whole) {
    Judged one;
    one.problem.kv_heads = 2;
    one.problem.latent = {.rank = 6, .shared = 3};
    one.problem.rotary = {.base = 50, .dims = 2, .first = 6};
    one.inputs = generate_inputs("normal", one.problem, 7).inputs;
    const auto heads = one.problem.expanded();
    const auto attended = with_rotation(heads, one.mask, expanded(one.problem, one.inputs));
    one.outputs = reference::blocked_attention(heads, one.mask, attended);
    const auto way = reference::Rotation::Way::back;
    one.outputs.dq = rotated(one.outputs.dq, heads, one.mask, way);
    one.outputs.dk = rotated(one.outputs.dk, heads, one.mask, way);
    compress(one.problem, one.inputs, one.outputs);
    Judge judge({.whole_tokens = 1000});
    BOOST_TEST(worst(one.by(judge)) < 1e-13);
    for (const auto wrong : {&reference::Outputs::dk, &reference::Outputs::dv}) {
        auto other = one;
        *((other.outputs.*wrong).end() - 1) += 1;
        BOOST_TEST(worst(other.by(judge)) > 1e-3);
    }
    Judge by_sample({.whole_tokens = 100});
    BOOST_CHECK_THROW(one.by(by_sample), Error);
}

BOOST_AUTO_TEST_CASE(each_tensor_is_judged_on_its_own_also_by_sample) {
    for (const std::int64_t limit : {1000, 100}) {
        for (std::size_t wrong = 0; wrong < 6; ++wrong) {
            Judge judge({.whole_tokens = limit});
            const auto verdict = verdict_on_wrong(judge, wrong, 1);
            for (std::size_t tensor = 0; tensor < judged_tensors.size(); ++tensor)
                BOOST_TEST((verdict[tensor].relative_rms > 1e-3) == (tensor == wrong), judged_tensors[tensor]);
        }
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_sinks_are_judged_whole_and_by_the_runs_own_rows) {
    Judged one;
    one.problem.sinks = {0.5, 3};
    one.outputs = reference::blocked_attention(one.problem, one.mask, one.inputs);
    auto wrong = one;
    wrong.outputs.dsinks[1] *= 1.01;
    auto none = one;
    none.problem.sinks = {-1000, -1000};
    for (const std::int64_t limit : {1000, 100}) {
        Judge judge({.whole_tokens = limit});
        BOOST_TEST(worst(one.by(judge)) < 1e-13);
        const auto verdict = wrong.by(judge);
        for (std::size_t tensor = 0; tensor < judged_tensors.size(); ++tensor)
            BOOST_TEST((verdict[tensor].relative_rms > 1e-3) == (tensor == 6), judged_tensors[tensor]);
        BOOST_TEST(none.by(judge)[0].relative_rms > 1e-3);  // another problem, and not the one before
    }
}

// The lse that columns are judged by is the run's own, so a wrong one shows in them too; nothing that is wrong passes.
BOOST_AUTO_TEST_CASE(whatever_is_wrong_shows_where_columns_are_judged_by_the_runs_own_rows) {
    Judge judge({.whole_tokens = 100, .statistics_flop = 1});
    for (std::size_t wrong = 0; wrong < 6; ++wrong) {
        const auto verdict = verdict_on_wrong(judge, wrong, 0.01);
        for (std::size_t tensor = 0; tensor < judged_tensors.size(); ++tensor) {
            if (tensor == wrong) BOOST_TEST(verdict[tensor].relative_rms > 1e-3, judged_tensors[tensor]);
            if (wrong != 1 && wrong != 2 && tensor != wrong)
                BOOST_TEST(verdict[tensor].relative_rms < 1e-13, judged_tensors[tensor]);
        }
    }
}

BOOST_AUTO_TEST_CASE(judging_a_long_sequence_costs_as_much_as_its_tokens_and_not_their_square) {
    const auto pairs = [](std::int64_t tokens, const char* mask) {
        const layouts::Problem problem{.tokens = tokens, .query_heads = 8};
        return judging_of(problem, layouts::make_mask(mask, tokens), {}).pairs;
    };
    BOOST_TEST(pairs(1 << 14, "causal") == 0.5 * (1 << 14) * ((1 << 14) + 1));
    BOOST_TEST(pairs(1 << 20, "causal") == 2 * pairs(1 << 19, "causal"));
    BOOST_TEST(pairs(1 << 15, "causal") > 4e8 / 4);  // exact statistics of nearly all rows
    BOOST_TEST(pairs(1 << 20, "window:4095,0") < 2 * 128 * 1048576.0 + 6e5 * 4096);  // 128 columns, 4096 rows each
}

BOOST_AUTO_TEST_CASE(a_judge_does_not_take_one_input_for_another) {
    Judged one;
    Judge judge({.whole_tokens = 1000});
    one.by(judge);
    one.inputs.v *= 2.0;
    BOOST_TEST(worst(judge(one.problem, one.mask, one.inputs, "other", one.outputs, one.outputs.o)) > 0.1);
}

BOOST_AUTO_TEST_CASE(not_a_number_never_passes) {
    Judged one;
    one.outputs.dk(0, 0, 0, 0) = std::numeric_limits<double>::quiet_NaN();
    Judge judge({.whole_tokens = 1000});
    BOOST_TEST(!(worst(one.by(judge)) <= 1e300));
}

BOOST_AUTO_TEST_CASE(an_error_that_is_not_a_number_is_the_worst_of_all) {
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    BOOST_TEST(worse(1, 2) == 2);
    BOOST_TEST(worse(2, 1) == 2);
    for (const auto error : {worse(nan, 1), worse(1, nan), worse(nan, nan), worse(worse(0, nan), 3)})
        BOOST_TEST(std::isnan(error));
    Verdict verdict{};
    verdict[2].relative_rms = nan;
    BOOST_TEST(std::isnan(worst(verdict)));
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_never_passes_whatever_is_allowed) {
    const auto nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    for (const auto allowed : {0.0, 1.0, nan, infinity})
        for (const auto error : {nan, infinity}) BOOST_TEST(!passes(error, allowed));
    BOOST_TEST(passes(0, 0));
    BOOST_TEST(passes(1, infinity));
    BOOST_TEST(!passes(1, nan));
    BOOST_TEST(!passes(2, 1));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(table)

BOOST_AUTO_TEST_CASE(a_quotient_by_nothing_is_a_dash) {
    BOOST_TEST(quotient(3, 2, "{:.1f} %") == "1.5 %");
    BOOST_TEST(quotient(0, 0, "{:.1f}") == "-");
    BOOST_TEST(quotient(3, 0, "{:.1f}") == "-");
}

BOOST_AUTO_TEST_CASE(columns_are_as_wide_as_their_widest_cell) {
    Table table({"a", "long"});
    table.add({"wide cell", "x"});
    BOOST_TEST(table.text() == "a          long\n---------  ----  \nwide cell  x\n");
    BOOST_CHECK_THROW(table.add({"one cell"}), Error);
}

BOOST_AUTO_TEST_CASE(files_in_cells_are_shown_without_their_folders) {
    Table table({"mask", "layout"});
    table.add({"causal+documents:@/a/b/lengths.txt", "planned:/a/machine.toml"});
    table.add({"padded-segments:256,256/0,414", "file:../my_layout.txt"});
    const auto text = table.text();
    for (const auto* cell : {"causal+documents:@lengths.txt ", " planned:machine.toml\n",
                             "\npadded-segments:256,256/0,414 ", " file:my_layout.txt\n"})
        BOOST_TEST(text.find(cell) != std::string::npos, cell << " is not in\n" << text);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
