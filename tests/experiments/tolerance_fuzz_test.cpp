// Right runs of any size pass: random runs of CPU ranks, judged as gradient_equivalence judges them.
//
//   RINGLAB_FUZZ=5000 RINGLAB_FUZZ_SEED=7 test_tolerance_fuzz

#include "experiments/inputs/source.hpp"
#include "experiments/study/backend.hpp"
#include "experiments/study/judge.hpp"
#include "tests/experiments/random_run.hpp"

#include <boost/test/unit_test.hpp>
#include <fmt/ranges.h>

#include <cstdlib>
#include <iostream>
#include <map>

namespace ringlab::experiments::tests {
namespace {

std::size_t setting(const char* variable, std::size_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? static_cast<std::size_t>(std::strtoull(text, nullptr, 10)) : otherwise;
}

Config config_of(const std::vector<std::string>& words) {
    const Experiment experiment{
        "tolerance_fuzz", "", "", {.measures = true, .policies = true, .gate = true}, FileKind::record};
    Config defaults;
    defaults.output = "tolerance_fuzz.h5";
    defaults.repeats = 1;
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
    Source source(config);
    const auto which = all_cases(config, source.tokens()).front();
    const auto plan = make_plan(which, source.inspect(which.input).problem, config, {});
    const auto policy = policy_from(which.policy, plan.problem.dtype);
    const auto& inputs = source.get(which, plan.problem).front().inputs;
    const auto one =
        std::move(make_backend(config, which.ranks)->run(plan, policy, std::span(&inputs, 1), 1).front().front());
    Judge judge({.whole_tokens = config.judge_limit});
    const auto errors = judge(plan.problem, plan.mask(), inputs, which.input, one.outputs, one.o_unrounded);
    return share_of(errors, judge.tolerance(*plan.forward, *plan.backward, inputs, which.input,
                                            policy.running_output_rounded));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tolerance_fuzz)

BOOST_AUTO_TEST_CASE(random_right_runs_pass) {
    const auto count = setting("RINGLAB_FUZZ", 200), seed = setting("RINGLAB_FUZZ_SEED", 1);
    std::map<std::string, Share> largest;  // by arithmetic
    std::size_t judged = 0, refused = 0, exceeded = 0;
    for (std::size_t i = 0; judged < count; ++i) {
        std::mt19937_64 random(seed * 1'000'003 + i);  // each can be repeated by itself
        const auto words = random_run(random);
        Share share;
        std::string arithmetic;
        try {
            const auto config = config_of(words);
            arithmetic = config.arithmetic;
            share = run(config);
        } catch (const Error& error) {
            BOOST_TEST_MESSAGE("refused: " << error.what());
            ++refused;
            continue;
        }
        ++judged;
        const bool right = share.value <= 1;
        exceeded += !right;
        BOOST_TEST(right, "gradient_equivalence " << fmt::format("{}", fmt::join(words, " ")) << ": " << share.where
                                                  << ", " << 100 * share.value << " %");
        if (worse(share.value, largest[arithmetic].value) == share.value)
            largest[arithmetic] = {share.value, share.where + ", " + fmt::format("{}", fmt::join(words, " "))};
        if (judged % 500 == 0) std::cerr << "[" << judged << "/" << count << "] " << exceeded << " exceeded\n";
    }
    BOOST_TEST(refused < judged);
    for (const auto& [arithmetic, share] : largest)
        BOOST_TEST_MESSAGE(arithmetic << ": at most " << 100 * share.value << " % of the tolerance, " << share.where);
    BOOST_TEST_MESSAGE(judged << " judged, " << exceeded << " exceeded, " << refused << " refused");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::tests
