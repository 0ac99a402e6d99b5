#pragma once

#include "experiments/options/config.hpp"
#include "experiments/options/options.hpp"

namespace ringlab::experiments {

// Options that several programs have. A program's add_options() calls those that it has, in the order of its --help,
// and adds what it alone has. Defaults are what the configuration holds.

// Which attention, under the heading "What is computed".
void add_tokens(Options& options, SweepConfig& sweep);
void add_queries(Options& options, SweepConfig& sweep);
void add_heads(Options& options, ProblemConfig& problem);   ///< batch, heads, dims
void add_scores(Options& options, ProblemConfig& problem);  ///< factor, soft cap
void add_sinks(Options& options, ProblemConfig& problem);
void add_latent(Options& options, ProblemConfig& problem);
void add_rotary(Options& options, ProblemConfig& problem);
void add_dropout(Options& options, ProblemConfig& problem);
void add_attention(Options& options, ProblemConfig& problem);  ///< all of these
void add_inputs(Options& options, Config& config);
void add_seed(Options& options, ProblemConfig& problem);

// How it is laid out. Layouts and schedules that nobody gives may be chosen by the program.
void add_layouts(Options& options, SweepConfig& sweep);
void add_masks(Options& options, SweepConfig& sweep);
void add_schedules(Options& options, SweepConfig& sweep);
void add_ranks(Options& options, SweepConfig& sweep);
void add_sweep(Options& options, SweepConfig& sweep);  ///< the four above, under "How it is laid out"
void add_padding(Options& options, SweepConfig& sweep);

// How it is executed, judged and timed.
void add_backends(Options& options, ExecutionConfig& execution);  ///< with the options of each
void add_arithmetic(Options& options, ProblemConfig& problem, std::vector<std::string> choices);
void add_processes(Options& options, ExecutionConfig& execution);  ///< MPI, and how long ranks wait
void add_replicas(Options& options, ExecutionConfig& execution);
void add_repeats(Options& options, ExecutionConfig& execution, std::string help);
void add_policies(Options& options, SweepConfig& sweep);
void add_judge_limit(Options& options, JudgingConfig& judging);
void add_tolerance(Options& options, JudgingConfig& judging);
void add_fault(Options& options, ExecutionConfig& execution);
void add_save_tensors(Options& options, OutputConfig& output);
void add_timed_rings(Options& options, Config& config);

// What it is predicted on, and what must fit.
void add_machines(Options& options, PredictionConfig& prediction);
void add_clock(Options& options, PredictionConfig& prediction);
void add_span_ranks(Options& options, PredictionConfig& prediction);
void add_trace(Options& options, TraceConfig& trace);
void add_memory(Options& options, MemoryConfig& memory);

}  // namespace ringlab::experiments
