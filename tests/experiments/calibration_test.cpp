#include "experiments/calibration/calibrate.hpp"
#include "experiments/calibration/cost_fit.hpp"
#include "experiments/options/source.hpp"
#include "experiments/validation/scores.hpp"

#include <boost/test/unit_test.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

/// A GPU whose kernels are as those for sm_90a, with times of the right order.
sim::Machine true_machine() {
    sim::Machine machine;
    machine.sms = 132;
    machine.forward.flops = 600e12;
    machine.forward.launch_seconds = 7e-6;
    machine.forward.work_tile_seconds = 2.9e-6;
    machine.forward.full_tile_seconds = 1.46e-6;
    machine.forward.partial_tile_seconds = 1.9e-6;
    machine.forward.resume_seconds = 1.5e-6;
    machine.backward = {.work_tile = sim::WorkTile::key_tile,
                        .tile_rows = 64,
                        .groups = {{2, 66}, {4, 30}, {8, 15}},
                        .launch_seconds = 4e-6,
                        .work_tile_seconds = 13e-6,
                        .full_tile_seconds = 2e-6,
                        .partial_tile_seconds = 2.7e-6,
                        .flops = 600e12};
    return machine;
}

std::shared_ptr<const Plan> plan_of(const std::string& mask, const std::string& layout, int ranks,
                                    std::int64_t tokens) {
    Config config;
    config.problem.heads = "16:4";
    config.problem.head_dim = 128;
    config.problem.arithmetic = "bf16";
    return std::make_shared<Plan>(
        make_plan({"normal", mask, layout, "ring", "carry", ranks, tokens * ranks}, problem_from(config.problem)));
}

/// What a GPU of these times would give.
std::vector<TimedAttend> timed_on(const sim::Machine& machine, Pass pass) {
    std::vector<TimedAttend> all;
    for (const std::int64_t tokens : {512, 1024, 2048, 4096})
        for (const auto& [mask, layout, ranks, rank, block] : {std::tuple{"causal", "contiguous", 1, 0, 0},
                                                               {"full", "contiguous", 1, 0, 0},
                                                               {"causal", "zigzag", 2, 0, 1},
                                                               {"causal", "zigzag", 2, 1, 0},
                                                               {"causal", "striped:64", 4, 1, 2}})
            for (const bool begins : {true, false})
                for (const bool ends : {true, false}) {
                    const auto plan = plan_of(mask, layout, ranks, tokens);
                    all.push_back({plan, rank, block, {begins, ends}, 0, ranks == 4});
                    all.back().seconds = predicted_seconds(all.back(), pass, machine);
                }
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(calibration)

BOOST_AUTO_TEST_CASE(times_that_a_machine_would_give_are_found_again) {
    const auto truth = true_machine();
    for (const auto pass : both_passes) {
        auto found = truth;
        auto& cost = cost_of(found, pass);
        cost.launch_seconds = cost.work_tile_seconds = cost.full_tile_seconds = cost.partial_tile_seconds = 1;
        cost.resume_seconds = 1;
        const auto attends = timed_on(truth, pass);
        fit_prices(cost, timings_of(attends, pass, found));
        // Times that always occur together cannot be told apart; what they add up to can.
        for (const auto& attend : attends)
            BOOST_TEST(std::abs(predicted_seconds(attend, pass, found) / attend.seconds - 1) < 0.02,
                       to_string(pass) << " " << attend.plan->mask().name() << " " << attend.plan->problem.tokens);
        const auto& right = truth.attention(pass);
        BOOST_TEST(std::abs(cost.full_tile_seconds / right.full_tile_seconds - 1) < 0.01, to_string(pass));
    }
}

BOOST_AUTO_TEST_CASE(a_time_that_always_comes_with_another_is_not_invented) {
    // Every attend here is the first of its rows: no rows go on.
    const auto truth = true_machine();
    auto attends = timed_on(truth, Pass::forward);
    std::erase_if(attends, [](const TimedAttend& attend) { return !attend.position.begins; });
    auto found = truth;
    const auto zeros = fit_prices(found.forward, timings_of(attends, Pass::forward, found));
    BOOST_TEST(zeros.at("resume_us") == "not determined by what was timed");
    BOOST_TEST(zeros.at("begin_memory_ratio") == "none: only key tiles have it");
    BOOST_TEST(!zeros.contains("work_tile_us"));
    BOOST_TEST(found.forward.resume_seconds == 0);
    BOOST_TEST(std::abs(found.forward.work_tile_seconds - truth.forward.work_tile_seconds) <
               0.1 * truth.forward.work_tile_seconds);
    for (const auto& attend : attends)
        BOOST_TEST(std::abs(predicted_seconds(attend, Pass::forward, found) / attend.seconds - 1) < 0.02);
}

BOOST_AUTO_TEST_CASE(a_line_through_points_is_found_and_rises_where_it_must) {
    const std::vector<double> x{1, 100, 10}, rises{3 + 2, 3 + 200, 3 + 20}, falls{7, 4, 6}, alike{7, 7, 7};
    const auto line = fit_line(x, rises);
    BOOST_TEST(std::abs(line.constant - 3) < 1e-12);
    BOOST_TEST(std::abs(line.slope - 2) < 1e-12);
    BOOST_TEST(std::abs(fit_rising_line(x, rises).slope - 2) < 1e-12);
    BOOST_TEST(line.has_slope);
    BOOST_TEST(fit_line(x, falls).slope == 0);
    BOOST_TEST(fit_rising_line(x, falls).slope == 4.0 / 100);  // the rate of the largest
    BOOST_TEST(fit_rising_line(x, falls).constant == 0);
    const auto above_each_other = fit_line(alike, std::vector<double>{2, 2.2, 2.1});
    BOOST_TEST(!above_each_other.has_slope);
    BOOST_TEST(above_each_other.slope == 0);
    BOOST_TEST(std::abs(above_each_other.constant - 2.1) < 0.02);
    BOOST_CHECK_THROW(fit_line({x.data(), 1}, {rises.data(), 1}), Error);
}

BOOST_AUTO_TEST_CASE(a_machine_that_predicts_nothing_is_not_written) {
    const auto file = std::filesystem::temp_directory_path() / fmt::format("ringlab-{}.toml", getpid());
    std::ifstream whole(RINGLAB_SOURCE_DIR "/experiments/machines/2cpus_calibrated.toml");
    std::string text{std::istreambuf_iterator<char>(whole), {}};
    write_machine_file({}, file, text);
    BOOST_TEST(sim::load_machine(file).memory_bytes_per_second > 0);
    std::filesystem::remove(file);
    const std::string key = "attention_memory_gigabytes_per_second = { value = ";
    const auto begin = text.find(key);
    BOOST_REQUIRE(begin != std::string::npos);
    const auto value = begin + key.size();
    text.replace(value, text.find(",", value) - value, "inf");
    BOOST_CHECK_THROW(write_machine_file({}, file, text), Error);
    BOOST_TEST(!std::filesystem::exists(file));
}

BOOST_AUTO_TEST_CASE(a_score_is_about_errors_without_sign) {
    std::vector<double> errors(100, 0.01);
    errors[3] = -0.5;
    errors[40] = 0.04;
    const auto found = score(errors);
    BOOST_TEST(std::abs(found.mean - (98 * 0.01 + 0.5 + 0.04) / 100) < 1e-15);
    BOOST_TEST(found.p95 == 0.01);
    BOOST_TEST(found.most == 0.5);
    BOOST_CHECK_THROW(score({}), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
