#include "experiments/calibration/calibrate_cpu.hpp"

#include "experiments/calibration/fit/cost_fit.hpp"
#include "experiments/calibration/fit/machine_file.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/options/source.hpp"
#include "experiments/options/values.hpp"
#include "experiments/study/forecast.hpp"
#include "reference/ranks/cpu_attention.hpp"
#include "reference/ranks/executor.hpp"
#include "reference/tensors/blas.hpp"
#include "sim/machine/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

namespace ringlab::experiments {
namespace {

using layouts::OpKind;
using layouts::Pass;

/// A sum of gradients or a merge of partial results that was timed: bytes of its operand, and processor time.
struct TimedSum {
    OpKind kind;
    double bytes = 0, seconds = 0;
};

/// A pass in which messages travel and nothing is computed.
struct TimedMessages {
    double bytes = 0;  ///< that a rank sends; it receives as many
    double seconds = 0;
};

std::vector<double> busy_of(const std::vector<std::vector<Measurement>>& repeats, Pass pass, std::size_t span) {
    std::vector<double> seconds;
    for (const auto& repeat : repeats)
        seconds.push_back(layouts::to_seconds(repeat.front().timeline(pass).spans[span].busy));
    return seconds;
}

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
    Case which;
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
                    const Case which{
                        config_.sweep.inputs.front(), mask, way.layout, "ring", way.policy, way.ranks, whole};
                    if (!names.insert(which.name()).second) continue;
                    cases_.push_back({which, held_out});
                    forecast.add_executed(which, plan_of(which));
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
            progress.start(cases_[i].which.name());
            time(cases_[i].which, cases_[i].held_out);
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
            auto& cost = cost_of(machine_, pass);
            const auto section = fmt::format("attention.{}", to_string(pass));
            for (const auto& [key, why] : fit_prices(cost, timings_of(attends(pass), pass, machine_)))
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

    std::string text(const std::string& heading) const { return sim::machine_text(machine_, sources_, heading); }

    /// The table of the fit: a line for each plan and pass, with the sum over its attends. Also sets the mean and the
    /// 95th percentile (`worst`) of the relative errors of the attends that were held out.
    std::string table(double& mean, double& worst) const {
        Table table({"mask", "tokens", "P", "pass", "measured ms", "fitted ms", "error", ""});
        std::vector<double> errors;
        for (const auto pass : both_passes) {
            const auto& all = attends(pass);
            for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
                double measured = 0, fitted = 0;
                for (; end < all.size() && all[end].plan == all[begin].plan; ++end) {
                    const double seconds = predicted_seconds(all[end], pass, machine_);
                    measured += all[end].seconds;
                    fitted += seconds;
                    if (all[end].held_out) errors.push_back(std::abs(seconds / all[end].seconds - 1));
                }
                const auto& plan = *all[begin].plan;
                table.add({plan.mask().name(), fmt::format("{}", plan.problem.tokens),
                           fmt::format("{}", plan.layout().ranks()), to_string(pass),
                           fmt::format("{:.3f}", measured * 1e3), fmt::format("{:.3f}", fitted * 1e3),
                           fmt::format("{:+.1f} %", (fitted / measured - 1) * 100),
                           all[begin].held_out ? "held out" : ""});
            }
        }
        std::sort(errors.begin(), errors.end());
        mean = worst = 0;
        for (const auto error : errors) mean += error / static_cast<double>(errors.size());
        if (!errors.empty()) worst = errors[errors.size() * 95 / 100];
        return table.text();
    }

private:
    std::vector<TimedAttend>& attends(Pass pass) { return pass == Pass::forward ? forward_ : backward_; }
    const std::vector<TimedAttend>& attends(Pass pass) const { return pass == Pass::forward ? forward_ : backward_; }

    Plan plan_of(const Case& which) const { return make_plan(which, problem_); }

    std::vector<std::vector<Measurement>> repeats_of(const Case& which, const Plan& plan) {
        const auto backend = make_backend(config_.execution, config_.problem.arithmetic, which.ranks);
        const auto& inputs = source_.get(which, plan.problem);
        auto repeats = backend->run(plan, policy_from(which.policy, plan.problem.dtype),
                                    std::span(&inputs.front().inputs, 1), config_.execution.repeats + 1);
        repeats.erase(repeats.begin());  // warm-up
        return repeats;
    }

    void time(const Case& which, bool held_out) {
        const auto plan = std::make_shared<const Plan>(plan_of(which));
        const auto repeats = repeats_of(which, *plan);
        for (const auto pass : both_passes) {
            const auto& schedule = *plan->schedule(pass);
            std::size_t span = 0;
            for (int rank = 0; rank < schedule.ranks(); ++rank) {
                auto ops = schedule.ops(rank);
                while (const auto* op = ops.next()) {
                    const double seconds = op->transfers() ? 0 : median(busy_of(repeats, pass, span));
                    ++span;
                    if (op->kind == OpKind::attend)
                        attends(pass).push_back(
                            {plan, rank, op->part.block, {op->begins, op->ends}, seconds, held_out, ""});
                    else if (op->kind == OpKind::add || op->kind == OpKind::merge)
                        sums_.push_back({op->kind, static_cast<double>(op->bytes), seconds});
                    if (op->kind == OpKind::attend && which.ranks == 1) {
                        auto& best = cost_of(machine_, pass).flops;
                        best = std::max(best, schedule.flop(*op) / seconds);
                    }
                }
            }
        }
    }

    /// Times the messages of a ring of two ranks. All tokens but one on each rank are padding, so K and V travel, and
    /// in the backward pass their gradients, but attends have next to nothing to do. Messages of 16-bit numbers take
    /// longer per byte than those of 32-bit numbers, because they are converted. One line is fitted to both.
    void time_messages(std::int64_t tokens) {
        const auto half = (tokens + 1) / 2;
        const Case which{config_.sweep.inputs.front(),
                         fmt::format("valid:{}-{}", half - 1, half + 1),
                         "contiguous",
                         "ring",
                         "carry",
                         2,
                         2 * half};
        const auto plan = plan_of(which);
        const auto repeats = repeats_of(which, plan);
        for (const auto pass : both_passes) {
            std::vector<double> seconds;
            for (const auto& repeat : repeats) seconds.push_back(outside_compute(repeat.front().timeline(pass)));
            double bytes = 0;
            auto ops = plan.schedule(pass)->ops(0);
            while (const auto* op = ops.next())
                if (op->kind == OpKind::send) bytes += static_cast<double>(op->bytes);
            messages_.push_back({bytes, median(seconds)});
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
        machine_.name = fmt::format("{}, {}", processor_name(), config_.problem.arithmetic);
        machine_.description = "CPU backend, each rank a processor of its own; calibrated on single operations";
        source("topology", "one computer");
        source("topology.gpus_per_host", "any number of ranks, a processor each");
        source("gpu.multiprocessors", "a rank computes on one thread");
        source("host", "none: a rank's thread issues what it does");
        for (const auto pass : both_passes) {
            auto& cost = cost_of(machine_, pass);
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
        auto& link = machine_.inside_host;
        source("gpu.attention_memory_gigabytes_per_second",
               "all: what copies a rank's messages is the processor that computes its attends");
        if (messages_.empty()) {
            for (const auto* section : {"gpu.memory_gigabytes_per_second", "inside_host"})
                source(section, "not calibrated: one processor");
            machine_.memory_bytes_per_second = 1e15;
            return;
        }
        std::vector<double> bytes, seconds;
        for (const auto& one : messages_) {
            bytes.push_back(one.bytes);
            seconds.push_back(one.seconds);
        }
        const auto line = fit_rising_line(bytes, seconds);
        link.latency_seconds = line.constant;
        // Each byte is sent and received, one after the other, by the same processor time.
        machine_.memory_bytes_per_second = machine_.attention_memory_bytes_per_second = 2 / line.slope;
        link.link_bytes_per_second = machine_.memory_bytes_per_second;
        link.send_memory_ratio = link.receive_memory_ratio = 1;
        const auto* fitted = "fitted to messages between two ranks that have next to nothing to compute";
        source("gpu.memory_gigabytes_per_second", fitted);
        source("inside_host", "counted: what is sent and what is received take as long");
        source("inside_host.latency_us", line.has_slope ? fitted : not_determined_by("messages of one size"));
        source("inside_host.link_gigabytes_per_second", fitted);
    }

    void fit_sums() {
        const auto line_of = [&](OpKind kind) {
            std::vector<double> bytes, seconds;
            for (const auto& sum : sums_)
                if (sum.kind == kind) bytes.push_back(sum.bytes), seconds.push_back(sum.seconds);
            const auto line = fit_line(bytes, seconds);
            return line.has_slope ? fit_rising_line(bytes, seconds) : line;
        };
        const auto add = line_of(OpKind::add), merge = line_of(OpKind::merge);
        machine_.accumulate_launch_seconds = add.constant;
        machine_.add_memory_ratio = add.slope * machine_.memory_bytes_per_second;
        machine_.merge_memory_ratio = merge.slope * machine_.memory_bytes_per_second;
        machine_.copy_memory_ratio = machine_.add_memory_ratio;
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
            if (seconds > 0) machine_.matrix_product_flops = std::max(machine_.matrix_product_flops, flop / seconds);
        }
        source("matrix_product", "measured: 512 rows with a matrix of 512 x 128, one thread");
    }

    void source(const std::string& key, const std::string& text) { sources_[key] = text; }

    const Config& config_;
    Source source_;
    layouts::Problem problem_;
    sim::Machine machine_;
    std::vector<TimedCase> cases_;
    std::vector<TimedAttend> forward_, backward_;
    std::vector<TimedSum> sums_;
    std::vector<TimedMessages> messages_;
    std::map<std::string, std::string> sources_;
};

}  // namespace

int calibrate_cpu(const Config& config) {
    Calibration calibration(config);
    calibration.prepare();
    say_when_interrupted("interrupted; no machine file was written");
    calibration.measure();
    calibration.fit();
    double mean = 0, worst = 0;
    const auto table = calibration.table(mean, worst);
    const auto accuracy =
        fmt::format("held-out attends are predicted within {:.1f} % on average, 95 of 100 within {:.1f} %", mean * 100,
                    worst * 100);
    const auto text = calibration.text(
        fmt::format("This computer, as `calibrate` found it with {} arithmetic, heads {};\n{}.\nRanks have a processor "
                    "each.\nHow to read a machine file: see h200_nvswitch_copy_engine.toml.",
                    config.problem.arithmetic, config.problem.heads.empty() ? "4:2" : config.problem.heads, accuracy));
    const auto output = write_machine_file(config.output.files, config.output.path, text);
    fmt::print("{}\n{}.\n", table, accuracy);
    announce_machine_file(output, text);
    return 0;
}

}  // namespace ringlab::experiments
