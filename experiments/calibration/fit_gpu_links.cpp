#include "experiments/calibration/fit_gpu.hpp"
#include "experiments/calibration/least_squares.hpp"
#include "experiments/options/values.hpp"
#include "layouts/basics/require.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>

namespace ringlab::experiments {
namespace {

constexpr double long_message = 4 << 20;       // bytes from which on the rate dominates
constexpr std::int64_t next_to_nothing = 512;  // tokens up to which a pass takes the host longer than the GPU

/// Fits the slope to long messages alone, because the times of short ones are uncertain by some microseconds. The
/// constant is then what short messages take in addition.
Line line_of_long_and_short(const Moved& messages) {
    Moved longer, shorter;
    for (std::size_t i = 0; i < messages.bytes.size(); ++i)
        (messages.bytes[i] < long_message ? shorter : longer).add(messages.bytes[i], messages.seconds[i]);
    if (longer.bytes.size() < 4 || shorter.bytes.empty()) return messages.rising_line();
    const auto slope = longer.rising_line().slope;
    for (std::size_t i = 0; i < shorter.bytes.size(); ++i) shorter.seconds[i] -= slope * shorter.bytes[i];
    return {std::max(0.0, median(std::move(shorter.seconds))), slope};
}

/// `alone`: only from passes whose messages are all on one channel, so that each has its sender's outgoing link to
/// itself.
Moved messages_over(const std::vector<ExecutedPass>& passes, const std::string& transport, bool alone) {
    Moved found;
    for (const auto& pass : passes) {
        if (pass.transport != transport || pass.schedule_name() != "ring") continue;
        if (alone && pass.schedule().channels().size() > 1) continue;
        std::map<std::int64_t, std::vector<double>> by_size;
        for (const auto& one : pass.operations)
            if (one.op.kind == layouts::OpKind::receive) by_size[one.op.bytes].push_back(one.seconds.median);
        for (auto& [size, all_times] : by_size) found.add(static_cast<double>(size), median(std::move(all_times)));
    }
    return found;
}

void fit_copy_engines(GpuFit& fit) {
    auto& m = fit.machine;
    m.inside_host.send_memory_ratio = m.inside_host.receive_memory_ratio = 1;
    fit.sources["inside_host"] = "copy engines have no channels and take no multiprocessors";
    fit.sources["inside_host.send_memory_ratio"] = "counted: every byte is read once";
    fit.sources["inside_host.receive_memory_ratio"] = "counted: every byte is written once";
}

/// Fits messages that are kernels. The kernels of both directions take SMs from attends, half of these SMs for each
/// direction. The channels limit the rate of a kernel. The rate of the link is that of copy engines. `share`: the
/// fraction of all SMs that messages of both directions hold together.
void fit_kernels_of_links(GpuFit& fit, double share) {
    auto& m = fit.machine;
    auto& sources = fit.sources;
    const auto copies = messages_over(fit.passes, "copy", false);
    m.inside_host.send_memory_ratio = m.inside_host.receive_memory_ratio = 1.25;
    m.inside_host.carrier = sim::LinkCost::Carrier::kernels;
    m.inside_host.sms_per_channel = 1;
    const auto channels = std::max(1.0, std::round(m.sms * share / 2));
    m.inside_host.channels = {{std::numeric_limits<double>::infinity(), channels}};
    sources["inside_host"] = "the link's rate is that of all channels, each a multiprocessor at both ends";
    if (copies.bytes.size() >= 2) {
        const auto rate = m.inside_host.link_bytes_per_second;
        m.inside_host.channel_bytes_per_second = rate / channels;
        m.inside_host.link_bytes_per_second = std::max(rate, 1 / line_of_long_and_short(copies).slope);
        sources["inside_host.channel_gigabytes_per_second"] =
            "fitted to messages that have the link to themselves, between all GPUs that compute next to nothing";
        sources["inside_host.link_gigabytes_per_second"] = "fitted to copies by the engines, over the same links";
    }
    sources["inside_host.channels"] = fmt::format(
        "fitted: attends lose {:.3f} of their rate to messages of both directions, while these are there", share);
    for (const auto* key : {"send", "receive"})
        sources[fmt::format("inside_host.{}_memory_ratio", key)] =
            "reported: 2 to 3 times the link bytes in all, taken as 2.5 and halved";
    // Thread blocks of the forward kernels for sm_90a take one work tile after another, so no SM is free before the
    // attend ends.
    using TransferStart = sim::AttentionCost::TransferStart;
    m.forward.transfer_start =
        fit.samples.kernels == "hopper" ? TransferStart::at_the_end : TransferStart::as_work_tiles_end;
    m.backward.transfer_start = TransferStart::as_work_tiles_end;
}

/// Fits what a message of several pieces takes in addition to a message of one piece.
void fit_pieces(GpuFit& fit) {
    auto& link = fit.machine.inside_host;
    std::vector<double> matrix, more;
    std::int64_t most = 1;
    for (const auto& pass : fit.passes) {
        if (pass.transport != "nccl" || pass.schedule_name() != "ulysses") continue;
        const auto& schedule = pass.schedule();
        for (const auto& one : pass.operations) {
            if (one.op.kind != layouts::OpKind::receive) continue;
            const auto pieces = sim::pieces_of(schedule, one.op);
            if (pieces < 4) continue;  // what a sender has in more pieces, it sends while attends run
            most = std::max(most, pieces);
            const auto whole = one.seconds.median, seconds = whole - link.latency_seconds;
            if (seconds <= 0) continue;
            matrix.insert(matrix.end(),
                          {static_cast<double>(pieces - 1) / whole, static_cast<double>(one.op.bytes) / whole});
            more.push_back(seconds / whole);
        }
    }
    if (more.size() < 4) return;
    const auto found = nonnegative_least_squares(matrix, more, 2);
    link.piece_seconds = found.values[0];
    if (found.values[1] > 0) link.pieces_bytes_per_second = 1 / found.values[1];
    const auto measured =
        fmt::format("messages of 8 to {} pieces, between all GPUs that compute next to nothing", most);
    fit.sources["pieces"] = "fitted to " + measured;
    if (!found.determined[1]) fit.sources["pieces.gigabytes_per_second"] = not_determined_by(measured);
}

/// The values of `figure`, a host time of the machine, with which nearly empty passes are predicted to take as long as
/// they did.
struct IssueTimes {
    double median, low, high;  // median and quartiles, seconds
    std::size_t count;
};

template <class Counts>
std::optional<IssueTimes> issue_times(const GpuFit& fit, double& figure, Counts counts) {
    constexpr double most = 100e-6;
    sim::SimOptions short_run;
    short_run.clock = sim::Clock::calibrated;
    std::vector<double> found;
    for (const auto& pass : fit.passes) {
        if (pass.transport != fit.transport || pass.plan->layout().shard_tokens(0) > next_to_nothing) continue;
        if (pass.issued(0).transfers == 0 || !counts(pass)) continue;
        double low = 0, high = most;
        for (int halvings = 0; halvings < 16; ++halvings) {
            figure = (low + high) / 2;
            const auto makespan = sim::simulate(pass.schedule(), fit.machine, short_run).makespan;
            (layouts::to_seconds(makespan) > pass.seconds ? high : low) = figure;
        }
        found.push_back(figure);
    }
    if (found.empty()) return {};
    std::ranges::sort(found);
    const auto count = found.size();
    return IssueTimes{median(found), found[count / 4], found[count * 3 / 4], count};
}

}  // namespace

void fit_transfer_issue(GpuFit& fit) {
    const auto is_split_by_heads = [](const ExecutedPass& pass) { return pass.schedule_name() == "ulysses"; };
    auto& m = fit.machine;
    if (const auto found = issue_times(fit, m.transfer_issue_seconds, std::not_fn(is_split_by_heads))) {
        m.transfer_issue_seconds = found->median;
        fit.sources["host.transfer_issue_us"] = fmt::format(
            "fitted to {} passes over {} that compute next to nothing, each as long as it took with none of its "
            "operations timed: median, quartiles {:.1f} and {:.1f}",
            found->count, fit.transport, found->low * 1e6, found->high * 1e6);
    }
    auto& of_piece = m.inside_host.piece_issue_seconds;
    if (m.inside_host.piece_seconds == 0) return;
    if (const auto found = issue_times(fit, of_piece, is_split_by_heads)) {
        of_piece = found->median;
        fit.sources["pieces.issue_us"] = fmt::format(
            "fitted likewise to {} passes whose messages are of many pieces: median, quartiles {:.1f} and {:.1f}",
            found->count, found->low * 1e6, found->high * 1e6);
    }
}

void fit_links(GpuFit& fit) {
    const auto& transport = fit.transport;
    auto& m = fit.machine;
    auto& sources = fit.sources;
    m.attention_memory_bytes_per_second = 0;
    sources["gpu.attention_memory_gigabytes_per_second"] = "none: rings are predicted as well without it";
    if (transport.empty()) {
        sources["inside_host"] = "not calibrated: one GPU";
        return;
    }
    const bool kernels = transport == "nccl";
    const auto messages = messages_over(fit.passes, transport, kernels);
    require(messages.bytes.size() >= 2, "the samples hold no messages over {}", transport);
    const auto line = line_of_long_and_short(messages);
    m.inside_host.latency_seconds = line.constant;
    m.inside_host.link_bytes_per_second = 1 / line.slope;
    for (const auto* key : {"latency_us", "link_gigabytes_per_second"})
        sources[fmt::format("inside_host.{}", key)] =
            "fitted to messages between all GPUs that compute next to nothing";
    if (!line.has_slope) sources["inside_host.latency_us"] = not_determined_by("messages of one size");
    if (!kernels) return fit_copy_engines(fit);
    double alone = 0, period = 0;
    // Share of the SMs that messages hold while they are there. They come when an attend ends, and some not
    // before: then a call takes in one of them.
    std::vector<double> shares;
    for (const auto& sample : fit.samples.samples) {
        if (sample.transport != transport) continue;
        if (sample.kind == SampleKind::message) period = sample.seconds;
        if (sample.kind == SampleKind::alone) alone = sample.seconds;
        if (sample.kind != SampleKind::beside) continue;
        const auto message = line.constant + line.slope * static_cast<double>(sample.bytes);
        if (static_cast<double>(sample.bytes) >= long_message)
            shares.push_back((1 - alone / sample.seconds) / std::min(1.0, message / period));
    }
    require(alone > 0 && !shares.empty(), "the samples hold no attends beside messages over {}", transport);
    fit_kernels_of_links(fit, std::max(0.0, median(std::move(shares))));
    fit.machine.inside_host.halves = sim::LinkCost::SmHoldStart::both_ready_backward;
    fit_pieces(fit);
}

}  // namespace ringlab::experiments
