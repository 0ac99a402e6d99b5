#include "experiments/benchmark/throughput_record.hpp"

#include "experiments/console/table.hpp"
#include "experiments/options/values.hpp"
#include "experiments/study/describe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace ringlab::experiments {
namespace {

using Kind = ThroughputCase::Kind;

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

void describe_pass(RunWriter& run, layouts::Pass pass, const PassRun& samples, std::int64_t gpus) {
    const std::string name = to_string(pass), group = "measured/" + name;
    run.attribute("issue_seconds_" + name, typical(slowest(samples.issue)).median, "s",
                  "host time until a pass was enqueued, waiting for peers included; median, slowest rank");
    run.attribute("period_" + name, samples.period, "s", "from a pass's start to that of the next, mean");
    const auto repeats = static_cast<std::int64_t>(samples.seconds.size());
    const std::vector<Dimension> dimensions{{group + "/repeat", repeats}, {"gpu", gpus}};
    run.dataset(group + "/seconds", measured(flat(samples.seconds)), dimensions, "s",
                "from the start of the pass on the first GPU of the ring to its end on this one");
    run.timeline("measured", name, samples.timeline());
}

void describe_memory(RunWriter& run, const Plan& plan, const std::vector<MemoryShare>& memory) {
    const auto& p = plan.problem;
    const auto gradients_of_token =
        p.batch * (p.query_heads * p.head_dim + p.kv_heads * (p.head_dim + p.value_dim)) * layouts::bytes_of(p.dtype);
    std::int64_t most = 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
        const auto rank = static_cast<int>(i) % plan.layout().ranks();
        most = std::max(
            most, memory[i].results + memory[i].scratch() - plan.layout().shard_tokens(rank) * gradients_of_token);
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

void describe_call(RunWriter& run, const CallTimes& call, double flop) {
    describe_rate(run, call.name, flop, typical_of_rounds(call.seconds));
    const auto group = "calls/" + call.name;
    run.dataset(group + "/seconds", measured(flat(call.seconds)),
                {{"round", static_cast<std::int64_t>(call.seconds.size())},
                 {group + "/call", static_cast<std::int64_t>(call.seconds.front().size())}},
                "s", "device time of one call, back to back");
}

/// What all runs of plans have.
void describe_run(RunWriter& run, const ThroughputCase& timed, const Plan& plan, const char* kind,
                  const std::string& kernels) {
    describe_case(run, timed.setup, plan);
    run.attribute("kind", std::string(kind));
    run.attribute("shape", timed.shape);
    run.attribute("kernels", timed.kernels);
    run.attribute("kernels_forward", kernels);
    run.attribute("kernels_backward", kernels);
}

bool is_forward(const std::string& call) { return call.find("forward") != std::string::npos; }

std::vector<double> last_half(const std::vector<double>& passes) {
    return {passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2), passes.end()};
}

}  // namespace

Typical typical_of_rounds(const std::vector<std::vector<double>>& rounds) {
    std::vector<double> medians;
    for (const auto& round : rounds) medians.push_back(typical(round).median);
    return typical(medians);
}

Typical typical_of_burst(const std::vector<double>& passes) {
    require(passes.size() >= 2, "a burst of {} pass: there must be two or more", passes.size());
    return typical(last_half(passes));
}

void describe_ring(RunWriter& run, const ThroughputCase& timed, const Plan& plan, const RingRun& ring) {
    describe_run(run, timed, plan, timed.kind == Kind::ring ? "ring" : "same work", ring.kernels);
    run.attribute("transport", timed.transport);
    run.attribute("gpus", timed.gpus);
    run.attribute("devices", ring.devices);
    const auto forward = typical(slowest(ring.forward.seconds)), backward = typical(slowest(ring.backward.seconds));
    const double forward_flop = pass_flop(*plan.forward) / timed.setup.ranks;
    const double backward_flop = pass_flop(*plan.backward) / timed.setup.ranks;
    describe_rate(run, "forward", forward_flop, forward);
    describe_rate(run, "backward", backward_flop, backward);
    const double both = forward.median + backward.median;
    describe_rate(run, "both", forward_flop + backward_flop,
                  {both, (forward.median * forward.spread + backward.median * backward.spread) / both});
    for (const auto pass : both_passes) describe_pass(run, pass, ring.of(pass), timed.gpus);
    describe_memory(run, plan, ring.memory);
    run.attribute("clock_uncertainty", ring.clock_uncertainty, "s",
                  "by how much times of different ranks may disagree");
    describe_clocks(run, ring.clocks);
}

void describe_device(RunWriter& run, const ThroughputCase& timed, const Plan& plan, const DeviceTimes& times) {
    describe_run(run, timed, plan, "device", times.kernels);
    for (const auto& [name, reason] : times.absent) run.attribute("absent_" + name, reason);
    const auto flop_of = [&](const CallTimes& call) {
        return pass_flop(is_forward(call.name) ? *plan.forward : *plan.backward);
    };
    for (const auto& call : times.calls) describe_call(run, call, flop_of(call));
    for (const auto& call : times.bursts) {
        const auto& passes = call.seconds.front();
        describe_rate(run, call.name, flop_of(call), typical_of_burst(passes), "burst_rate_");
        run.dataset("bursts/" + call.name + "/seconds", measured(passes),
                    {{"bursts/pass", static_cast<std::int64_t>(passes.size())}}, "s",
                    "device time of single passes, inputs drawn anew and L2 cleared before each; the first half is "
                    "not counted");
    }
    describe_clocks(run, times.clocks);
}

void describe_ceilings(RunWriter& run, const DeviceTimes& times, double flop) {
    run.attribute("kind", std::string("ceilings"));
    for (const auto& [name, reason] : times.absent) run.attribute("absent_" + name, reason);
    for (const auto& call : times.calls) describe_call(run, call, flop);
    std::map<std::string, std::vector<const LinkTimes*>> by_transport;
    for (const auto& link : times.links) by_transport[link.transport].push_back(&link);
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
    describe_clocks(run, times.clocks);
}

namespace {

/// A table of runs, whose cells are numbers of the record.
class Runs {
public:
    Runs(const Record& record, double ceiling) : record_(record), ceiling_(ceiling) {}

    double number(const std::string& column) const { return FinishedRun{record_, name_}.number(column); }

    void start(const ThroughputCase& timed, const char* tokens) {
        name_ = timed.name();
        table.start().cell("shape", timed.shape).cell("mask", timed.setup.mask);
        table.cell(tokens, timed.setup.tokens / timed.setup.ranks);
    }
    void milliseconds(const char* header, const std::string& column) {
        table.cell(header, number(column) * 1e3, "{:.4g}");
    }
    void teraflops(const char* header, const std::string& column) {
        table.cell(header, number(column) * 1e-12, "{:.0f}");
    }
    void percent(const char* header, const std::string& column) {
        table.cell(header, number(column) * 100, "{:.1f} %");
    }
    void ratio(const char* header, double value) { table.cell(header, value, "{:.3f}"); }
    void part_of_matrix() { ratio("fwd/matrix", number("rate_forward") / ceiling_); }

    /// A pass of our kernel. `column`: of its rate.
    void kernel(const std::string& column, const char* ms, const char* rate) {
        milliseconds(ms, column + "_seconds");
        teraflops(rate, column);
        percent("spread", column + "_spread");
    }

    std::string text(const char* title) const {
        return table.empty() ? "" : fmt::format("{}\n{}\n", title, table.text());
    }

    Table table;

private:
    const Record& record_;
    std::string name_;
    double ceiling_;  ///< rate of matrix products
};

/// Rates of the same work on one GPU, which rings are compared with.
struct OneGpu {
    double forward = NAN, both = NAN;
};

void add_ring(Runs& runs, const ThroughputCase& timed, OneGpu& one_gpu) {
    const bool is_ring = timed.kind == Kind::ring;
    runs.start(timed, "tokens/GPU");
    if (!is_ring) one_gpu = {runs.number("rate_forward"), runs.number("rate_both")};
    runs.table.cell("layout", is_ring ? timed.setup.layout : "(one GPU)");
    runs.table.cell("schedule", is_ring ? timed.setup.schedule : "-")
        .cell("transport", is_ring ? timed.transport : "-");
    runs.table.cell("kernels", timed.kernels);
    runs.milliseconds("fwd ms", "rate_forward_seconds");
    runs.milliseconds("bwd ms", "rate_backward_seconds");
    runs.teraflops("fwd", "rate_forward");
    runs.teraflops("bwd", "rate_backward");
    runs.teraflops("fwd+bwd", "rate_both");
    runs.percent("spread", "rate_both_spread");
    runs.ratio("fwd/one GPU", runs.number("rate_forward") / one_gpu.forward);
    runs.ratio("fwd+bwd/one GPU", runs.number("rate_both") / one_gpu.both);
    runs.part_of_matrix();
    runs.table.cell("issue fwd us", runs.number("issue_seconds_forward") * 1e6, "{:.0f}");
    runs.table.cell("bwd us", runs.number("issue_seconds_backward") * 1e6, "{:.0f}");
    runs.table.cell("extra MiB", runs.number("extra_bytes") / (1 << 20), "{:.0f}");
}

void add_device(Runs& runs, const ThroughputCase& timed) {
    double flop = 0, seconds = 0;
    for (const std::string rate : {"rate_forward", "rate_backward"}) {
        flop += runs.number(rate) * runs.number(rate + "_seconds");
        seconds += runs.number(rate + "_seconds");
    }
    runs.start(timed, "tokens");
    runs.table.cell("kernels", timed.kernels);
    runs.kernel("rate_forward", "fwd ms", "fwd");
    runs.part_of_matrix();
    runs.ratio("carried", runs.number("rate_forward_carried") / runs.number("rate_forward"));
    runs.kernel("rate_backward", "bwd ms", "bwd");
    runs.teraflops("kernel alone", "rate_backward_kernel");
    runs.ratio("determ.", runs.number("rate_backward_deterministic") / runs.number("rate_backward"));
    runs.table.cell("fwd+bwd", flop / seconds * 1e-12, "{:.0f}");
}

void add_burst(Runs& runs, const ThroughputCase& timed) {
    runs.start(timed, "tokens");
    runs.table.cell("kernels", timed.kernels);
    runs.kernel("burst_rate_forward", "fwd ms", "fwd");
    runs.kernel("burst_rate_backward", "bwd ms", "bwd");
}

std::string ceiling_lines(const Record& record, double ceiling) {
    const std::string run = "ceilings";
    if (!record.has(run)) return "";
    auto text = std::isnan(ceiling) ? "Matrix product: none (" + record.text(run, "absent_matrix_product") + ")\n"
                                    : fmt::format("Matrix product: {:.0f} TFLOP/s\n", ceiling * 1e-12);
    for (const std::string transport : {"copy", "nccl"}) {
        const auto group = "link/" + transport;
        if (!record.has(run, group)) continue;
        const auto bytes = record.numbers(run, group + "/message"),
                   bandwidth = record.numbers(run, group + "/bandwidth");
        text += "Link, " + transport + ":";
        for (std::size_t i = 0; i < bytes.size(); ++i)
            text += fmt::format("{} {:.0f} GB/s at {:.0f} MiB", i == 0 ? "" : ",", bandwidth[i] * 1e-9,
                                bytes[i] / (1 << 20));
        text += "\n";
    }
    return text;
}

}  // namespace

std::string throughput_tables(const Record& record, const std::vector<ThroughputCase>& cases) {
    const double ceiling = record.has("ceilings") ? FinishedRun{record, "ceilings"}.number("rate_matrix_product") : NAN;
    Runs rings(record, ceiling), devices(record, ceiling), bursts(record, ceiling);
    OneGpu one_gpu;
    for (const auto& timed : cases) {
        const FinishedRun run{record, timed.name()};
        const auto has = [&](const char* column) { return !std::isnan(run.number(column)); };
        if (timed.kind == Kind::ring || timed.kind == Kind::same_work) add_ring(rings, timed, one_gpu);
        if (timed.kind != Kind::device) continue;
        if (has("rate_forward")) add_device(devices, timed);
        if (has("burst_rate_forward")) add_burst(bursts, timed);
    }
    return rings.text("Rings, TFLOP/s per GPU") +
           devices.text("Kernels alone on one GPU, back to back (sustained), TFLOP/s") +
           bursts.text("Single passes on one GPU (burst), TFLOP/s") + ceiling_lines(record, ceiling);
}

}  // namespace ringlab::experiments
