// Right runs of any size pass: random runs of CPU ranks, judged as gradient_equivalence judges them.
//
//   RINGLAB_FUZZ=5000 RINGLAB_FUZZ_SEED=7 test_tolerance_fuzz
//
// RINGLAB_FUZZ_FIRST=4711 begins with that run of the seed: to go on in parts, or with RINGLAB_FUZZ=1 to repeat one.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/options/source.hpp"
#include "experiments/study/judge.hpp"
#include "tests/experiments/random_run.hpp"

#include <fmt/ranges.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>

namespace ringlab::experiments::tests {
namespace {

std::size_t setting(const char* variable, std::size_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? static_cast<std::size_t>(std::strtoull(text, nullptr, 10)) : otherwise;
}

/// Options of gradient_equivalence.
void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_queries(options, config.sweep);
    add_attention(options, config.problem);
    add_inputs(options, config);
    add_sweep(options, config.sweep);
    add_padding(options, config.sweep);
    add_arithmetic(options, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    add_policies(options, config.sweep);
}

Config config_of(const std::vector<std::string>& words) {
    const Experiment experiment{"tolerance_fuzz", "", "", add_options};
    Config defaults;
    defaults.output.path = "tolerance_fuzz.h5";
    defaults.execution.repeats = 1;
    std::vector<const char*> line{"tolerance_fuzz"};
    for (const auto& word : words) line.push_back(word.c_str());
    return parse(experiment, defaults, static_cast<int>(line.size()), line.data()).value();
}

/// The largest error over its tolerance, of all judged tensors and both measures; and where it is.
struct Share {
    double value = 0;
    std::string where;
};

Share share_of(const Verdict& errors, const Tolerance& allowed) {
    Share largest;
    const auto take = [&](double error, double bound, const std::string& where) {
        const double share = error == 0 ? 0 : std::isfinite(error) ? error / bound : error;
        if (worse(share, largest.value) == share || std::isnan(share))
            largest = {share, fmt::format("{} {:.3g} of {:.3g}", where, error, bound)};
    };
    for (std::size_t i = 0; i < errors.size(); ++i) {
        take(errors[i].relative_rms, allowed.relative_rms[i], fmt::format("{} in norm", judged_tensors[i]));
        take(errors[i].max_to_largest, allowed.max_relative[i], fmt::format("{} in the largest", judged_tensors[i]));
    }
    return largest;
}

/// Executes and judges the one case of `config`.
Share run(const Config& config) {
    Source source(config.problem, config.sweep.inputs, config.execution.replicas);
    const auto setup = all_cases(config.sweep, config.prediction.machines, source.tokens()).front();
    const auto plan = make_plan(setup, source.inspect(setup.input).problem);
    const auto policy = policy_from(setup.policy, plan.problem.dtype);
    const auto& inputs = source.get(setup, plan.problem).front().inputs;
    const auto backend = make_backend(config.execution, {{setup.ranks}, config.problem.arithmetic});
    const auto one = std::move(
        backend->run(plan, {.ring = setup.ranks}, judged_options(config.execution, policy, std::span(&inputs, 1), 1))
            .front());
    Judge judge({.whole_tokens = config.judging.limit});
    const auto errors = judge(plan.problem, plan.mask(), inputs, setup.input, one.outputs, one.o_unrounded);
    return share_of(errors,
                    judge.tolerance(*plan.forward, *plan.backward, inputs, setup.input, policy.running_output_rounded));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tolerance_fuzz)

// What was once called wrong, or not a number, though the run was right.
const std::vector<std::string> right_runs{
    // Merges, and sums that cancel.
    "--masks causal --layouts zigzag --ranks 4 --input sink --heads 4:2 --head-dim 64 --seed 26 --tokens 64 "
    "--schedules merge:tree --arithmetic fp64",
    "--masks causal --layouts contiguous --ranks 2 --input sink --heads 4:2 --head-dim 16 --tokens 2 --soft-cap 50 "
    "--schedules ring --arithmetic fp32",
    // p that are all equal: 1/253 is off by nearly half a step of bf16, everywhere alike.
    "--masks full --layouts contiguous --ranks 1 --input normal --heads 4:2 --head-dim 64 --tokens 253 --scale 1e-7 "
    "--schedules ring --arithmetic bf16 --policies carry",
    // 1 / (1 - 0.01158) lies next to the middle between two numbers of bf16, and every row's largest p is that.
    "--tokens 150 --masks causal+documents:36,35,2,11,7,5,1,2,8,11,2,2,2,6,20 --layouts contiguous --ranks 2 "
    "--schedules seen:1 --arithmetic bf16 --policies carry --heads 4:2 --head-dim 1 --input outlier --seed 427 --pad "
    "--batch 2 --dropout 0.01158",
    // A latent of one number: dW is one sum over all tokens, whose terms hardly differ.
    "--tokens 159 --masks block-causal:145,10,2,2 --layouts striped:3 --ranks 4 --schedules joined-ring:1 "
    "--arithmetic bf16 --policies gradients --heads 2:2 --head-dim 1 --value-dim 8 --input normal --latent 1+0 "
    "--seed 615 --pad --soft-cap 0.1"};

Share share_of_line(const std::string& line) {
    std::istringstream stream(line);
    return run(config_of({std::istream_iterator<std::string>(stream), {}}));
}

BOOST_DATA_TEST_CASE(right_runs_that_were_called_wrong_pass, boost::unit_test::data::make(right_runs), line) {
    const auto share = share_of_line(line);
    BOOST_TEST(share.value <= 1, share.where);
}

BOOST_DATA_TEST_CASE(heads_of_two_dims_with_a_dozen_tokens_pass, boost::unit_test::data::xrange(25), seed) {
    const auto share = share_of_line(fmt::format(
        "--masks causal --layouts zigzag --ranks 2 --input normal --heads 4:2 --head-dim 2 --tokens 12 --seed {} "
        "--schedules ring --arithmetic fp64",
        seed));
    BOOST_TEST(share.value <= 1, share.where);
}

// Next to a sink of 100 all p are e-44, which fp32 keeps as subnormal numbers and 16 bits as 0; with 200 the square of
// the sum of their squares is no double.
BOOST_DATA_TEST_CASE(sinks_that_leave_nothing_to_the_keys_pass,
                     boost::unit_test::data::make({"fp64", "fp32", "bf16", "fp16"}) *
                         boost::unit_test::data::make({"carry", "partials"}) *
                         boost::unit_test::data::make({100, 200, 1000}),
                     arithmetic, policy, sink) {
    const auto share = share_of_line(fmt::format(
        "--masks causal --layouts zigzag --ranks 3 --input normal --heads 4:2 --head-dim 16 --tokens 60 --sinks {} "
        "--schedules ring --arithmetic {} --policies {}",
        sink, arithmetic, policy));
    BOOST_TEST(share.value <= 1, share.where);
}

BOOST_AUTO_TEST_CASE(random_right_runs_pass) {
    const auto count = setting("RINGLAB_FUZZ", 200), seed = setting("RINGLAB_FUZZ_SEED", 1),
               first = setting("RINGLAB_FUZZ_FIRST", 0);
    std::map<std::string, Share> largest;  // by arithmetic
    std::size_t judged = 0, refused = 0, exceeded = 0;
    std::size_t i = first;
    for (; judged < count; ++i) {
        std::mt19937_64 random(seed * 1'000'003 + i);  // each can be repeated by itself
        const auto words = random_run(random);
        Share share;
        std::string arithmetic;
        try {
            const auto config = config_of(words);
            arithmetic = config.problem.arithmetic;
            share = run(config);
        } catch (const Error& error) {
            BOOST_TEST_MESSAGE("refused: " << error.what());
            ++refused;
            continue;
        }
        ++judged;
        const bool right = share.value <= 1;
        exceeded += !right;
        BOOST_TEST(right, "run " << i << ": gradient_equivalence " << fmt::format("{}", fmt::join(words, " ")) << ": "
                                 << share.where << ", " << 100 * share.value << " %");
        if (worse(share.value, largest[arithmetic].value) == share.value)
            largest[arithmetic] = {share.value, share.where + ", " + fmt::format("{}", fmt::join(words, " "))};
        if (judged % 500 == 0) std::cerr << "[" << judged << "/" << count << "] " << exceeded << " exceeded\n";
    }
    BOOST_TEST(refused < judged);
    for (const auto& [arithmetic, share] : largest)
        BOOST_TEST_MESSAGE(arithmetic << ": at most " << 100 * share.value << " % of the tolerance, " << share.where);
    BOOST_TEST_MESSAGE(judged << " judged, " << exceeded << " exceeded, " << refused << " refused; go on with " << i);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::tests
