#include "experiments/benchmark/throughput_record.hpp"

#include "experiments/execution/describe_clocks.hpp"
#include "experiments/options/values.hpp"
#include "experiments/study/describe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ringlab::experiments {
namespace {

std::vector<double> flat(const std::vector<std::vector<double>>& rows) {
    std::vector<double> values;
    for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
    return values;
}

/// How fast something was that takes `flop` on each GPU.
void describe_rate(RunWriter& run, const std::string& name, double flop, const Typical& seconds,
                   const std::string& prefix = "rate_") {
    run.attribute(prefix + name, flop / seconds.median, "FLOP/s", "median, per GPU, over visible pairs");
    run.attribute(prefix + name + "_seconds", seconds.median, "s", "median");
    run.attribute(prefix + name + "_spread", seconds.spread, "1", "distance of the quartiles over the median");
}

void describe_samples(RunWriter& run, const std::string& pass, const PassSamples& samples, std::int64_t gpus) {
    const auto group = "measured/" + pass;
    const auto repeats = static_cast<std::int64_t>(samples.seconds.size());
    const std::vector<Dimension> dimensions{{group + "/repeat", repeats}, {"gpu", gpus}};
    run.dataset(group + "/seconds", measured(flat(samples.seconds)), dimensions, "s",
                "from the start of the pass on the first GPU of the ring to its end on this one");
    run.timeline("measured", pass, samples.timeline);
}

void describe_memory(RunWriter& run, const Plan& plan, const std::vector<MemoryShare>& memory) {
    std::int64_t most = 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
        const auto rank = static_cast<int>(i) % plan.layout().ranks();
        most = std::max(most, memory[i].results + memory[i].slots + memory[i].work - gradient_bytes(plan, rank));
    }
    run.attribute(
        "extra_bytes", static_cast<double>(most), "B",
        "device memory of a rank beyond Q, K, V, dO and their gradients, all in the problem's dtype; the most of "
        "any rank");
    const auto column = [&](const char* name, std::int64_t MemoryShare::*field, const char* description) {
        std::vector<std::int64_t> values;
        for (const auto& share : memory) values.push_back(share.*field);
        run.dataset(std::string("measured/memory/") + name, values, {{"gpu", static_cast<std::int64_t>(memory.size())}},
                    "B", description);
    };
    column("inputs", &MemoryShare::inputs, "Q, K, V and dO");
    column("results", &MemoryShare::results, "O in fp32 and in the problem's dtype, lse, dQ, dK and dV likewise");
    column("slots", &MemoryShare::slots, "scratch slots of the schedule");
    column("work", &MemoryShare::work, "running softmax, statistics, work lists");
}

void describe_bursts(RunWriter& run, const CallSamples& call) {
    const auto group = "calls/" + call.name;
    run.dataset(group + "/seconds", measured(flat(call.seconds)),
                {{"round", static_cast<std::int64_t>(call.seconds.size())},
                 {group + "/call", static_cast<std::int64_t>(call.seconds.front().size())}},
                "s", "device time of one call, back to back");
}

void describe_kernels(RunWriter& run, const ThroughputCase& which, const KernelsUsed& used) {
    run.attribute("kernels", which.kernels);
    run.attribute("kernels_forward", used.forward);
    run.attribute("kernels_backward", used.backward);
}

bool is_forward(const std::string& call) { return call.find("forward") != std::string::npos; }

}  // namespace

Typical typical(const std::vector<double>& samples) {
    require(!samples.empty(), "nothing was timed");
    const double middle = percentile(samples, 50);
    return {middle, (percentile(samples, 75) - percentile(samples, 25)) / middle};
}

Typical typical(const std::vector<std::vector<double>>& rounds) {
    std::vector<double> medians;
    for (const auto& round : rounds) medians.push_back(typical(round).median);
    return typical(medians);
}

Typical typical_of_burst(const std::vector<double>& passes) {
    require(passes.size() >= 2, "a burst of {} pass: there must be two or more", passes.size());
    return typical(std::vector<double>(passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2), passes.end()));
}

std::vector<double> slowest(const std::vector<std::vector<double>>& seconds) {
    std::vector<double> most;
    for (const auto& ranks : seconds) most.push_back(*std::max_element(ranks.begin(), ranks.end()));
    return most;
}

void describe_ring(RunWriter& run, const ThroughputCase& which, const Plan& plan, const RingSamples& samples) {
    describe_case(run, which.which, plan);
    run.attribute("kind", std::string(which.kind == ThroughputCase::Kind::ring ? "ring" : "same work"));
    run.attribute("shape", which.shape);
    run.attribute("transport", which.transport);
    describe_kernels(run, which, samples.kernels);
    run.attribute("gpus", which.gpus);
    run.attribute("devices", samples.devices);
    const auto forward = typical(slowest(samples.forward.seconds)),
               backward = typical(slowest(samples.backward.seconds));
    const double forward_flop = pass_flop(*plan.forward) / which.which.ranks;
    const double backward_flop = pass_flop(*plan.backward) / which.which.ranks;
    describe_rate(run, "forward", forward_flop, forward);
    describe_rate(run, "backward", backward_flop, backward);
    const double both = forward.median + backward.median;
    describe_rate(run, "both", forward_flop + backward_flop,
                  {both, (forward.median * forward.spread + backward.median * backward.spread) / both});
    run.attribute("issue_seconds_forward", typical(slowest(samples.forward.issue)).median, "s",
                  "host time until a pass was enqueued, waiting for peers included; median, slowest rank");
    run.attribute("issue_seconds_backward", typical(slowest(samples.backward.issue)).median, "s",
                  "host time until a pass was enqueued, waiting for peers included; median, slowest rank");
    for (const auto& [pass, period] :
         {std::pair{"forward", samples.forward.period}, {"backward", samples.backward.period}})
        run.attribute(fmt::format("period_{}", pass), period, "s", "from a pass's start to that of the next, mean");
    describe_samples(run, "forward", samples.forward, which.gpus);
    describe_samples(run, "backward", samples.backward, which.gpus);
    describe_memory(run, plan, samples.memory);
    run.attribute("clock_uncertainty", samples.clock_uncertainty, "s",
                  "by how much times of different ranks may disagree");
    describe_clocks(run, samples.clocks);
}

namespace {

/// The column that tells how many times cuDNN's rate ours is, from seconds that are compared one by one.
void describe_ratio(RunWriter& run, const std::string& column, const std::vector<double>& own,
                    const std::vector<double>& theirs, const std::string& over) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < own.size(); ++i) ratios.push_back(theirs[i] / own[i]);
    const auto ratio = typical(ratios);
    run.attribute(column, ratio.median, "1", "rate over that of cuDNN, median over " + over);
    run.attribute(column + "_spread", ratio.spread, "1", "distance of the quartiles over the median");
}

/// Calls ratio(own, seconds of own, seconds of cuDNN's) for each of our calls that has cuDNN's beside it.
template <class Ratio>
void for_each_compared(const std::map<std::string, std::vector<double>>& seconds, const Ratio& ratio) {
    for (const auto& [name, own] : seconds) {
        const auto theirs = seconds.find(is_forward(name) ? "cudnn_forward" : "cudnn_backward");
        if (!name.starts_with("cudnn") && theirs != seconds.end()) ratio(name, own, theirs->second);
    }
}

}  // namespace

void describe_device(RunWriter& run, const ThroughputCase& which, const Plan& plan, const DeviceSamples& samples) {
    describe_case(run, which.which, plan);
    run.attribute("kind", std::string("device"));
    run.attribute("shape", which.shape);
    describe_kernels(run, which, samples.kernels);
    for (const auto& [name, reason] : samples.absent) run.attribute("absent_" + name, reason);
    std::map<std::string, std::vector<double>> medians;  // by call, round by round
    for (const auto& call : samples.calls) {
        const double flop = pass_flop(is_forward(call.name) ? *plan.forward : *plan.backward);
        const auto seconds = typical(call.seconds);
        describe_rate(run, call.name, flop, seconds);
        describe_bursts(run, call);
        for (const auto& round : call.seconds) medians[call.name].push_back(typical(round).median);
    }
    // Round by round, since a round's calls met the same clocks.
    for_each_compared(medians, [&](const auto& name, const auto& own, const auto& theirs) {
        describe_ratio(run, "ratio_" + name, own, theirs, "rounds");
    });
    std::map<std::string, std::vector<double>> last;  // passes of bursts that count, by call
    for (const auto& call : samples.bursts) {
        const auto& passes = call.seconds.front();
        const double flop = pass_flop(is_forward(call.name) ? *plan.forward : *plan.backward);
        describe_rate(run, call.name, flop, typical_of_burst(passes), "burst_rate_");
        run.dataset("bursts/" + call.name + "/seconds", measured(passes),
                    {{"bursts/pass", static_cast<std::int64_t>(passes.size())}}, "s",
                    "device time of single passes, inputs drawn anew and L2 cleared before each; the first half is "
                    "not counted");
        last[call.name] = {passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2), passes.end()};
    }
    for_each_compared(last, [&](const auto& name, const auto& own, const auto& theirs) {
        describe_ratio(run, "burst_ratio_" + name, own, theirs, "passes");
    });
    describe_clocks(run, samples.clocks);
}

void describe_ceilings(RunWriter& run, const CeilingSamples& samples) {
    run.attribute("kind", std::string("ceilings"));
    for (const auto& [name, reason] : samples.products.absent) run.attribute("absent_" + name, reason);
    for (const auto& call : samples.products.calls) {
        describe_rate(run, call.name, samples.flop, typical(call.seconds));
        describe_bursts(run, call);
    }
    std::map<std::string, std::vector<const LinkSamples*>> by_transport;
    for (const auto& link : samples.links) by_transport[link.transport].push_back(&link);
    for (const auto& [transport, links] : by_transport) {
        const auto group = "link/" + transport;
        std::vector<double> seconds, bandwidth;
        std::vector<std::int64_t> bytes;
        for (const auto* link : links) {
            seconds.insert(seconds.end(), link->seconds.begin(), link->seconds.end());
            bandwidth.push_back(static_cast<double>(link->bytes) / typical(link->seconds).median);
            bytes.push_back(link->bytes);
        }
        const auto sizes = static_cast<std::int64_t>(bytes.size());
        run.dimension(group + "/message", bytes, "B", "size of a message");
        run.dataset(group + "/bandwidth", bandwidth, {{group + "/message", sizes}}, "B/s",
                    "median, every GPU sending to its right neighbour, of the slowest");
        run.dataset(group + "/seconds", measured(seconds), {{group + "/message", sizes}, {group + "/repeat"}}, "s",
                    "of a message, mean of several in a row, of the slowest GPU");
    }
    describe_clocks(run, samples.products.clocks);
}

}  // namespace ringlab::experiments
