#include "gpu/execution/results.hpp"

#include "layouts/basics/counts.hpp"
#include "processes/peers.hpp"

#include <algorithm>
#include <limits>

namespace ringlab::gpu {

using layouts::Picoseconds;
using processes::append;
using processes::take;

namespace {

template <class Result, class Visit>
void for_each_vector(Result& result, Visit visit) {
    visit(result.outputs.o);
    visit(result.outputs.lse);
    visit(result.outputs.dq);
    visit(result.outputs.dk);
    visit(result.outputs.dv);
    visit(result.outputs.dsinks);
    for (auto& pass : result.passes) {
        visit(pass.start);
        visit(pass.finish);
        visit(pass.issue);
        visit(pass.rotation);
        visit(pass.timeline_start);
        visit(pass.spans);
    }
    visit(result.clocks);
}

void pack(const RankResult& result, Bytes& bytes) {
    append(bytes, std::vector<RankFacts>{result});
    for_each_vector(result, [&](const auto& vector) { append(bytes, vector); });
}

RankResult unpack(std::span<const std::byte>& bytes) {
    RankResult result;
    std::vector<RankFacts> facts;
    take(bytes, facts);
    static_cast<RankFacts&>(result) = facts.at(0);
    for_each_vector(result, [&](auto& vector) { take(bytes, vector); });
    return result;
}

/// Writes a rank's rows to their global places.
void place_rows(const std::vector<float>& local, std::span<const std::int64_t> positions, HostTensor<float>& global) {
    const auto row = static_cast<std::size_t>(global.shape[2] * global.shape[3]);
    const auto* from = local.data();
    for (std::int64_t b = 0; b < global.shape[0]; ++b)
        for (const auto position : positions) {
            std::copy_n(from, row, global.values.data() + global.row(b, position));
            from += row;
        }
}

layouts::PassRun assemble_pass(const layouts::Program& program, std::span<RankResult* const> ranks,
                               layouts::Timelines kept) {
    const auto times = [&](const RankResult* rank) -> const PassTimes& { return rank->of(program.pass); };
    const auto first_start = [&](const std::vector<Picoseconds> PassTimes::*starts, std::size_t i) {
        auto start = std::numeric_limits<Picoseconds>::max();
        for (const auto* rank : ranks) start = std::min(start, (times(rank).*starts)[i]);
        return start;
    };
    layouts::PassRun run;
    for (std::size_t repeat = 0; repeat < times(ranks.front()).start.size(); ++repeat) {
        const auto start = first_start(&PassTimes::start, repeat);
        auto& seconds = run.seconds.emplace_back();
        auto& issue = run.issue.emplace_back();
        if (!times(ranks.front()).rotation.empty()) {
            auto& rotation = run.rotation.emplace_back();
            for (const auto* rank : ranks) rotation.push_back(times(rank).rotation[repeat]);
        }
        for (const auto* rank : ranks) {
            seconds.push_back(layouts::to_seconds(times(rank).finish[repeat] - start));
            issue.push_back(times(rank).issue[repeat]);
        }
    }
    if (const auto& starts = times(ranks.front()).start; starts.size() > 1)
        run.period = layouts::to_seconds(starts.back() - starts.front()) / static_cast<double>(starts.size() - 1);
    const auto timelines = times(ranks.front()).timeline_start.size();
    for (std::size_t i = 0; i < timelines; ++i) {
        const auto start = first_start(&PassTimes::timeline_start, i);
        auto& timeline = run.timelines.emplace_back();
        timeline.ranks = static_cast<int>(ranks.size());
        for (const auto* rank : ranks) {
            const auto count = times(rank).spans.size() / timelines;
            for (std::size_t at = 0; at < count; ++at) {
                auto span = times(rank).spans[i * count + at];
                span.posted -= start;
                span.end -= start;
                timeline.spans.push_back(span);
            }
        }
        layouts::set_begins(timeline, program);
        for (auto& span : timeline.spans) span.busy = span.end - span.begin;
    }
    if (kept == layouts::Timelines::extra) run.timelines = {run.timeline()};
    return run;
}

void place_results(const Job& job, std::span<RankResult* const> ranks, HostOutputs& out) {
    const auto& p = job.forward.problem();
    out.o = make_tensor<float>(p.batch, p.rows(), p.query_heads, p.value_dim);
    out.lse = make_tensor<float>(p.batch, p.rows(), p.query_heads, 1);
    if (job.backward) {
        out.dq = make_tensor<float>(p.batch, p.rows(), p.query_heads, p.head_dim);
        const auto of_shape = [](const std::array<std::int64_t, 4>& s) {
            return make_tensor<float>(s[0], s[1], s[2], s[3]);
        };
        out.dk = of_shape(p.key_shape());
        out.dv = of_shape(p.value_shape());
        out.dsinks.assign(p.sinks.size(), 0);
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto& local = ranks[rank]->outputs;
        const auto positions = job.forward.layout().positions(static_cast<int>(rank));
        const auto rows = job.forward.row_indices(static_cast<int>(rank));
        place_rows(local.o, rows, out.o);
        place_rows(local.lse, rows, out.lse);
        if (!job.backward) continue;
        place_rows(local.dq, rows, out.dq);
        place_rows(local.dk, positions, out.dk);
        if (p.latent.is_given())  // all ranks have the matrices, so their gradient is a sum over ranks
            std::transform(local.dv.begin(), local.dv.end(), out.dv.values.begin(), out.dv.values.begin(), std::plus());
        else
            place_rows(local.dv, positions, out.dv);
        for (std::size_t head = 0; head < out.dsinks.size(); ++head) out.dsinks[head] += double{local.dsinks[head]};
    }
}

}  // namespace

std::vector<RankResult> gather(Team& team, std::vector<RankResult> local, int world, Clock::duration timeout) {
    std::vector<RankResult> all(size(world));
    const auto keep = [&](RankResult&& result) { all[size(result.global_rank)] = std::move(result); };
    if (team.local_size() == team.size()) {
        for (auto& result : local) keep(std::move(result));
        return all;
    }
    Bytes bytes;
    for (const auto& result : local) pack(result, bytes);
    const auto gathered = team.gather_to_root(std::move(bytes), timeout);
    if (gathered.empty()) return {};
    for (const auto& from_process : gathered)
        for (std::span<const std::byte> rest(from_process); !rest.empty();) keep(unpack(rest));
    return all;
}

GpuRun assemble(const Job& job, std::span<RankResult* const> ranks) {
    GpuRun run;
    if (job.options.keep_results) place_results(job, ranks, run.outputs);
    for (const auto* rank : ranks) {
        run.memory.push_back(rank->memory);
        run.devices.emplace_back(rank->device_name.data());
        run.clocks.insert(run.clocks.end(), rank->clocks.begin(), rank->clocks.end());
        run.clock_uncertainty = std::max(run.clock_uncertainty, layouts::to_seconds(rank->clock_uncertainty));
    }
    const auto fullest = std::ranges::min_element(ranks, {}, [](const auto* rank) { return rank->free_bytes; });
    run.least_free = static_cast<std::int64_t>((*fullest)->free_bytes);
    run.forward = assemble_pass(job.programs[0], ranks, job.options.timelines);
    if (job.backward) run.backward = assemble_pass(job.programs[1], ranks, job.options.timelines);
    return run;
}

}  // namespace ringlab::gpu
