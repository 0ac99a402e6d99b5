#include "experiments/study/describe.hpp"

#include "experiments/files/digest.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/values.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>

namespace ringlab::experiments {
namespace {

constexpr int most_ranks_for_pairs = 512;            // ranks x owners are written up to this many ranks
constexpr std::int64_t most_tokens_for_maps = 8192;  // tokens by token are written up to this many

double flop_of(const layouts::Schedule& schedule, const std::vector<double>& pair_count) {
    const auto& problem = schedule.problem();
    return std::accumulate(pair_count.begin(), pair_count.end(), 0.0) *
           static_cast<double>(problem.batch * problem.query_heads) *
           (schedule.options().pass == layouts::Pass::forward ? problem.forward_flop_per_pair()
                                                              : problem.backward_flop_per_pair());
}

void describe_pairs(RunWriter& run, const layouts::Schedule& schedule, const std::vector<double>& pairs_of_rank) {
    const int ranks = schedule.ranks();
    run.dataset("work/pairs_of_rank", pairs_of_rank, {{"rank", ranks}}, "1",
                "visible (query, key) pairs of a rank's queries, one head");
    if (ranks > most_ranks_for_pairs) return;
    std::vector<std::int64_t> pairs;
    for (int rank = 0; rank < ranks; ++rank)
        for (int owner = 0; owner < ranks; ++owner)
            pairs.push_back(schedule.pair_count(schedule.row_block(rank), owner));
    run.dataset("work/pairs", pairs, {{"rank", ranks}, {"owner", ranks}}, "1",
                "visible (query, key) pairs between a rank's queries and an owner's keys, one head");
}

void describe_maps(RunWriter& run, const layouts::Rotary& rotary, const layouts::Mask& mask,
                   const layouts::Layout& layout) {
    const auto tokens = mask.tokens();
    if (tokens > most_tokens_for_maps) return;
    std::vector<std::int32_t> owner(static_cast<std::size_t>(tokens));
    for (int rank = 0; rank < layout.ranks(); ++rank)
        for (const auto position : layout.positions(rank)) owner[static_cast<std::size_t>(position)] = rank;
    const auto rows = layouts::row_table(mask);
    const auto narrow = [](const auto& column) { return std::vector<std::int32_t>(column.begin(), column.end()); };
    const std::vector<Dimension> token{{"token", tokens}};
    run.dataset("maps/owner", owner, token, "1", "rank that owns the token");
    run.dataset("maps/row_begin", narrow(rows.begin), token, "1", "first key that the token's row sees");
    run.dataset("maps/row_end", narrow(rows.end), token, "1", "end (exclusive) of the keys that the token's row sees");
    run.dataset("maps/row_sink", narrow(rows.sink), token, "1", "the row also sees keys from 0 to this (exclusive)");
    if (rows.ranges > 0) {
        const std::vector<Dimension> ranges{{"token", tokens}, {"range", rows.ranges}};
        run.dataset("maps/row_earlier_begin", narrow(rows.earlier_begin), ranges, "1",
                    "the row also sees keys from these on");
        run.dataset("maps/row_earlier_end", narrow(rows.earlier_end), ranges, "1",
                    "to these (exclusive); none where both are equal");
    }
    run.dataset("maps/key_valid", narrow(rows.valid), token, "1", "1 if the token's key exists, 0 if it is padding");
    if (!rotary.rotates()) return;
    std::vector<std::int64_t> tokens_in_order(static_cast<std::size_t>(tokens));
    std::iota(tokens_in_order.begin(), tokens_in_order.end(), 0);
    run.dataset("maps/rotary_position", rotary_positions(rotary, mask, tokens_in_order), token, "1",
                "what the token's q and k are rotated by");
}

/// Writes the prices for which a layout was made, if it is made for prices.
void describe_prices(RunWriter& run, const std::string& layout, const Plan& plan) {
    if (!is_planned(layout)) return;
    const auto text = text_of(prices_of(layout, plan.forward->options().schedule, plan.problem, plan.layout().ranks(),
                                        plan.forward->options().gradient_dtype));
    run.attribute("layout_prices_sha256", digest_of(text), "1",
                  "digest of the prices that the layout was made for, a line each");
}

/// What rotates q and k, or dq and dk, where anything does.
void describe_rotation(RunWriter& run, const std::vector<RingRun>& rings, layouts::Pass pass, std::int64_t repeats) {
    std::vector<double> seconds, most;
    for (std::size_t repeat = 0; repeat < static_cast<std::size_t>(repeats); ++repeat)
        for (const auto& ring : rings) {
            const auto& rotation = ring.of(pass).rotation;
            if (rotation.empty()) return;
            seconds.insert(seconds.end(), rotation[repeat].begin(), rotation[repeat].end());
            most.push_back(std::ranges::max(rotation[repeat]));
        }
    run.dataset("measured/rotation_time", measured(seconds),
                {Dimension::at("pass", to_string(pass)),
                 {"repeat", repeats},
                 {"replica", static_cast<std::int64_t>(rings.size())},
                 {"rank"}},
                "s",
                "what rotates q and k before the forward pass, dq and dk behind the backward pass; part of neither");
    run.attribute(fmt::format("rotation_measured_{}", to_string(pass)), median(std::move(most)), "s",
                  "the slowest rank's measured/rotation_time, median of the repeats");
}

void describe_pass(RunWriter& run, const std::vector<RingRun>& rings, layouts::Pass pass) {
    const auto& first = rings.front().of(pass);
    const auto count = static_cast<std::int64_t>(first.seconds.size());
    std::vector<double> compute, makespan, seconds_of_rank;
    for (std::size_t repeat = 0; repeat < first.seconds.size(); ++repeat)
        for (const auto& ring : rings) {
            const auto& timeline = ring.of(pass).timelines[repeat];
            const auto attends = attend_seconds(timeline);
            compute.insert(compute.end(), attends.begin(), attends.end());
            makespan.push_back(layouts::to_seconds(timeline.makespan()));
            const auto& whole = ring.of(pass).seconds[repeat];
            seconds_of_rank.insert(seconds_of_rank.end(), whole.begin(), whole.end());
        }
    const std::vector<Dimension> by_replica{Dimension::at("pass", to_string(pass)),
                                            {"repeat", count},
                                            {"replica", static_cast<std::int64_t>(rings.size())}};
    auto by_rank = by_replica;
    by_rank.push_back({"rank", static_cast<std::int64_t>(first.timelines.front().ranks)});
    run.dataset("measured/attend_time", measured(compute), by_rank, "s",
                "time of the rank's own processor or device in its attends");
    run.dataset("measured/seconds", measured(seconds_of_rank), by_rank, "s",
                "from the start of the pass on the first rank to its end on this one");
    run.dataset("measured/makespan", measured(makespan), by_replica, "s",
                "wall-clock time from the first operation to the end of the last; with more ranks than devices they "
                "take turns");
    run.timeline("measured", to_string(pass), first.timeline());

    const std::string name = to_string(pass);
    describe_rotation(run, rings, pass, count);
    const auto attends = median_attend_seconds(first);
    run.attribute(
        "balance_measured_" + name, balance_of(attends), "1",
        "largest over mean of the ranks' measured attend_time, each the median of the repeats; NaN if no clock "
        "showed any");
    run.attribute("compute_measured_" + name, std::ranges::max(attends), "s",
                  "largest of the ranks' measured attend_time, each the median of the repeats");
    run.attribute("seconds_measured_" + name, median_pass_seconds(rings, pass), "s",
                  "the slowest rank's measured time for the pass, median of the repeats");
}

/// The largest number of bytes that the first, the middle or the last rank sends or fetches.
std::int64_t travelling_bytes(const layouts::Schedule& pass) {
    std::int64_t most = 0;
    for (const int rank : std::set{0, pass.ranks() / 2, pass.ranks() - 1}) {
        std::int64_t bytes = 0;
        auto ops = pass.ops(rank);
        while (const auto* op = ops.next())
            if (op->kind == layouts::OpKind::send || op->kind == layouts::OpKind::fetch) bytes += op->bytes;
        most = std::max(most, bytes);
    }
    return most;
}

}  // namespace

void describe_case(RunWriter& run, const Case& setup, const Plan& plan) {
    const auto& problem = plan.problem;
    run.attribute("mask", setup.mask, "1", "who sees whom, as given");
    run.attribute("layout", setup.layout, "1", "which rank owns which tokens");
    describe_prices(run, setup.layout, plan);
    run.attribute("schedule", setup.schedule, "1", "schedule that brings queries and keys together");
    run.attribute("policy", setup.policy, "1", "how partial results become one; empty: carry");
    run.attribute("input", setup.input, "1", "what attention is computed from, as given; empty: nothing is computed");
    run.attribute("ranks", setup.ranks, "1", "ring size P");
    run.attribute("tokens", setup.tokens, "1", "of the whole sequence");
    run.attribute("padded_tokens", problem.tokens, "1", "of the whole sequence with padding");
    run.attribute("queries", problem.rows(), "1", "query rows; as many as padded tokens where every token has one");
    run.attribute("batch", problem.batch, "1", "sequences at a time");
    run.attribute("query_heads", problem.query_heads, "1", "heads of q, o and do");
    run.attribute("kv_heads", problem.kv_heads, "1", "heads of k and v");
    run.attribute("head_dim", problem.head_dim, "1", "size of a query or key");
    run.attribute("value_dim", problem.value_dim, "1", "size of a value");
    run.attribute("scale", problem.effective_scale(), "1", "of q.k");
    run.attribute("soft_cap", problem.soft_cap, "1", "c: scores become c*tanh(s/c); 0: they stay");
    run.attribute("dtype", std::string(to_string(problem.dtype)), "1", "of q, k, v and do");
    run.attribute("rotary", text_of(problem.rotary), "1", "how q and k are rotated before they are attended to");
    run.attribute("latent", text_of(problem.latent), "1",
                  "RANK+SHARED numbers a token that k and v are made of; dk and dv are then the gradients of these and "
                  "of the matrices");
    run.attribute("bytes_travelling_forward", travelling_bytes(*plan.forward), "B",
                  "the most that one of the first, middle and last rank sends or fetches in the forward pass");
    if (plan.backward)
        run.attribute("bytes_travelling_backward", travelling_bytes(*plan.backward), "B",
                      "the most that one of the first, middle and last rank sends or fetches in the backward pass");
    run.attribute("sinks", fmt::format("{}", fmt::join(problem.sinks, " ")), "1",
                  "learned sink logits of the query heads, if there are any");
    run.attribute("dropout", text_of(problem.dropout), "1", "probability that a p is set to 0, and the seed of which");
    run.attribute("scratch_bytes_forward", plan.forward->scratch_bytes(), "B",
                  "scratch of a rank that the schedule of the forward pass asks for");
    if (plan.backward)
        run.attribute("scratch_bytes_backward", plan.backward->scratch_bytes(), "B",
                      "scratch of a rank that the schedule of the backward pass asks for");
    const auto pair_count = pairs_by_rank(*plan.forward);
    run.attribute("flop_forward", flop_of(*plan.forward, pair_count), "FLOP",
                  "of the visible pairs, all ranks and heads");
    if (plan.backward)
        run.attribute("flop_backward", flop_of(*plan.backward, pair_count), "FLOP",
                      "of the visible pairs, all ranks and heads");
    run.attribute("balance_pairs", layouts::imbalance(pair_count), "1",
                  "largest over mean of the ranks' visible pairs");
    describe_pairs(run, *plan.forward, pair_count);
    describe_maps(run, problem.rotary, plan.mask(), plan.layout());
}

void describe_verdicts(RunWriter& run, const std::vector<Verdict>& verdicts, Extent extent) {
    const auto replicas = static_cast<std::int64_t>(verdicts.size());
    std::vector<double> rms, max_abs, max_relative;
    for (const auto& verdict : verdicts)
        for (const auto& one : verdict) {
            rms.push_back(one.relative_rms);
            max_abs.push_back(one.max_abs);
            max_relative.push_back(one.max_to_largest);
        }
    run.dimension("tensor", std::vector<std::string>(judged_tensors.begin(), judged_tensors.end()), "1",
                  "result that is judged against the fp64 reference");
    run.attribute("judged_extent", to_string(extent), "1",
                  "how much of the results was judged against the fp64 reference");
    const std::vector<Dimension> dimensions{{"replica", replicas}, "tensor"};
    run.dataset("judged/relative_rms", rms, dimensions, "1", "norm of the difference over norm of the expected values");
    run.dataset("judged/max_abs", max_abs, dimensions, "1", "largest difference of an element");
    run.dataset("judged/max_relative", max_relative, dimensions, "1",
                "largest difference of an element over the largest expected magnitude");
    for (std::size_t tensor = 0; tensor < judged_tensors.size(); ++tensor) {
        double worst_rms = 0, worst_relative = 0;
        for (const auto& verdict : verdicts) {
            worst_rms = worse(worst_rms, verdict[tensor].relative_rms);
            worst_relative = worse(worst_relative, verdict[tensor].max_to_largest);
        }
        const std::string name = judged_tensors[tensor];
        run.attribute("error_rms_" + name, worst_rms, "1",
                      "judged/relative_rms of " + name + ", the worst of the replicas");
        run.attribute("error_max_" + name, worst_relative, "1",
                      "judged/max_relative of " + name + ", the worst of the replicas");
    }
}

void describe_measurements(RunWriter& run, const std::vector<RingRun>& rings) {
    describe_pass(run, rings, layouts::Pass::forward);
    if (!rings.front().backward.timelines.empty()) describe_pass(run, rings, layouts::Pass::backward);
    std::vector<std::int64_t> scratch;
    for (const auto& share : rings.front().memory) scratch.push_back(share.scratch());
    run.dataset("measured/memory", std::move(scratch),
                {{"rank", static_cast<std::int64_t>(rings.front().memory.size())}}, "B",
                "scratch memory of a rank beyond inputs and results");
    run.attribute("clock_uncertainty", rings.front().clock_uncertainty, "s",
                  "by how much times of different ranks may disagree");
}

void describe_execution(RunWriter& run, const ExecutionConfig& config, const std::vector<RingRun>& rings) {
    const auto& first = rings.front();
    const bool gpus = config.backend != "cpu";
    run.attribute("backend", config.backend, "1", "what executed it");
    run.attribute("transport", first.transport, "1", "how messages travelled");
    run.attribute(
        "measured",
        std::string(first.takes_turns
                        ? "results, and each rank's device time in its operations; ranks take turns on the "
                          "GPUs, so the time of a pass and what overlaps are not those of a GPU per rank"
                    : gpus ? "results, and the passes as they are: a GPU per rank, transfers and waiting included"
                           : "results, and each rank's processor time in its operations; ranks may share "
                             "processors, and the time of a pass is then not that of P devices"));
    if (!gpus) return;
    run.attribute("kernels_forward", first.kernels);
    if (!first.backward.seconds.empty()) run.attribute("kernels_backward", first.kernels);
    std::vector<std::int64_t> memory;
    for (const auto& share : first.memory) memory.push_back(share.total());
    const auto ranks = static_cast<std::int64_t>(memory.size());
    run.attribute("processes", config.mpi ? ranks * static_cast<std::int64_t>(rings.size()) : 1);
    run.dataset("measured/device_memory", std::move(memory), {{"rank", ranks}}, "B",
                "most device memory of a rank: inputs, results and scratch");
    std::vector<std::string> devices;
    std::vector<gpu::ClockSample> clocks;
    for (const auto& ring : rings) {
        devices.insert(devices.end(), ring.devices.begin(), ring.devices.end());
        clocks.insert(clocks.end(), ring.clocks.begin(), ring.clocks.end());
    }
    run.attribute("devices", devices, "1", "GPUs, by replica and rank");
    describe_clocks(run, std::move(clocks));
}

void describe_clocks(RunWriter& run, std::vector<gpu::ClockSample> samples) {
    if (samples.empty()) return;
    std::ranges::stable_sort(samples, {}, &gpu::ClockSample::seconds);
    const std::vector<Dimension> dimension{{"measured/clocks/sample", static_cast<std::int64_t>(samples.size())}};
    const auto column = [&](const char* name, auto value, const char* unit, const char* description) {
        std::vector<decltype(value(samples.front()))> values;
        for (const auto& sample : samples) values.push_back(value(sample));
        run.dataset(std::string("measured/clocks/") + name, std::move(values), dimension, unit, description);
    };
    using Sample = gpu::ClockSample;
    column(
        "device", [](const Sample& s) { return std::int64_t{s.device}; }, "1", "GPU, as its process counts them");
    const std::vector<std::string> moments{"before", "during", "after"};  // in the order of Moment
    std::vector<std::string> taken;
    for (const auto& sample : samples) taken.push_back(moments.at(static_cast<std::size_t>(sample.moment)));
    run.enumeration("measured/clocks/moment", taken, moments, dimension, "1",
                    "before the passes, during one, or after them");
    const double begin = samples.front().seconds;
    column(
        "time", [&](const Sample& s) { return static_cast<float>(s.seconds - begin); }, "s", "since the first sample");
    column(
        "sm_clock", [](const Sample& s) { return static_cast<float>(1e6 * s.sm_mhz); }, "Hz", "of the multiprocessors");
    column(
        "memory_clock", [](const Sample& s) { return static_cast<float>(1e6 * s.memory_mhz); }, "Hz", "of the memory");
    column(
        "power", [](const Sample& s) { return static_cast<float>(s.watts); }, "W", "drawn by the GPU, as NVML says");
    column(
        "temperature", [](const Sample& s) { return std::int64_t{s.celsius}; }, "degC", "of the GPU");
    column(
        "throttle_reasons", [](const Sample& s) { return static_cast<std::int64_t>(s.throttle_reasons); }, "1",
        "NVML's nvmlClocksEventReasons bits");
}

std::vector<double> pairs_by_rank(const layouts::Schedule& schedule) {
    const layouts::Run everything{0, 1, schedule.layout().tokens()};
    const layouts::KeyCounter keys(std::span(&everything, 1));
    std::vector<double> pair_count;
    for (int rank = 0; rank < schedule.ranks(); ++rank)
        pair_count.push_back(static_cast<double>(
            layouts::visible_pairs(schedule.mask(), schedule.block(schedule.row_block(rank)), keys)));
    return pair_count;
}

double FinishedRun::number(const std::string& column) const {
    return record.has(name, "runs/" + column) ? record.number(name, column) : std::numeric_limits<double>::quiet_NaN();
}

double pass_flop(const layouts::Schedule& schedule) { return flop_of(schedule, pairs_by_rank(schedule)); }

}  // namespace ringlab::experiments
