// Is attention over P ranks the same function as attention on one device? Every layout, mask, schedule and ring size
// against the dense fp64 reference, in fp64 or in what a device computes in: o, lse, dq, dk and dv each on its own.

#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/console/table.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <cmath>

namespace ringlab::experiments {
namespace {

void add_options(Options& options, Config& config) {
    add_tokens(options, config.sweep);
    add_queries(options, config.sweep);
    add_attention(options, config.problem);
    add_inputs(options, config);
    add_sweep(options, config.sweep);
    add_padding(options, config.sweep);
    add_replicas(options, config.execution);
    options.section("How it is measured");
    add_backends(options, config.execution);
    add_arithmetic(options, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    add_processes(options, config.execution);
    add_repeats(options, config.execution, "number of times that each run is judged; the largest error counts");
    add_fault(options, config.execution);
    add_judge_limit(options, config.judging);
    add_policies(options, config.sweep);
    add_tolerance(options, config.judging);
    add_save_tensors(options, config.output);
}

const Experiment experiment{
    "gradient_equivalence",
    "Executes every layout x mask x schedule x ring size, forward and backward, and compares o, lse, dq, dk and dv, "
    "each\n"
    "on its own, with dense attention in fp64 on one device. They must agree within --tolerance, or within what the\n"
    "roundings of the arithmetic and of the accumulation policy can cause for these inputs\n"
    "(docs/explanation/error-model.md). The exit status is 2 if they do not.",
    "gradient_equivalence --ranks 2 4 8 --masks causal window:300,0 --layouts zigzag striped", add_options};

Config defaults() {
    Config config;
    config.sweep.inputs = {"real"};
    config.sweep.tokens = {512};
    config.sweep.layouts = {"contiguous", "zigzag", "striped", "striped:16"};
    config.sweep.masks = {"full",       "causal",           "window:100,0+sink:4", "causal+documents:input",
                          "prefix:100", "block-causal:64x8"};
    config.sweep.schedules = {"ring", "all-gather:2", "pull"};
    config.sweep.ranks = {1, 2, 4, 8};
    config.problem.arithmetic = "fp64";
    config.execution.repeats = 1;
    config.output.path = "gradient_equivalence.h5";
    return config;
}

int study(Config& config, int argc, char** argv) {
    // 1. Lay out every case; open the record.
    Study study(experiment, config, argc, argv);
    Judge judge(judge_limits(config));

    // 2. Execute each, judge it, keep what came of it.
    study.run([&](Trial& trial) {
        const auto verdicts = trial.judge_repeats(judge, config.execution.repeats);
        if (verdicts.empty()) return;
        describe_case(trial.run, trial.setup, trial.plan);
        describe_verdicts(trial.run, verdicts, judge.extent());
        const auto tolerances = config.judging.tolerance
                                    ? std::vector(trial.inputs.size(), uniform_tolerance(*config.judging.tolerance))
                                    : trial.tolerances(judge);
        std::vector<double> relative_rms, max_relative;
        for (const auto& one : tolerances) {
            relative_rms.insert(relative_rms.end(), one.relative_rms.begin(), one.relative_rms.end());
            max_relative.insert(max_relative.end(), one.max_relative.begin(), one.max_relative.end());
        }
        for (const auto& [name, values] : {std::pair{"relative_rms", relative_rms}, {"max_relative", max_relative}})
            trial.run.dataset(fmt::format("judged/tolerance_{}", name), values,
                              {{"replica", static_cast<std::int64_t>(tolerances.size())}, "tensor"}, "1",
                              fmt::format("largest {} that passes", name));
    });
    if (!study.record()) return 0;

    // 3. Worst case of each mask and layout, over schedules and ring sizes.
    Table table;
    bool all_pass = true;
    double widest = 0;  // of the tolerances
    for (const auto& mask : config.sweep.masks)
        for (const auto& layout : config.sweep.layouts) {
            std::array<double, judged_tensors.size()> largest{};
            double share = 0;  // of its tolerance that the worst result takes up
            int cases = 0;
            for (const auto& setup : study.cases()) {
                if (setup.mask != mask || setup.layout != layout) continue;
                ++cases;
                for (const auto* measure : {"relative_rms", "max_relative"}) {
                    const auto errors = study.record()->numbers(setup.name(), fmt::format("judged/{}", measure));
                    const auto bounds =
                        study.record()->numbers(setup.name(), fmt::format("judged/tolerance_{}", measure));
                    for (std::size_t i = 0; i < errors.size(); ++i) {
                        largest[i % largest.size()] = worse(largest[i % largest.size()], errors[i]);
                        const double bound = bounds[i % bounds.size()];
                        all_pass &= passes(errors[i], bound);
                        widest = worse(widest, bound);
                        if (errors[i] != 0)
                            share = worse(share, std::isfinite(errors[i]) ? std::abs(errors[i] / bound) : errors[i]);
                    }
                }
            }
            table.start().cell("mask", mask).cell("layout", layout).cell("cases", cases);
            for (const std::size_t i : {0, 2, 3, 4, 5}) table.cell(judged_tensors[i], format_error(largest[i]));
            table.cell("of tolerance", fmt::format("{:.0f} %", 100 * share));
        }
    const auto tolerance = config.judging.tolerance ? fmt::format("Tolerance {:.0e}", *config.judging.tolerance)
                                                    : fmt::format("Tolerance from the roundings of {} in these inputs",
                                                                  config.problem.arithmetic);
    fmt::print("{}\nLargest relative error, by norm or by largest element. {}: {}.\nRecord: {}\n", table.text(),
               tolerance,
               !all_pass        ? "EXCEEDED"
               : !(widest >= 1) ? "all pass"
                                : "all pass, but where the tolerance is above 1 no digit is left to judge",
               study.record()->name());
    return all_pass ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program_in_session(experiment, defaults(), study, argc, argv);
}
