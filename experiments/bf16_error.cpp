// What does bf16 lose, and what does the ring lose on top of it? Errors against fp64 on the same bf16 inputs, by ring
// size, layout, accumulation policy and kind of input, with one device (P = 1) beside them.

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
    add_attention(options, config.problem);
    add_inputs(options, config);
    add_sweep(options, config.sweep);
    add_padding(options, config.sweep);
    options.section("How it is measured");
    add_backends(options, config.execution);
    add_arithmetic(options, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    add_processes(options, config.execution);
    add_repeats(options, config.execution, "number of times that each run is judged; the largest error counts");
    add_judge_limit(options, config.judging);
    add_policies(options, config.sweep);
}

const Experiment experiment{"bf16_error",
                            "Error of attention in bf16 against fp64 on the same bf16 inputs: relative RMS and largest "
                            "error of o, lse, dq, dk and\n"
                            "dv, by ring size, layout, accumulation policy and kind of input. P = 1 is one device. The "
                            "carry policy keeps (o, m, l)\n"
                            "in fp32 from block to block; partials rounds each block's output to bf16 and merges; "
                            "running rounds the merged output\n"
                            "as well. partials and running also send dK and dV in bf16.",
                            "bf16_error --input normal real --ranks 1 2 4 8 --policies carry partials", add_options};

Config defaults() {
    Config config;
    config.sweep.inputs = {"normal", "outlier", "sink", "real"};
    config.sweep.tokens = {2048};
    config.problem.heads = "4:2";
    config.sweep.layouts = {"contiguous", "zigzag", "striped"};
    config.sweep.masks = {"causal"};
    config.sweep.schedules = {"ring"};
    config.sweep.ranks = {1, 2, 4, 8, 16};
    config.sweep.policies = {"carry", "partials", "running"};
    config.problem.arithmetic = "bf16";
    config.execution.repeats = 1;
    config.output.path = "bf16_error.h5";
    return config;
}

int study(Config& config, int argc, char** argv) {
    // 1. Lay out every case; open the record.
    Study study(experiment, config, argc, argv);
    Judge judge(judge_limits(config));

    // 2. Execute each in bf16 and judge it by fp64.
    study.run([&](Trial& trial) {
        const auto verdicts = trial.judge_repeats(judge, config.execution.repeats);
        if (verdicts.empty()) return;
        describe_case(trial.run, trial.setup, trial.plan);
        describe_verdicts(trial.run, verdicts, judge.extent());
    });
    if (!study.record()) return 0;

    // 3. Relative RMS, in units of 1e-3.
    Table table;
    bool finite = true;
    for (const auto& setup : study.cases()) {
        const auto errors = study.record()->numbers(setup.name(), "judged/relative_rms");
        for (const auto error : errors) finite &= std::isfinite(error);
        table.start().cell("input", setup.input).cell("mask", setup.mask).cell("layout", setup.layout);
        table.cell("policy", setup.policy).cell("P", setup.ranks);
        for (const auto& [header, tensor] : {std::pair{"o", 0u}, {"o fp32", 1u}, {"dq", 3u}, {"dk", 4u}, {"dv", 5u}})
            table.cell(header, fmt::format("{:.3f}", errors[tensor] * 1e3));
    }
    fmt::print("{}\nRelative RMS error against fp64, times 1000.{}\nRecord: {}\n", table.text(),
               finite ? "" : " NOT FINITE in some runs.", study.record()->name());
    return finite ? 0 : 2;
}

}  // namespace
}  // namespace ringlab::experiments

int main(int argc, char** argv) {
    using namespace ringlab::experiments;
    return run_program_in_session(experiment, defaults(), study, argc, argv);
}
