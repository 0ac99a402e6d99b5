#pragma once

#include "experiments/config/case.hpp"
#include "experiments/config/execution_config.hpp"
#include "experiments/config/memory_config.hpp"
#include "experiments/config/output_config.hpp"
#include "experiments/config/prediction_config.hpp"
#include "experiments/config/problem_config.hpp"
#include "experiments/config/timing_config.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// How `validate` scores rings that were measured, or published, before.
struct ScoringConfig {
    bool explain = false;                ///< which terms own the errors of predictions
    std::vector<std::string> without;    ///< terms of the cost model that rings are predicted without, in turn
    std::vector<std::string> published;  ///< tables of others' rings
};

/// What `advise` weighs.
struct AdviceConfig {
    int gpus = 0;                ///< GPUs to spread the batch over; 0: those of the machine
    double budget_seconds = 60;  ///< for simulating candidates on one core
    std::string json;            ///< file; empty: none
};

/// How sequences grow in `decode`.
struct DecodingConfig {
    std::string lengths = "falling";  ///< of the sequences: falling or equal, see lengths_of()
    int steps = 2;                    ///< each appends as many tokens to a sequence as it has query rows
};

/// Everything that a command line can ask for. Each experiment hands the parts on to what uses them.
struct Config {
    ProblemConfig problem;
    SweepConfig sweep;
    ExecutionConfig execution;
    JudgingConfig judging;
    TimingConfig timing;
    ScoringConfig scoring;
    PredictionConfig prediction;
    TraceConfig trace;
    MemoryConfig memory;
    AdviceConfig advice;
    DecodingConfig decoding;
    OutputConfig output;

    bool confirm = false;   ///< longest_context: run what fits, on GPUs
    int gpus_per_host = 0;  ///< calibrate: GPUs per host of the described machine; 0: those that it timed

    std::set<std::string> given;     ///< names of the options that the user gave, in any way
    std::vector<std::string> notes;  ///< what was chosen for the user and why, one line each; see say_notes()
};

class Options;

/// What a program is, for --help and for its record.
struct Experiment {
    std::string name;
    std::string purpose;  ///< a paragraph for --help
    std::string example;  ///< a command line for --help
    /// Adds the program's own options, with what is in the configuration as defaults. Those that all programs have
    /// (output, preset, help, ...) come after them.
    void (*add_options)(Options& options, Config& config);
    FileKind output = FileKind::record;
};

/// Tells a person on stderr what was chosen for them.
void say_notes(const std::vector<std::string>& notes);

}  // namespace ringlab::experiments
