#include "experiments/calibration/calibrate.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/options/source.hpp"
#include "experiments/study/forecast.hpp"
#include "reference/ranks/cpu_attention.hpp"
#include "reference/ranks/executor.hpp"
#include "reference/tensors/blas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

namespace ringlab::experiments {
namespace {

using layouts::OpKind;

/// The passes that are timed for each length and mask: one rank with the whole sequence; ranks that take turns and
/// carry their rows from block to block; and ranks that merge partial results. A rank's chunks are whole tiles, because
/// the model knows only these.
struct Way {
    int ranks;
    int chunks;  ///< of all ranks
    const char* layout;
    const char* policy;
};
constexpr Way ways[] = {{1, 1, "contiguous", "carry"}, {4, 4, "contiguous", "carry"}, {2, 4, "zigzag", "partials"}};

struct TimedCase {
    Case setup;
    bool held_out = false;
};

class Calibration {
public:
    explicit Calibration(const Config& config)
        : config_(config), source_(config.problem, config.sweep.inputs, config.execution.replicas) {
        problem_ = source_.inspect(config.sweep.inputs.front()).problem;
        describe_machine();
    }

    /// Lays out all cases, so that an impossible one is refused before anything is timed, and announces how long the
    /// calibration will take.
    void prepare() {
        Forecast forecast(config_);
        std::set<std::string> names;
        std::size_t length = 0;
        for (const auto& mask : config_.sweep.masks)
            for (const auto tokens : config_.sweep.tokens) {
                // Every third combination of mask and length is held out, because a fit must be judged on attends that
                // it has not seen.
                const bool held_out = length++ % 3 == 1;
                for (const auto& way : ways) {
                    const auto multiple = way.ranks == 1 ? 1 : way.chunks * reference::TileSizes{}.rows;
                    const auto whole = (tokens + multiple - 1) / multiple * multiple;
                    const Case setup{
                        config_.sweep.inputs.front(), mask, way.layout, "ring", way.policy, way.ranks, whole};
                    if (!names.insert(setup.name()).second) continue;
                    cases_.push_back({setup, held_out});
                    forecast.add_executed(setup, plan_of(setup));
                }
            }
        require(config_.sweep.masks.size() * config_.sweep.tokens.size() >= 6,
                "{} timed lengths and masks do not determine the figures; give more tokens or masks",
                config_.sweep.masks.size() * config_.sweep.tokens.size());
        forecast.announce();
    }

    void measure() {
        const bool sends = std::thread::hardware_concurrency() > 1;
        const auto lengths = sends ? config_.sweep.tokens.size() : 0;
        Progress progress(cases_.size() + lengths, false);
        for (std::size_t i = 0; i < cases_.size(); ++i) {
            progress.start(cases_[i].setup.name());
            time(cases_[i].setup, cases_[i].held_out);
            progress.finish();
        }
        for (std::size_t i = 0; i < lengths; ++i) {
            progress.start(fmt::format("messages of {} tokens", config_.sweep.tokens[i]));
            time_messages(config_.sweep.tokens[i]);
            progress.finish();
        }
    }

    void fit() {
        for (const auto pass : both_passes) {
            auto& cost = cost_of(fitted_.machine, pass);
            const auto section = fmt::format("attention.{}", to_string(pass));
            for (const auto& [key, why] : fit_prices(cost, timings_of(fitted_.attends(pass), pass, fitted_.machine)))
                source(fmt::format("{}.{}", section, key), why);
            for (const auto* key : {".begin_us", ".begin_memory_ratio"})
                source(section + key, "nothing surrounds the attends of a pass");
            source(section + ".power_teraflops", "not calibrated");
        }
        fit_messages();
        fit_sums();
        if (config_.problem.arithmetic == "fp64")
            time_products<double>();
        else
            time_products<float>();
    }

    const FittedMachine& fitted() const { return fitted_; }

private:
    Plan plan_of(const Case& setup) const { return make_plan(setup, problem_); }

    RingRun run(const Case& setup, const Plan& plan) {
        const auto backend = make_backend(config_.execution, {{setup.ranks}, config_.problem.arithmetic});
        const auto& inputs = source_.get(setup, plan.problem);
        auto options = judged_options(config_.execution, policy_from(setup.policy, plan.problem.dtype),
                                      std::span(&inputs.front().inputs, 1), config_.execution.repeats);
        options.warm_up = 1;
        return std::move(backend->run(plan, {.ring = setup.ranks}, options).front());
    }

    void time(const Case& setup, bool held_out) {
        const auto plan = std::make_shared<const Plan>(plan_of(setup));
        const auto ring = run(setup, *plan);
        for (const auto pass : both_passes) {
            const auto& schedule = *plan->schedule(pass);
            for (const auto& one : executed_operations(schedule, ring.of(pass))) {
                const auto seconds = one.seconds.median;
                if (one.op.kind == OpKind::add || one.op.kind == OpKind::merge)
                    sums_[one.op.kind].add(static_cast<double>(one.op.bytes), seconds);
                if (one.op.kind != OpKind::attend) continue;
                fitted_.attends(pass).push_back({plan,
                                                 one.rank,
                                                 one.op.part.block,
                                                 {one.op.begins, one.op.ends},
                                                 seconds,
                                                 held_out,
                                                 to_string(pass)});
                auto& best = cost_of(fitted_.machine, pass).flops;
                if (setup.ranks == 1) best = std::max(best, schedule.flop(one.op) / seconds);
            }
        }
    }

    /// Times the messages of a ring of two ranks. All tokens but one on each rank are padding, so K and V travel, and
    /// in the backward pass their gradients, but attends have next to nothing to do. Messages of 16-bit numbers take
    /// longer per byte than those of 32-bit numbers, because they are converted. One line is fitted to both.
    void time_messages(std::int64_t tokens) {
        const auto half = (tokens + 1) / 2;
        const Case setup{config_.sweep.inputs.front(),
                         fmt::format("valid:{}-{}", half - 1, half + 1),
                         "contiguous",
                         "ring",
                         "carry",
                         2,
                         2 * half};
        const auto plan = plan_of(setup);
        const auto ring = run(setup, plan);
        for (const auto pass : both_passes) {
            std::vector<double> seconds;
            for (const auto& timeline : ring.of(pass).timelines) seconds.push_back(outside_compute(timeline));
            double bytes = 0;
            auto ops = plan.schedule(pass)->ops(0);
            while (const auto* op = ops.next())
                if (op->kind == OpKind::send) bytes += static_cast<double>(op->bytes);
            messages_.add(bytes, typical(seconds).median);
        }
    }

    /// Seconds of a pass in which a rank did not compute, up to the rank's last span: the larger value of the two
    /// ranks.
    static double outside_compute(const layouts::Timeline& timeline) {
        std::vector<layouts::Picoseconds> ends(2, 0), busy(2, 0);
        for (const auto& span : timeline.spans) {
            const auto rank = static_cast<std::size_t>(span.rank);
            ends[rank] = std::max(ends[rank], span.end);
            if (span.lane == layouts::compute_lane) busy[rank] += span.busy;
        }
        return layouts::to_seconds(std::max(ends[0] - busy[0], ends[1] - busy[1]));
    }

    void describe_machine() {
        const reference::TileSizes tiles;
        fitted_.machine.name = fmt::format("{}, {}", processor_name(), config_.problem.arithmetic);
        fitted_.machine.description = "CPU backend, each rank a processor of its own; calibrated on single operations";
        source("topology", "one computer");
        source("topology.gpus_per_host", "any number of ranks, a processor each");
        source("gpu.multiprocessors", "a rank computes on one thread");
        source("host", "none: a rank's thread issues what it does");
        for (const auto pass : both_passes) {
            auto& cost = cost_of(fitted_.machine, pass);
            cost.head_dim = problem_.head_dim;
            cost.value_dim = problem_.value_dim;
            cost.tile_rows = tiles.rows;
            cost.tile_keys = tiles.keys;
            cost.flops = 0;  // time() keeps the highest rate
            const auto section = fmt::format("attention.{}", to_string(pass));
            source(section, "fitted to processor time of attends");
            for (const auto* key : {".head_dim", ".value_dim", ".work_tile", ".tile_rows", ".tile_keys", ".groups"})
                source(section + key, "tiles of the CPU backend");
            source(section + ".teraflops", "measured: visible pairs, the best of the timed attends");
        }
    }

    /// Fits the cost of messages. A rank's own thread packs, copies and unpacks its messages, and cannot compute at the
    /// same time. In the model the processor's time is therefore a shared resource (the one called memory), and attends
    /// and messages each need all of it.
    void fit_messages() {
        auto& link = fitted_.machine.inside_host;
        source("gpu.attention_memory_gigabytes_per_second",
               "all: what copies a rank's messages is the processor that computes its attends");
        if (messages_.bytes.empty()) {
            for (const auto* section : {"gpu.memory_gigabytes_per_second", "inside_host"})
                source(section, "not calibrated: one processor");
            fitted_.machine.memory_bytes_per_second = 1e15;
            return;
        }
        const auto line = messages_.rising_line();
        link.latency_seconds = line.constant;
        // Each byte is sent and received, one after the other, by the same processor time.
        fitted_.machine.memory_bytes_per_second = fitted_.machine.attention_memory_bytes_per_second = 2 / line.slope;
        link.link_bytes_per_second = fitted_.machine.memory_bytes_per_second;
        link.send_memory_ratio = link.receive_memory_ratio = 1;
        const auto* fitted = "fitted to messages between two ranks that have next to nothing to compute";
        source("gpu.memory_gigabytes_per_second", fitted);
        source("inside_host", "counted: what is sent and what is received take as long");
        source("inside_host.latency_us", line.has_slope ? fitted : not_determined_by("messages of one size"));
        source("inside_host.link_gigabytes_per_second", fitted);
    }

    void fit_sums() {
        const auto line_of = [&](OpKind kind) {
            const auto line = sums_[kind].line();
            return line.has_slope ? sums_[kind].rising_line() : line;
        };
        const auto add = line_of(OpKind::add), merge = line_of(OpKind::merge);
        fitted_.machine.accumulate_launch_seconds = add.constant;
        fitted_.machine.add_memory_ratio = add.slope * fitted_.machine.memory_bytes_per_second;
        fitted_.machine.merge_memory_ratio = merge.slope * fitted_.machine.memory_bytes_per_second;
        fitted_.machine.copy_memory_ratio = fitted_.machine.add_memory_ratio;
        source("accumulate", "fitted to processor time of sums and merges");
        if (!add.has_slope) source("accumulate.add_memory_ratio", not_determined_by("sums of one size"));
        if (!merge.has_slope) source("accumulate.merge_memory_ratio", not_determined_by("merges of one size"));
        source("accumulate.copy_memory_ratio", "not calibrated: as of a sum");
    }

    /// Times matrix products such as those that expand a latent, rows of a block times a head's matrix, and keeps the
    /// highest rate.
    template <class Real>
    void time_products() {
        constexpr std::int64_t rows = 512, columns = 128, inner = 512, repeats = 20;
        constexpr double flop = 2.0 * rows * columns * inner;
        std::vector<Real> a(rows * inner, Real(0.5)), b(columns * inner, Real(0.25)), c(rows * columns);
        const reference::SingleThreadedBlas one_thread;
        for (int i = 0; i < repeats; ++i) {
            const auto begin = reference::thread_cpu_time();
            reference::multiply(1, reference::MatrixView<Real>{a.data(), rows, inner, inner},
                                reference::transpose(reference::MatrixView<Real>{b.data(), columns, inner, inner}),
                                {c.data(), rows, columns, columns});
            const auto seconds = layouts::to_seconds(reference::thread_cpu_time() - begin);
            if (seconds > 0)
                fitted_.machine.matrix_product_flops = std::max(fitted_.machine.matrix_product_flops, flop / seconds);
        }
        source("matrix_product", "measured: 512 rows with a matrix of 512 x 128, one thread");
    }

    void source(const std::string& key, const std::string& text) { fitted_.sources[key] = text; }

    const Config& config_;
    Source source_;
    layouts::Problem problem_;
    FittedMachine fitted_;
    std::vector<TimedCase> cases_;
    std::map<OpKind, Moved> sums_;
    Moved messages_;
};

}  // namespace

void calibrate_cpu(const Config& config) {
    Calibration calibration(config);
    calibration.prepare();
    say_when_interrupted("interrupted; no machine file was written");
    calibration.measure();
    calibration.fit();
    write_fit(config, config.output.path, calibration.fitted(),
              fmt::format("This computer, as `calibrate` found it with {} arithmetic, heads {}",
                          config.problem.arithmetic, config.problem.heads.empty() ? "4:2" : config.problem.heads),
              "Ranks have a processor each.\n", true);
}

}  // namespace ringlab::experiments
