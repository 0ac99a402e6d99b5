#pragma once

#include "experiments/outputs/file_guard.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/machine/options.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ringlab::experiments {

class BackendKind;

/// In place of a record: all that come with Ringlab.
inline constexpr const char* all_records = "all";

/// Everything an experiment can be asked for. Lists are sweeps: an experiment runs their product.
struct Config {
    // What is computed.
    std::vector<std::int64_t> tokens;           ///< of the whole sequence; empty: as many as the input has
    std::vector<std::int64_t> tokens_per_rank;  ///< instead of tokens
    std::vector<std::int64_t> queries;          ///< last tokens of every sequence that have a query row; 0: all
    std::int64_t batch = 1;
    std::string heads;           ///< "QUERY:KV"; empty: those of the input
    std::int64_t head_dim = 0;   ///< 0: that of the input
    std::int64_t value_dim = 0;  ///< 0: head_dim
    double scale = 0;
    std::optional<double> soft_cap;  ///< 0: none; not given: that of the input
    std::string latent_spec;         ///< as it was typed
    layouts::Latent latent;
    layouts::Rotary rotary;  ///< but for what stands below as it was typed
    std::string rotary_pairs = "half";
    std::string rotary_scaling = "none";
    std::string rotary_positions = "global";
    layouts::Dropout dropout;
    std::vector<std::string> sinks;   ///< logits: one for all query heads, one for each, or "normal"
    std::vector<std::string> inputs;  ///< "real", a generator's name, or an HDF5 file
    std::uint64_t seed = 1;

    // Whose layers are looked at.
    std::string stack = "gemma-3-27b";  ///< a model, by name or file
    std::int64_t scale_down = 64;       ///< how many times less is executed

    // How sequences grow.
    int sequences = 1;
    int steps = 2;  ///< tokens appended to each

    // How it is laid out.
    std::vector<std::string> layouts, masks, algorithms;
    std::vector<int> ranks;
    bool pad = false;
    std::vector<int> listed_ranks;  ///< whose positions are listed; none: of all

    // What is packed.
    std::string lengths = "document_lengths";  ///< file of lengths, or one that comes with Ringlab
    int packings = 1000;
    int measured_packings = 20;  ///< of them, executed too

    // How it is computed and measured.
    std::string backend = "cpu";
    std::map<std::string, std::shared_ptr<BackendKind>> backends;  ///< by name, with their own options
    bool mpi = false;                                              ///< a process per rank, under mpirun
    std::string arithmetic;
    std::vector<std::string> policies;  ///< of accumulation
    int replicas = 1;
    std::string placement = "consecutive";
    int repeats = 5;
    double timeout_seconds = 300;
    std::string launcher = "mpirun";  ///< words before -np; "none": nothing is launched
    std::string fault;                ///< of the machine, on purpose: "stop:1"; empty: none
    bool judge = true;
    std::int64_t judge_limit = 16384;       ///< tokens up to which every element is judged; above, a sample
    std::optional<double> tolerance;        ///< without it, derived from the arithmetic
    std::vector<std::int64_t> loss_tokens;  ///< of each replica

    // How throughput is timed.
    std::vector<std::string> shapes;      ///< "HEADS/DIMS[/ARITHMETIC]"; empty: the one of heads, dims and arithmetic
    std::vector<std::string> transports;  ///< of rings
    std::string measured;                 ///< record of rings that were measured before, or all_records
    std::vector<std::string> without;     ///< terms of the cost model that its rings are predicted without, in turn
    int gpus_per_host = 0;                ///< of the machine that calibrate describes; 0: those it timed
    std::vector<std::string> published;   ///< tables of others' rings
    std::vector<std::string> families;    ///< of kernels
    std::vector<std::string> protocols = {"sustained"};  ///< how kernels alone are timed
    std::vector<std::string> beside;                     ///< what is timed for comparison: work, ceilings
    std::string cudnn;                                   ///< path of the library; empty: the system's
    bool deterministic = false;
    int rounds = 5;  ///< in which kernels alone take turns
    double warm_up_seconds = 0.5;
    double repeat_seconds = 0.75;

    // What it is predicted on.
    std::vector<std::string> machines;
    std::string compute_model = "tiles";
    std::string engine = "events";
    std::string clock = "sustained";
    int threads = 0;     ///< 0: one for each processor
    sim::Jitter jitter;  ///< but for what stands elsewhere:
    double start_skew_us = 0;
    int cause_ranks = 0;      ///< most ranks for which it is said where the time goes
    int span_ranks = 64;      ///< most ranks of which the record keeps when every operation ran
    std::string trace;        ///< Chrome trace-event JSON file
    std::string trace_ranks;  ///< "FIRST-LAST"; empty: all
    std::string trace_steps;
    int trace_runs = 1;

    // What must fit, and what is planned.
    double device_memory_gigabytes = 0;        ///< of one device; 0: the machine file says
    std::optional<double> reserved_gigabytes;  ///< of it what tensors cannot have; none: the machine file says
    double resident_gigabytes = 0;             ///< of it what lies there all the time, as weights
    int model_layers = 1;                      ///< whose activations are kept until the backward pass
    std::int64_t hidden = 0;                   ///< width of the model; 0: query heads x head dim
    std::int64_t beside_bytes = 0;             ///< kept of each token and layer beside attention
    std::vector<std::string> keep;             ///< policies
    bool confirm = false;                      ///< run what fits, on GPUs
    int gpus = 0;                              ///< to spread over; 0: those of the machine
    double budget_seconds = 60;                ///< that the simulator may take for candidates
    std::string json;

    // Where results go.
    std::string output;
    std::string default_output;  ///< of which `output` is the first free one of the numbered names; empty: it was given
    std::string save_tensors;
    bool resume = false;
    bool overwrite = false;
    bool force = false;  ///< run also what by its forecast does not fit

    std::set<std::string> given;     ///< names of the options that the user gave, by whatever way
    std::vector<std::string> notes;  ///< what was chosen for the user and why, a line each; see say_notes()

    /// The options that decide results, defaults too, as "name = value" lines in the form of a config file: what a
    /// record keeps, and what --resume compares.
    std::string text;

    /// All that parse() knows this command reads and writes; whoever writes more asks it first.
    FileGuard files;

    /// Whether what is predicted is also disturbed, `repeats` times, and how.
    bool disturbs() const;

    /// --clock.
    sim::Clock attend_clock() const { return clock == "sustained" ? sim::Clock::sustained : sim::Clock::calibrated; }
    sim::Jitter disturbance() const;
};

/// Groups of options that an experiment understands; --help shows these alone, and others are refused.
struct OptionGroups {
    bool measures = false;    ///< backend, arithmetic, repeats, inputs
    bool predicts = false;    ///< machines, traces
    bool policies = false;    ///< a sweep over accumulation policies
    bool gate = false;        ///< --tolerance
    bool throughput = false;  ///< what is timed on GPUs, and beside what
    bool plans = false;       ///< machines, and what must fit their memory
    bool advises = false;     ///< GPUs to spread over, JSON; otherwise a plan looks for the number of tokens
    bool packs = false;       ///< packings of documents
    bool layer = false;       ///< a layer around attention, and the tokens in its loss
    bool lists = false;       ///< prints what a layout is, and keeps no record
    bool decodes = false;     ///< sequences that grow, instead of inputs, masks and padding of one's choice
    bool breaks = false;      ///< makes mistakes on purpose, on layouts and masks of its own choice
    bool stacks = false;      ///< layers of a whole model
    bool disturbs = false;    ///< rings side by side, stragglers and noise in what is predicted
};

struct Experiment {
    std::string name;
    std::string purpose;  ///< a paragraph for --help
    std::string example;  ///< a command line for --help
    OptionGroups groups;
    FileKind output = FileKind::record;
};

/// Tells a person on stderr what was chosen for them.
void say_notes(const Config& config);

layouts::RingGroup ring_group(const Config& config, int ranks);

/// GPU of each rank of all replicas, ring by ring, as --placement says; empty: in order. Throws Error if it says
/// nothing known, or a file that it names does not hold that many numbers.
std::vector<int> gpu_placement(const Config& config, int ranks);

}  // namespace ringlab::experiments
