#pragma once

#include "experiments/options/case.hpp"
#include "experiments/options/file_guard.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/problem/problem.hpp"
#include "sim/machine/options.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

// What a command line can ask for: a struct for each group of options (see option_groups.hpp), and all of them.

namespace ringlab::experiments {

class BackendKind;
class Options;

/// The attention that is computed, without its number of tokens.
struct ProblemConfig {
    std::int64_t batch = 1;
    std::string heads;                     ///< "QUERY:KV"; empty: those of the input
    std::int64_t head_dim = 0;             ///< 0: that of the input
    std::int64_t value_dim = 0;            ///< 0: head_dim
    double scale = 0;                      ///< factor of q.k; 0: that of the input, or 1/sqrt(head_dim)
    std::optional<double> soft_cap;        ///< 0: none; not given: that of the input
    std::string arithmetic;                ///< "fp64", "fp32", "bf16" or "fp16"
    std::string latent_spec, rotary_spec;  ///< as they were typed
    layouts::Latent latent;
    layouts::Rotary rotary;
    layouts::Dropout dropout;
    std::vector<std::string> sinks;  ///< logits: one for all query heads, one for each, or "normal"
    std::uint64_t seed = 1;          ///< seed of everything random
};

/// The type of a word of --arithmetic: "fp64", "fp32", "bf16" or "fp16". Throws Error for any other.
layouts::DType dtype_from(const std::string& arithmetic);

/// The problem that the configuration describes by itself, with no tokens; 4:2 heads of 128 where it is silent.
layouts::Problem problem_from(const ProblemConfig& config);

/// What executes schedules, and how.
struct ExecutionConfig {
    std::string backend = "cpu";
    std::map<std::string, std::shared_ptr<BackendKind>> backends;  ///< by name, with their own options
    bool mpi = false;                                              ///< a process per rank, under mpirun
    int replicas = 1;                                              ///< data-parallel copies of the ring
    std::string placement = "consecutive";  ///< of rings: or "strided", "file:PATH" with the GPU of each rank
    int repeats = 5;                        ///< executions of both passes of a case
    double timeout_seconds = 300;           ///< longest wait for other ranks without progress
    bool keeps_results = true;              ///< on the root process, where they are judged or saved
    std::string fault;                      ///< fault of the machine to make on purpose, as "stop:1"; empty: none
};

/// How results are compared with fp64.
struct JudgingConfig {
    bool judge = true;
    std::int64_t limit = 16384;       ///< tokens up to which every element is judged; above, a sample
    std::optional<double> tolerance;  ///< without it, derived from the arithmetic
};

/// The rings of `ranks` ranks that run at the same time, one for each replica. Reads `placement` only as far as it says
/// "consecutive"; everything else counts as strided, see gpu_placement().
layouts::RingGroup ring_group(const ExecutionConfig& config, int ranks);

/// GPU of each rank of all replicas, ring by ring, as --placement says; empty: in order. Throws Error if it says
/// nothing known, or a file that it names does not hold that many numbers.
std::vector<int> gpu_placement(const ExecutionConfig& config, int ranks);

/// A value of TimingConfig::measured: all records that come with Ringlab.
inline constexpr const char* all_records = "all";

/// What is timed, and for how long.
struct TimingConfig {
    std::vector<std::string> shapes;                     ///< "HEADS/DIMS[/ARITHMETIC]"; empty: the one of the problem
    std::vector<std::string> transports;                 ///< of rings: "copy", "nccl", "mixed"; on CPUs "threads"
    std::vector<std::string> kernels;                    ///< kernel families, or "auto"
    std::vector<std::string> protocols = {"sustained"};  ///< how kernels alone are timed: also "burst"
    std::vector<std::string> beside;                     ///< what is timed for comparison: work, ceilings
    std::string measured;                                ///< record of an earlier run, or all_records: nothing is timed
    bool deterministic = false;
    double warm_up_seconds = 0.5;
    double repeat_seconds = 0.75;
};

/// What is predicted, and on what.
struct PredictionConfig {
    std::vector<std::string> machines;    ///< machine files, by name or path
    std::string compute_model = "tiles";  ///< or "rate", see sim::ComputeModel
    std::string engine = "events";        ///< or "unshared": without sim::SimOptions::sharing
    std::string clock = "sustained";      ///< or "calibrated", see sim::Clock
    int threads = 0;                      ///< 0: one for each processor
    std::string slow_gpus, slow_links;    ///< "N" or "N:FACTOR", as they were typed; empty: none
    sim::Jitter jitter;                   ///< without its seed and start skew
    double start_skew_us = 0;
    int cause_ranks = 0;  ///< most ranks for which the causes of the time are predicted
    int span_ranks = 64;  ///< most ranks for which the record keeps when every operation ran

    sim::Clock attend_clock() const { return clock == "sustained" ? sim::Clock::sustained : sim::Clock::calibrated; }

    /// Whether what is predicted is also disturbed, and how.
    bool disturbs() const;
    sim::Jitter disturbance(std::uint64_t seed) const;
};

/// Which traces of predicted passes are written.
struct TraceConfig {
    std::string file;    ///< a Chrome trace of the first run (JSON); empty: there is none
    std::string chakra;  ///< folder for Chakra execution traces of all runs; empty: there are none
};

/// What must fit into the memory of a device.
struct MemoryConfig {
    double device_gigabytes = 0;    ///< of one device; 0: the machine file says
    double resident_gigabytes = 0;  ///< part of it that is always in use, such as weights
    int model_layers = 1;           ///< layers whose activations are kept until the backward pass
    std::int64_t beside_bytes = 0;  ///< kept for each token and layer by other parts than attention
    /// What is kept of each layer for its backward pass: "everything", "output", "kv", "checkpoint" or
    /// "cache".
    std::vector<std::string> keep;
};

/// Where results are written, and what a record keeps about how they were made.
struct OutputConfig {
    std::string path;
    std::string save_tensors;  ///< a folder; empty: they are not saved
    bool resume = false;
    bool overwrite = false;

    /// The options that decide results, defaults too, as "name = value" lines in the form of a config file: what a
    /// record keeps, and what --resume compares.
    std::string text;

    /// All files that parse() knows to be read or written by this command. Code that writes another file must ask it
    /// first.
    FileGuard files;
};

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
