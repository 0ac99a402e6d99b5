#include "experiments/calibration/calibrate_gpu.hpp"

#include "experiments/calibration/cost_fit.hpp"
#include "experiments/calibration/machine_file.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/console/table.hpp"
#include "experiments/inputs/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using Turn = sim::TileModel::Turn;

/// Rows of a rank against keys of a block, as a ring would have them; nothing of a ring is timed.
struct Spot {
    std::string mask, layout;
    int ranks, rank, block;
    std::int64_t tokens_per_rank;
    bool held_out;
};

std::vector<Spot> spots(const Config& config) {
    std::vector<Spot> all;
    for (const auto tokens : config.tokens) {
        for (const auto& mask : config.masks) all.push_back({mask, "contiguous", 1, 0, 0, tokens, false});
        if (tokens < 1024) continue;
        // Half of the rows see everything, and all rows see half of the keys.
        all.push_back({"causal", "zigzag", 2, 0, 1, tokens, false});
        all.push_back({"causal", "zigzag", 2, 1, 0, tokens, false});
        all.push_back({"causal", "zigzag", 4, 2, 1, tokens, true});
        all.push_back({"causal", "striped:64", 4, 1, 2, tokens, true});
        all.push_back({fmt::format("window:{},0", tokens / 2), "contiguous", 2, 1, 0, tokens, true});
        all.push_back({"causal+documents:" + fmt::format("{0},{1},{1}", tokens / 2, tokens / 4), "contiguous", 1, 0, 0,
                       tokens, true});
    }
    return all;
}

std::shared_ptr<const Plan> plan_of(const Spot& spot, const Config& config) {
    const Case which{"normal", spot.mask, spot.layout, "ring", "carry", spot.ranks, spot.ranks * spot.tokens_per_rank,
                     "normal"};
    return std::make_shared<Plan>(make_plan(which, problem_from(config), config, {}));
}

const std::map<std::string, Turn> forward_calls{{"forward", {true, true}},
                                                {"forward_first", {true, false}},
                                                {"forward_carried", {false, false}},
                                                {"forward_last", {false, true}}};

double bytes_of_rows(const Plan& plan, std::int64_t numbers) {
    return static_cast<double>(plan.problem.batch * plan.layout().shard_tokens(0) * numbers);
}

/// Everything that one machine file needs, by where it goes.
class GpuCalibration {
public:
    GpuCalibration(const Config& config, GpuProbe& probe)
        : config_(config), probe_(probe), problem_(problem_from(config)), machine_(probe.machine(problem_)) {}

    void measure() {
        const auto all = spots(config_);
        Progress progress(all.size() + 3, false);
        for (const auto& spot : all) {
            progress.start(fmt::format("{} {} rank {} of {}, block {}, {} tokens", spot.mask, spot.layout, spot.rank,
                                       spot.ranks, spot.block, spot.tokens_per_rank));
            time(spot);
            progress.finish();
        }
        const auto step = [&](const char* name, auto what) {
            progress.start(name);
            what();
            progress.finish();
        };
        step("sustained clocks", [&] { time_sustained(); });
        step("host", [&] { issue_ = probe_.issue(*plan_of({"full", "contiguous", 4, 0, 0, 256, false}, config_)); });
        step("links beside attends", [&] {
            busy_ = probe_.busy_links(*plan_of(largest(), config_), "forward_carried", sizes({2, 8, 32, 128}));
        });
    }

    void fit() {
        fit_attention(machine_, Pass::forward, forward_);
        fit_attention(machine_, Pass::backward, backward_);
        fit_memory();
        fit_links();
        machine_.compute_issue_seconds = machine_.transfer_issue_seconds = issue_.median;
        source("host", "measured: host time of a pass of virtual ranks, by operation");
        machine_.name = fmt::format("{} {}", probe_.gpus(), probe_.device());
        machine_.description = "one host; blocks travel by copy engine; calibrated on parts, none of them a ring";
        source("topology", "this machine");
        source("gpu.multiprocessors", "this machine");
    }

    std::string text(const std::string& heading) const { return sim::machine_text(machine_, sources_, heading); }

    /// A line for each attend. `worst` and `mean`: of those held out.
    std::string table(double& worst, double& mean) const {
        Table table({"mask", "layout", "rank", "block", "tokens", "call", "measured us", "fitted us", "error", ""});
        double sum = 0;
        int count = 0;
        worst = 0;
        for (const auto pass : {Pass::forward, Pass::backward})
            for (const auto& attend : pass == Pass::forward ? forward_ : backward_) {
                const double seconds = predicted_seconds(attend, pass, machine_), error = seconds / attend.seconds - 1;
                const auto& plan = *attend.plan;
                if (attend.held_out) {
                    worst = std::max(worst, std::abs(error));
                    sum += std::abs(error);
                    ++count;
                }
                table.add({plan.mask().name(), plan.layout().name(), fmt::format("{}", attend.rank),
                           fmt::format("{}", attend.block), fmt::format("{}", plan.layout().shard_tokens(attend.rank)),
                           attend.name, fmt::format("{:.1f}", attend.seconds * 1e6),
                           fmt::format("{:.1f}", seconds * 1e6), fmt::format("{:+.1f} %", 100 * error),
                           attend.held_out ? "held out" : ""});
            }
        mean = count > 0 ? sum / count : 0;
        return table.text();
    }

private:
    static std::vector<std::int64_t> sizes(std::initializer_list<std::int64_t> mebibytes) {
        std::vector<std::int64_t> bytes;
        for (const auto size : mebibytes) bytes.push_back(size << 20);
        return bytes;
    }

    Spot largest() const {
        return {"causal", "contiguous", 1, 0, 0, *std::max_element(config_.tokens.begin(), config_.tokens.end()),
                false};
    }

    void time(const Spot& spot) {
        const auto plan = plan_of(spot, config_);
        std::vector<std::string> calls;
        for (const auto& [name, turn] : forward_calls)
            if (!spot.held_out || name != "forward_carried") calls.push_back(name);
        const auto forward_count = calls.size();
        calls.push_back("backward_block");
        const bool whole = spot.ranks == 1 && spot.mask == "causal";
        if (whole) calls.insert(calls.end(), {"backward_prepare", "backward_add", "backward_round"});
        const auto times = probe_.attends(*plan, spot.rank, spot.block, calls);
        for (std::size_t i = 0; i < forward_count; ++i)
            forward_.push_back(
                {plan, spot.rank, spot.block, forward_calls.at(calls[i]), times[i].median, spot.held_out, calls[i]});
        backward_.push_back({plan, spot.rank, spot.block, {}, times[forward_count].median, spot.held_out, "backward"});
        if (!whole) return;
        around_.push_back(
            {plan, times[forward_count + 1].median, times[forward_count + 2].median, times[forward_count + 3].median});
    }

    void time_sustained() {
        const auto plan = plan_of(largest(), config_);
        const auto ratio = [&](const char* call) {
            const double quick = probe_.attends(*plan, 0, 0, {call}).front().median;
            return std::min(1.0, quick / probe_.sustained(*plan, call).median);
        };
        machine_.forward.sustained_clock = ratio("forward");
        machine_.backward.sustained_clock = ratio("backward_block");
        for (const auto* pass : {"forward", "backward"})
            source(fmt::format("attention.{}.sustained_clock", pass),
                   fmt::format("measured: time of the largest launch with rests over that without, {} tokens",
                               plan->problem.tokens));
    }

    /// From the kernels around attends: the rate of memory by the sum of two gradients, whose bytes are counted.
    void fit_memory() {
        const auto& p = problem_;
        const auto q = p.query_heads * p.head_dim * layouts::bytes_of(p.dtype);
        const auto kv = p.kv_heads * (p.head_dim + p.value_dim) * layouts::bytes_of(p.dtype);
        std::vector<double> rows_q, rows_all, rows_dkv, prepare, add, round;
        for (const auto& [plan, prepare_seconds, add_seconds, round_seconds] : around_) {
            rows_q.push_back(bytes_of_rows(*plan, q));
            rows_all.push_back(bytes_of_rows(*plan, q + kv));
            rows_dkv.push_back(bytes_of_rows(*plan, p.kv_heads * (p.head_dim + p.value_dim) * 4));
            prepare.push_back(prepare_seconds);
            add.push_back(add_seconds);
            round.push_back(round_seconds);
        }
        constexpr double add_traffic = 3;  // both read, one written
        const auto sum = fit_line(rows_dkv, add);
        machine_.memory_bytes_per_second = add_traffic / sum.slope;
        machine_.add_memory_ratio = add_traffic;
        machine_.merge_memory_ratio = 5;
        machine_.accumulate_launch_seconds = sum.constant / 2;  // dk and dv in two launches
        const auto begin = fit_line(rows_q, prepare), end = fit_line(rows_all, round);
        machine_.backward.begin_seconds = begin.constant;
        machine_.backward.begin_memory_ratio = begin.slope * machine_.memory_bytes_per_second;
        machine_.backward.end_seconds = end.constant;
        machine_.backward.end_memory_ratio = end.slope * machine_.memory_bytes_per_second;
        source("gpu.memory_gigabytes_per_second", "fitted: sums of gradients, three times their bytes");
        source("accumulate", "fitted to sums of gradients");
        source("accumulate.add_memory_ratio", "counted: both operands read, one written");
        source("accumulate.merge_memory_ratio",
               "counted: per byte of a 16-bit partial, 1 read, and 2 read and 2 written of the fp32 result");
        for (const auto* pass : {"forward", "backward"}) {
            const auto section = fmt::format("attention.{}", pass);
            source(section, "fitted to attends of one GPU in short runs");
            for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys"})
                source(section + key, "the kernel: " + probe_.kernels(problem_));
            source(section + ".groups", "the kernel, and what of it the GPU has room for");
            source(section + ".teraflops", "measured: visible pairs, the best of the timed attends");
        }
        for (const auto* key : {"begin_us", "begin_memory_ratio", "end_us", "end_memory_ratio"}) {
            source(fmt::format("attention.forward.{}", key), "nothing surrounds the attends of a forward pass");
            source(fmt::format("attention.backward.{}", key), "fitted to what surrounds attends, on one GPU");
        }
        double best = 0;
        const auto flop = [&](const TimedAttend& attend, Pass pass) {
            const auto& schedule = *attend.plan->schedule(pass);
            auto ops = schedule.ops(0);
            return schedule.flop(*ops.next()) / attend.seconds;
        };
        for (const auto pass : {Pass::forward, Pass::backward}) {
            best = 0;
            for (const auto& attend : pass == Pass::forward ? forward_ : backward_)
                if (attend.plan->layout().ranks() == 1) best = std::max(best, flop(attend, pass));
            (pass == Pass::forward ? machine_.forward : machine_.backward).flops = best;
        }
    }

    void fit_links() {
        auto& link = machine_.inside_host;
        if (busy_.empty()) {
            source("inside_host", "not calibrated: one GPU");
            source("gpu.attention_memory_gigabytes_per_second", "not calibrated: one GPU");
            machine_.attention_memory_bytes_per_second = 0;
            return;
        }
        std::vector<double> bytes, seconds;
        for (const auto& one : busy_) {
            bytes.push_back(static_cast<double>(one.bytes));
            seconds.push_back(one.message.median);
        }
        const auto line = fit_rising_line(bytes, seconds);
        link.latency_seconds = line.constant;
        link.link_bytes_per_second = 1 / line.slope;
        link.send_memory_ratio = link.receive_memory_ratio = 1;
        source("inside_host", "copy engines have no channels and take no multiprocessors");
        source("inside_host.latency_us", "fitted to copies between all GPUs beside attends");
        source("inside_host.link_gigabytes_per_second", "fitted to copies between all GPUs beside attends");
        source("inside_host.send_memory_ratio", "counted: every byte is read once");
        source("inside_host.receive_memory_ratio", "counted: every byte is written once");
        const auto& most = busy_.back();
        const auto slower = std::max(1.0, most.call_beside.median / most.call_alone.median);
        machine_.attention_memory_bytes_per_second =
            std::min(machine_.memory_bytes_per_second,
                     slower * (machine_.memory_bytes_per_second - 2 * link.link_bytes_per_second));
        source("gpu.attention_memory_gigabytes_per_second",
               fmt::format("fitted: attends beside copies take {:.3f} times as long", slower));
    }

    void source(const std::string& key, const std::string& text) { sources_[key] = text; }

    struct Around {
        std::shared_ptr<const Plan> plan;
        double prepare, add, round;
    };

    const Config& config_;
    GpuProbe& probe_;
    layouts::Problem problem_;
    sim::Machine machine_;
    std::vector<TimedAttend> forward_, backward_;
    std::vector<Around> around_;
    Timed issue_;
    std::vector<TimedBusyLink> busy_;
    std::map<std::string, std::string> sources_;
};

}  // namespace

int calibrate_gpu(const Config& config, GpuProbe& probe) {
    say_when_interrupted("interrupted; no machine file was written");
    GpuCalibration calibration(config, probe);
    calibration.measure();
    calibration.fit();
    double worst = 0, mean = 0;
    const auto table = calibration.table(worst, mean);
    const auto accuracy =
        fmt::format("held-out attends are predicted within {:.1f} %, on average {:.1f} %", worst * 100, mean * 100);
    const auto text = calibration.text(fmt::format(
        "{} {}, as `calibrate` found them with {} arithmetic, heads {}:\n{}.\nHow to read a machine file: see "
        "h200_nvswitch_copy_engine.toml.",
        probe.gpus(), probe.device(), config.arithmetic, config.heads, accuracy));
    write_machine_file(config.output, text);
    fmt::print("{}\n{}.\nMachine file: {}\n", table, accuracy, config.output);
    return 0;
}

}  // namespace ringlab::experiments
