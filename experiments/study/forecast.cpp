#include "experiments/study/forecast.hpp"

#include "experiments/execution/backend.hpp"
#include "experiments/study/judge.hpp"
#include "layouts/basics/checked_arithmetic.hpp"
#include "layouts/basics/typed_names.hpp"
#include "layouts/program/timeline.hpp"
#include "sim/play/fold.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

namespace ringlab::experiments {
namespace {

// Operations of a rank at one step of both passes of a ring: 3 and 6.
constexpr double operations_per_step = 9;
// Copies of a span that are in memory at a time while a run is gathered: a span passes through the rank's result, the
// packed and the unpacked message, the timeline and the record.
constexpr double copies_of_spans = 3;
constexpr double program_bytes = 6e7;
// Seconds of the simulator on one core of a laptop: for an operation with its share of events, and for a tile that is
// classified.
constexpr double seconds_per_simulated = 0.6e-6, seconds_per_tile = 3e-9;
// The same if ranks fetch. Then more messages are under way at a time, and their rates are solved again at each event.
// Measured with pull on a busy computer: 0.6 to 2.3 us with 64 to 512 ranks, 0.96 us with 1024. Operations that were
// read ahead of a rank's host stay in memory: 20 to 21 bytes for each operation of both passes.
constexpr double seconds_per_fetching = 1e-6, bytes_per_fetching = 21;
// Of ranks on processors, and of the reference, on one core of a laptop.
constexpr double seconds_per_flop = 1e-10, seconds_per_rank = 1e-4, seconds_per_rank_step = 2e-5;
constexpr double day = 86400, minute = 60;
constexpr double announced_from = 4;  // seconds; shorter sweeps are not announced
constexpr double longest_wait = 7 * day;
constexpr double mebi = 1024.0 * 1024.0, gibi = 1024 * mebi;

std::string duration_text(double seconds) {
    if (seconds < 100) return fmt::format("{:.0f} s", seconds);
    if (seconds < 100 * minute) return fmt::format("{:.0f} min", seconds / minute);
    if (seconds < 2 * day) return fmt::format("{:.0f} h", seconds / 3600);
    return fmt::format("{:.0f} days", seconds / day);
}

std::string bytes_text(double bytes) {
    if (bytes < gibi) return fmt::format("{:.0f} MiB", bytes / mebi);
    return bytes < 100 * gibi ? fmt::format("{:.2g} GiB", bytes / gibi) : fmt::format("{:.0f} GiB", bytes / gibi);
}

double span_bytes(double operations) { return copies_of_spans * operations * sizeof(layouts::Span); }

double simulated_seconds(double operations, bool fetches = false) {
    return operations * (fetches ? seconds_per_fetching : seconds_per_simulated);
}

/// Estimated number of operations of all ranks in both passes, from up to 16 ranks spread evenly over the ring, because
/// under some masks the last ranks have most.
double operations_of(const Plan& plan) {
    const int ranks = plan.forward->ranks(), counted = std::min(ranks, 16);
    double count = 0;
    for (const auto* schedule : plan.schedules())
        for (int i = 0; i < counted; ++i) {
            // The rank in the middle of the i-th of `counted` equal parts of the ring.
            auto ops = schedule->ops(static_cast<int>((2 * i + 1) * std::int64_t{ranks} / (2 * counted)));
            while (ops.next()) ++count;
        }
    return count / counted * ranks;
}

double pairs_of(const layouts::Mask& mask, std::span<const layouts::Interval> queries = {}) {
    const layouts::Run all{0, 1, mask.tokens()};
    const std::vector<layouts::Run> rows =
        queries.empty() ? std::vector{all} : layouts::intersect_runs({&all, 1}, queries);
    return static_cast<double>(layouts::visible_pairs(mask, rows, layouts::KeyCounter({&all, 1})));
}

double processors() { return std::max(1u, std::thread::hardware_concurrency()); }

/// Ranks of an MPI job that share this host's memory; each holds the inputs.
double processes_here(const ExecutionConfig& config, int ranks) {
    if (!config.mpi) return 1;
    for (const auto* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"})
        if (const char* text = std::getenv(name))
            if (const auto count = layouts::whole_number(text, false)) return static_cast<double>(*count);
    return static_cast<double>(ranks) * config.replicas;
}

}  // namespace

double free_memory() {
    double bytes = std::numeric_limits<double>::infinity();
    std::ifstream meminfo("/proc/meminfo");
    for (std::string line; std::getline(meminfo, line);)
        if (line.starts_with("MemAvailable:")) bytes = std::strtod(line.c_str() + 13, nullptr) * 1024;
    const auto number_in = [](const char* path, double otherwise) {
        double number = 0;
        return std::ifstream(path) >> number ? number : otherwise;  // "max" is not a number: no limit
    };
    const auto none = std::numeric_limits<double>::infinity();
    return std::min({bytes,
                     number_in("/sys/fs/cgroup/memory.max", none) - number_in("/sys/fs/cgroup/memory.current", 0),
                     number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", none) -
                         number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", 0)});
}

void Forecast::require_ranks_to_execute() const {
    const auto most = free_memory();
    for (const auto ranks : config_.sweep.ranks) {
        const auto needed = span_bytes(operations_per_step * ranks * ranks) * config_.execution.replicas;
        require(needed <= most,
                "--ranks {}: the timelines of so many ranks take about {}, {} are free; about {:.0f} ranks fit, and "
                "predict works without executing them",
                ranks, bytes_text(needed), bytes_text(most), std::floor(ranks * std::sqrt(most / needed)));
    }
}

void Forecast::require_ranks_to_predict() const {
    if (config_.prediction.engine == "unshared") return;  // ranks that do as much are then simulated once
    for (const auto ranks : config_.sweep.ranks) {
        const auto seconds = simulated_seconds(operations_per_step * ranks * ranks * config_.execution.replicas);
        require(seconds <= longest_wait,
                "--ranks {}: predicting so many ranks would take about {}; about {:.0f} take {}, and with --engine "
                "unshared --compute-model rate far more do",
                ranks, duration_text(seconds), std::floor(ranks * std::sqrt(10 * minute / seconds)),
                duration_text(10 * minute));
    }
}

void Forecast::add(const Case& setup, double seconds, double share, double bytes) {
    ++runs_;
    seconds_ += share;
    seconds_of_.push_back(seconds);
    if (seconds >= longest_seconds_) {
        longest_seconds_ = seconds;
        longest_ = setup;
    }
    if (bytes >= bytes_) {
        bytes_ = bytes;
        largest_ = setup;
    }
}

void Forecast::add_executed(const Case& setup, const Plan& plan) {
    const auto& problem = plan.problem;
    const double ranks = setup.ranks, replicas = config_.execution.replicas;
    const auto heads = static_cast<double>(problem.batch * problem.query_heads) * replicas;
    const auto operations = operations_of(plan) * replicas;
    const auto steps = operations / operations_per_step;
    const auto tensors =
        static_cast<double>(layouts::tensor_bytes(problem, 8).value_or(0)) * replicas;  // half in, half out

    double seconds = 0;
    if (backend_kind(config_.execution)->on_processors()) {
        const auto flop_per_pair = problem.forward_flop_per_pair() + problem.backward_flop_per_pair();
        const auto seconds_per_pair = heads * flop_per_pair * seconds_per_flop;
        const auto pairs = pairs_of(plan.mask(), problem.queries);
        seconds = config_.execution.repeats * (pairs * seconds_per_pair / std::min(processors(), ranks * replicas) +
                                               steps * seconds_per_rank_step + ranks * replicas * seconds_per_rank);
        const auto judged = fmt::format("{} {} {} {}", setup.mask, setup.input, problem.tokens, setup.queries);
        if (config_.judging.judge && (judged != judged_ || replicas > 1))
            seconds +=
                seconds_per_pair * judging_of(problem, plan.mask(), {.whole_tokens = config_.judging.limit}).pairs;
        judged_ = judged;
    }
    // Memory: the inputs on every process. On root, in addition, each rank's own tensors, the results in messages,
    // gathered and expected, with o twice; and the inputs again if they are rotated or made from a latent.
    const auto own = tensors / 2, results = tensors / 2;
    const auto rotated = config_.judging.judge && (problem.rotary.rotates() || problem.latent.is_given()) ? own : 0;
    const auto scratch = static_cast<double>(
        std::max(plan.forward->scratch_bytes(), plan.backward ? plan.backward->scratch_bytes() : 0));
    add(setup, seconds, seconds,
        program_bytes + processes_here(config_.execution, setup.ranks) * own + own + rotated + 5 * results +
            ranks * replicas * scratch + span_bytes(operations));
}

void Forecast::add_predicted(const Case& setup, const Plan& plan, std::size_t machines, int threads) {
    const auto operations = operations_of(plan) * static_cast<double>(machines) * config_.execution.replicas;
    const bool says_causes = setup.ranks * config_.execution.replicas <= config_.prediction.cause_ranks;
    const bool fetches = plan.forward->fetches();
    const bool folds = config_.prediction.engine == "unshared" && config_.prediction.compute_model == "rate" &&
                       sim::OpSource(*plan.forward, setup.ranks).attends_are_alike();
    const auto play = simulated_seconds(folds ? operations / setup.ranks : operations, fetches);
    double seconds = play * (says_causes ? 7 : 1);
    predicts_tiles_ = config_.prediction.compute_model == "tiles";
    if (predicts_tiles_) {
        constexpr double tile = 128 * 128;
        const auto tokens = static_cast<double>(plan.problem.tokens), rows = static_cast<double>(plan.problem.rows());
        seconds += 2 * static_cast<double>(machines) * seconds_per_tile * rows * tokens / tile;
    }
    const bool spans =
        setup.ranks * config_.execution.replicas <= config_.prediction.span_ranks || !config_.trace.file.empty();
    const auto bytes =
        program_bytes + (spans ? span_bytes(operations) : 0) +
        (fetches && !folds ? bytes_per_fetching * operations / static_cast<double>(machines)  // one at a time
                           : 0);
    // Runs are predicted in parallel, and so are the repeats of one run. A single simulation uses one thread.
    const auto at_once = std::min<double>(threads, processors());
    const auto repeats = play * (config_.prediction.disturbs() ? config_.execution.repeats : 0);
    const auto alone = seconds + repeats / at_once;
    const auto share = (seconds + repeats) / at_once;
    longest_run_ = std::max(longest_run_, alone);
    add(setup, std::max(alone, share), share, bytes);
}

void Forecast::announce() const {
    const auto free = free_memory();
    require(bytes_ <= free,
            "'{}' needs about {} of memory, {} are free: about {:.0f} tokens, or fewer heads, batch elements, replicas "
            "or ranks would fit",
            largest_.name(), bytes_text(bytes_), bytes_text(free),
            std::floor(static_cast<double>(largest_.tokens) * free / bytes_));
    // Pairs grow with the square of the tokens, and steps with the square of the ranks.
    const auto shrink = std::sqrt(10 * minute / longest_seconds_);
    const auto hint =
        fmt::format("about {:.0f} tokens over {} ranks would take {}, or fewer heads, repeats{}",
                    std::max(1.0, std::floor(static_cast<double>(longest_.tokens) * shrink)),
                    std::max(1.0, std::floor(longest_.ranks * (longest_.tokens > longest_.ranks ? 1 : shrink))),
                    duration_text(10 * minute), predicts_tiles_ ? ", or --compute-model rate" : "");
    require(seconds() <= longest_wait, "{} runs would take about {}, '{}' alone {}: {}", runs_,
            duration_text(seconds()), longest_.name(), duration_text(longest_seconds_), hint);
    if (seconds() < announced_from) return;
    fmt::print(stderr, "[estimate] {} run{}: about {}, {} of memory{}\n", runs_, runs_ == 1 ? "" : "s",
               duration_text(seconds()), bytes_text(bytes_), longest_seconds_ < 10 * minute ? "" : "; " + hint);
}

}  // namespace ringlab::experiments
