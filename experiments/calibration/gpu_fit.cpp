#include "experiments/calibration/gpu_fit.hpp"

#include "experiments/calibration/executed_passes.hpp"
#include "experiments/calibration/gpu_measure.hpp"
#include "experiments/study/least_squares.hpp"
#include "layouts/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using Turn = sim::TileModel::Turn;

const std::map<std::string, Turn> forward_calls{{"forward_kept", {true, true}},
                                                {"forward_first", {true, false}},
                                                {"forward_carried", {false, false}},
                                                {"forward_last_kept", {false, true}}};

class GpuFit {
public:
    GpuFit(const GpuSamples& samples, std::string transport)
        : all_(samples), transport_(std::move(transport)), passes_(executed_passes(samples)) {
        fitted_.machine = samples.machine;
    }

    FittedMachine fit() {
        collect_attends();
        fit_attention(machine(), Pass::forward, fitted_.forward);
        fit_attention(machine(), Pass::backward, fitted_.backward);
        fit_accumulation();
        fit_surroundings();
        fit_rates();
        fit_clocks();
        fit_host();
        fit_links();
        machine().name = fmt::format("{} {}", all_.gpus, all_.device);
        machine().description = fmt::format("one host; blocks travel by {}; calibrated on parts, none of them a ring",
                                            transport_ == "nccl" ? "NCCL" : "copy engine");
        source("topology", "this machine");
        source("gpu.multiprocessors", "this machine");
        return std::move(fitted_);
    }

private:
    sim::Machine& machine() { return fitted_.machine; }
    sim::AttentionCost& cost(Pass pass) { return pass == Pass::forward ? machine().forward : machine().backward; }
    std::vector<TimedAttend>& attends(Pass pass) { return pass == Pass::forward ? fitted_.forward : fitted_.backward; }
    void source(const std::string& key, const std::string& text) { fitted_.sources[key] = text; }

    std::vector<const GpuSample*> of(const std::string& kind, const std::string& call = "") const {
        std::vector<const GpuSample*> found;
        for (const auto& sample : all_.samples)
            if (sample.kind == kind && (call.empty() || sample.call == call)) found.push_back(&sample);
        require(!found.empty(), "the samples hold no {} {}", kind, call);
        return found;
    }

    static bool is_held_out(const GpuSample& sample) {
        return sample.ranks == 4 || sample.mask.find("window") == 0 ||
               sample.mask.find("documents") != std::string::npos;
    }

    std::shared_ptr<const Plan> plan(const GpuSample& sample) {
        auto& known = plans_[fmt::format("{} {} {} {} {}", sample.mask, sample.layout, sample.algorithm, sample.ranks,
                                         sample.tokens_per_rank)];
        if (!known) known = plan_of(sample, all_);
        return known;
    }

    /// Of short passes the attends are those that the executor launched, with the seam to the next kernel, since what
    /// they find in caches, and what launching takes, is most of it; of long ones, which power slows down, those that
    /// were timed in short runs with rests.
    static constexpr std::int64_t short_pass = 4096;

    void collect_attends() {
        seam_ = gap_between_kernels() - cost_of_timing();
        for (const auto* sample : of("attend")) {
            const auto forward = forward_calls.find(sample->call);
            const bool is_backward = sample->call == "backward_block";
            if (forward == forward_calls.end() && !is_backward) continue;
            if (sample->tokens_per_rank <= short_pass) continue;
            attends(is_backward ? Pass::backward : Pass::forward)
                .push_back({plan(*sample), sample->rank, sample->block, is_backward ? Turn{} : forward->second,
                            sample->seconds, is_held_out(*sample), sample->call});
        }
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.algorithm() != "ring") continue;
            if (pass.plan->layout().shard_tokens(0) > short_pass) continue;
            const bool held_out = pass.ranks() > 1 && pass.plan->mask().name() == "full";
            for (const auto& [op, rank, posted, begin, seconds] : pass.operations) {
                if (op.kind != layouts::OpKind::attend || pass.transfers_between(begin, begin + seconds)) continue;
                const bool backward = pass.pass == Pass::backward;
                attends(pass.pass).push_back({pass.plan, rank, op.part.block,
                                              backward ? Turn{} : Turn{op.begins, op.ends}, seconds + seam_, held_out,
                                              "in a pass"});
            }
        }
    }

    /// From the end of one kernel to the begin of the next, on the same stream.
    double gap_between_kernels() const {
        std::vector<double> gaps;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.algorithm() != "ring") continue;
            const auto computing = pass.computing();
            for (std::size_t i = 1; i < computing.size(); ++i)
                gaps.push_back(computing[i].begin - computing[i - 1].begin - computing[i - 1].seconds);
        }
        require(!gaps.empty(), "the samples hold no pass of ranks that take turns");
        return std::max(0.0, median_of(std::move(gaps)));
    }

    /// What passes of which every operation is timed take longer, for each that computes.
    double cost_of_timing() const {
        std::vector<double> more;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.algorithm() != "ring" || pass.ranks() == 1) continue;
            if (pass.pass != Pass::forward || pass.plan->layout().shard_tokens(0) > short_pass) continue;
            const auto computing = pass.computing();
            more.push_back((computing.back().begin + computing.back().seconds - pass.seconds) /
                           static_cast<double>(computing.size()));
        }
        return more.empty() ? 0 : std::max(0.0, median_of(std::move(more)));
    }

    static double median_of(std::vector<double> values) {
        const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
        std::nth_element(values.begin(), middle, values.end());
        return *middle;
    }

    static double bytes_of_rows(const Plan& plan, std::int64_t numbers) {
        return static_cast<double>(plan.problem.batch * plan.layout().shard_tokens(0) * numbers);
    }

    /// The rate of memory by the sum of two gradients, whose bytes are counted; sums, merges and copies as the executor
    /// launched them.
    void fit_accumulation() {
        std::vector<double> rows_dkv, sums;
        for (const auto* sample : of("attend", "backward_add")) {
            const auto& one = *plan(*sample);
            rows_dkv.push_back(
                bytes_of_rows(one, one.problem.kv_heads * (one.problem.head_dim + one.problem.value_dim) * 4));
            sums.push_back(sample->seconds);
        }
        constexpr double add_traffic = 3;  // both read, one written
        auto& m = machine();
        m.memory_bytes_per_second = add_traffic / fit_rising_line(rows_dkv, sums).slope;
        source("gpu.memory_gigabytes_per_second", "fitted: sums of gradients, three times their bytes");
        std::map<layouts::OpKind, std::pair<std::vector<double>, std::vector<double>>> timed;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback") continue;
            for (const auto& one : pass.operations) {
                const bool combines = one.op.lane() == layouts::compute_lane && one.op.kind != layouts::OpKind::attend;
                if (!combines || one.op.bytes == 0) continue;
                timed[one.op.kind].first.push_back(static_cast<double>(one.op.bytes));
                timed[one.op.kind].second.push_back(one.seconds + seam_);
            }
        }
        const auto line_of = [&](layouts::OpKind kind) {
            const auto found = timed.find(kind);
            require(found != timed.end() && found->second.first.size() >= 2, "the samples hold no {}", to_string(kind));
            auto line = fit_line(found->second.first, found->second.second);
            line.slope *= m.memory_bytes_per_second;
            return line;
        };
        const auto add = line_of(layouts::OpKind::add), copy = line_of(layouts::OpKind::copy);
        m.accumulate_launch_seconds = add.constant;
        m.add_memory_ratio = add.slope;
        m.merge_memory_ratio = timed.contains(layouts::OpKind::merge) ? line_of(layouts::OpKind::merge).slope : 5;
        m.copy_launch_seconds = copy.constant;
        m.copy_memory_ratio = copy.slope;
        source("accumulate", "fitted to passes of ranks that take turns on one GPU");
        if (!timed.contains(layouts::OpKind::merge))
            source("accumulate.merge_memory_ratio",
                   "counted: per byte of a 16-bit partial, 1 read, and 2 read and 2 written of the fp32 result");
    }

    /// What is before the first attend of a pass of one rank, and behind the last.
    void fit_surroundings() {
        for (const auto pass : {Pass::forward, Pass::backward}) {
            std::vector<double> rows_q, rows_all, begins, ends;
            for (const auto& one : passes_) {
                if (one.transport != "loopback" || one.ranks() > 1 || one.pass != pass) continue;
                const auto& problem = one.plan->problem;
                const auto q = problem.query_heads * problem.head_dim * layouts::bytes_of(problem.dtype);
                const auto kv =
                    problem.kv_heads * (problem.head_dim + problem.value_dim) * layouts::bytes_of(problem.dtype);
                const auto computing = one.computing();
                rows_q.push_back(bytes_of_rows(*one.plan, q));
                rows_all.push_back(bytes_of_rows(*one.plan, q + kv));
                begins.push_back(std::max(1e-7, computing.front().begin));
                ends.push_back(std::max(1e-7, one.seconds - computing.back().begin - computing.back().seconds - seam_));
            }
            auto& cost = this->cost(pass);
            const auto memory = machine().memory_bytes_per_second;
            const auto begin = fit_line(rows_q, begins), end = fit_line(rows_all, ends);
            cost.begin_seconds = begin.constant;
            cost.begin_memory_ratio = begin.slope * memory;
            cost.end_seconds = end.constant;
            cost.end_memory_ratio = end.slope * memory;
            for (const auto* key : {"begin_us", "begin_memory_ratio", "end_us", "end_memory_ratio"})
                source(fmt::format("attention.{}.{}", to_string(pass), key),
                       "fitted to passes of one rank by the executor");
        }
    }

    void fit_rates() {
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto section = fmt::format("attention.{}", to_string(pass));
            source(section, "fitted to attends of one GPU in short runs");
            for (const auto* key : {".head_dim", ".value_dim", ".tile_rows", ".tile_keys"})
                source(section + key, "the kernel: " + all_.kernels);
            source(section + ".groups", "the kernel, and what of it the GPU has room for");
            source(section + ".teraflops", "measured: visible pairs, the best of the timed attends");
            double best = 0;
            for (const auto& attend : attends(pass)) {
                if (attend.plan->layout().ranks() > 1) continue;
                const auto& schedule = *attend.plan->schedule(pass);
                auto ops = schedule.ops(0);
                best = std::max(best, schedule.flop(*ops.next()) / attend.seconds);
            }
            cost(pass).flops = best;
        }
    }

    /// What never rests takes longer than the fitted costs say, by the clock that it has; power goes as rate x clock^2.
    void fit_clocks() {
        constexpr double free = 0.95;  // above such a clock it is not power that bounds it
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto* call = pass == Pass::forward ? "forward_kept" : "backward_block";
            std::vector<double> found;
            std::string tokens;
            for (const auto* sample : of("sustained", call)) {
                const auto whole = plan(*sample);
                if (sample->tokens_per_rank <= short_pass) continue;
                const double clock = predicted_seconds({whole, 0, 0, {}}, pass, machine()) / sample->seconds;
                if (clock > free) continue;
                const auto& schedule = *whole->schedule(pass);
                auto ops = schedule.ops(0);
                found.push_back(schedule.flop(*ops.next()) / sample->seconds * clock * clock);
                tokens += fmt::format("{}{}", tokens.empty() ? "" : ", ", sample->tokens_per_rank);
            }
            const auto key = fmt::format("attention.{}.power_teraflops", to_string(pass));
            source(key, "measured: attends that never rest run at the clock of those that do");
            if (found.empty()) continue;
            double sum = 0;
            for (const auto one : found) sum += one / static_cast<double>(found.size());
            const auto [low, high] = std::minmax_element(found.begin(), found.end());
            cost(pass).power_flops = sum;
            source(key, fmt::format("measured: rates of launches without rests times the square of their clocks, {} "
                                    "tokens, {:.4g} to {:.4g}",
                                    tokens, *low / 1e12, *high / 1e12));
        }
    }

    bool has_messages() const {
        return std::any_of(passes_.begin(), passes_.end(), [&](const ExecutedPass& pass) {
            return pass.transport == transport_ && pass.issued(0).transfers > 0;
        });
    }

    static constexpr std::int64_t next_to_nothing = 512;  // tokens of passes that the host is longer at than the GPU

    /// Host time of short passes of ranks that take turns, over their launches and transfers; and over a transport,
    /// where hosts also wait for each other, what is more for each transfer.
    void fit_host() {
        std::vector<double> matrix, ones;
        for (const auto& pass : passes_) {
            if (pass.transport != "loopback" || pass.plan->layout().shard_tokens(0) > next_to_nothing) continue;
            const auto issued = pass.issued(0);
            for (const double count :
                 {1.0, double(issued.launches * pass.ranks()), double(issued.transfers * pass.ranks())})
                matrix.push_back(count / pass.issue);
            ones.push_back(1);
        }
        require(ones.size() >= 3, "the samples hold {} short passes on one GPU; they must hold 3", ones.size());
        const auto found = nonnegative_least_squares(matrix, ones, 3);
        // What is not by operation is mostly at the end of a pass; an empty pass tells what is before its first launch.
        machine().pass_issue_seconds = std::max(0.0, machine().forward.begin_seconds - found[1]);
        machine().compute_issue_seconds = found[1];
        machine().transfer_issue_seconds = found[2];
        source("host", "fitted to the host's time of short passes on one GPU");
        source("host.pass_issue_us", "fitted to passes of one rank: before their first launch, less its own time");
        if (!has_messages()) return;
        std::vector<double> transfers, rest;
        for (const auto& pass : passes_) {
            if (pass.transport != transport_ || pass.algorithm() != "ring") continue;
            if (pass.plan->layout().shard_tokens(0) > next_to_nothing) continue;
            transfers.push_back(pass.issued(0).transfers);
            rest.push_back(pass.issue - found[1] * pass.issued(0).launches);
        }
        machine().transfer_issue_seconds = fit_rising_line(transfers, rest).slope;
        source("host.transfer_issue_us",
               fmt::format("fitted to the host's time of short passes over {}, by transfer", transport_));
    }

    void fit_links() {
        auto& link = machine().inside_host;
        auto& m = machine();
        if (transport_.empty()) {
            source("inside_host", "not calibrated: one GPU");
            source("gpu.attention_memory_gigabytes_per_second", "not calibrated: one GPU");
            m.attention_memory_bytes_per_second = 0;
            return;
        }
        std::vector<double> bytes, seconds;
        for (const auto& pass : passes_) {
            if (pass.transport != transport_ || pass.algorithm() != "ring") continue;
            std::map<std::int64_t, std::vector<double>> by_size;
            for (const auto& one : pass.operations)
                if (one.op.kind == layouts::OpKind::receive) by_size[one.op.bytes].push_back(one.seconds);
            for (auto& [size, all_times] : by_size) {
                bytes.push_back(static_cast<double>(size));
                seconds.push_back(median_of(std::move(all_times)));
            }
        }
        if (!has_messages())
            for (const auto* sample : of("message")) {
                if (sample->transport != transport_) continue;
                bytes.push_back(static_cast<double>(sample->bytes));
                seconds.push_back(sample->seconds);
            }
        const auto line = fit_rising_line(bytes, seconds);
        link.latency_seconds = line.constant;
        link.link_bytes_per_second = 1 / line.slope;
        const auto* messages = has_messages() ? "fitted to messages between all GPUs that compute next to nothing"
                                              : "fitted to copies between all GPUs beside attends";
        source("inside_host.latency_us", messages);
        source("inside_host.link_gigabytes_per_second", messages);
        double alone = 0, beside = 0;
        for (const auto* sample : of("alone"))
            if (sample->transport == transport_) alone = sample->seconds;
        for (const auto* sample : of("beside"))
            if (sample->transport == transport_) beside = sample->seconds;
        const auto slower = std::max(1.0, beside / alone);
        transport_ == "nccl" ? fit_kernels_of_links(slower) : fit_copy_engines(slower);
    }

    void fit_copy_engines(double slower) {
        auto& m = machine();
        m.inside_host.send_memory_ratio = m.inside_host.receive_memory_ratio = 1;
        source("inside_host", "copy engines have no channels and take no multiprocessors");
        source("inside_host.send_memory_ratio", "counted: every byte is read once");
        source("inside_host.receive_memory_ratio", "counted: every byte is written once");
        m.attention_memory_bytes_per_second = std::min(
            m.memory_bytes_per_second, slower * (m.memory_bytes_per_second - 2 * m.inside_host.link_bytes_per_second));
        source("gpu.attention_memory_gigabytes_per_second",
               fmt::format("fitted: attends beside copies take {:.3f} times as long", slower));
    }

    /// A kernel of both directions takes multiprocessors from attends; the executor has one for each direction.
    void fit_kernels_of_links(double slower) {
        auto& m = machine();
        m.inside_host.send_memory_ratio = m.inside_host.receive_memory_ratio = 1.25;
        m.inside_host.multiprocessors_per_channel = 1;
        const auto channels = std::round(m.multiprocessors * (1 - 1 / slower));
        m.inside_host.channels = {{std::numeric_limits<double>::infinity(), std::max(1.0, channels)}};
        source("inside_host", "the link's rate is that of all channels, each a multiprocessor at both ends");
        source("inside_host.channels",
               fmt::format("fitted: attends beside messages take {:.3f} times as long", slower));
        for (const auto* key : {"send", "receive"})
            source(fmt::format("inside_host.{}_memory_ratio", key),
                   "reported: 2 to 3 times the link bytes in all, taken as 2.5 and halved");
        source("gpu.attention_memory_gigabytes_per_second", "none: what attends lose is in the multiprocessors");
        m.attention_memory_bytes_per_second = 0;
        // Whose blocks take item after item: those of the family for sm_90a, forward.
        using Room = sim::AttentionCost::Room;
        m.forward.room = all_.kernels == "hopper" ? Room::at_the_end : Room::as_items_end;
        m.backward.room = Room::as_items_end;
    }

    const GpuSamples& all_;
    const std::string transport_;
    const std::vector<ExecutedPass> passes_;
    double seam_ = 0;  // between two kernels, less what timing an operation adds
    FittedMachine fitted_;
    std::map<std::string, std::shared_ptr<const Plan>> plans_;
};

}  // namespace

FittedMachine fit_gpu(const GpuSamples& samples, const std::string& transport) {
    return GpuFit(samples, transport).fit();
}

}  // namespace ringlab::experiments
