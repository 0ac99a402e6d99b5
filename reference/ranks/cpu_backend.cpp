#include "reference/ranks/cpu_backend.hpp"

#include "layouts/schedules/schedule.hpp"
#include "processes/peers.hpp"
#include "reference/attention/dense.hpp"
#include "reference/ranks/cpu_rank.hpp"
#include "reference/ranks/executor.hpp"
#include "reference/tensors/shards.hpp"

#include <functional>

namespace ringlab::reference {
namespace {

using layouts::DType;
using layouts::Pass;
using layouts::Schedule;
using layouts::Timeline;

void require_pass(const Schedule& schedule, Pass pass) {
    require(schedule.options().pass == pass, "the {} schedule describes a {} pass", to_string(pass),
            to_string(schedule.options().pass));
    const auto dtype = schedule.problem().dtype, gradients = schedule.options().gradient_dtype;
    if (pass == Pass::forward) return;
    if (dtype == DType::fp64)
        require(gradients == DType::fp64, "with an fp64 problem dK and dV must travel as fp64, not as {}",
                to_string(gradients));
    else
        require(gradients != DType::fp64, "with a {} problem dK and dV travel as fp32, bf16 or fp16, not as {}",
                to_string(dtype), to_string(gradients));
}

template <class Result, class Visit>
void for_each_vector(Result& result, Visit visit) {
    visit(result.o);
    visit(result.o_unrounded);
    visit(result.lse);
    visit(result.dq);
    visit(result.dk);
    visit(result.dv);
    visit(result.dsinks);
    visit(result.forward);
    visit(result.backward);
}

Bytes pack(const RankResult& result) {
    Bytes bytes;
    processes::append(bytes, std::vector<RankFacts>{result});
    for_each_vector(result, [&](const auto& vector) { processes::append(bytes, vector); });
    return bytes;
}

RankResult unpack(std::span<const std::byte> bytes) {
    std::vector<RankFacts> facts;
    processes::take(bytes, facts);
    RankResult result{facts.front()};
    for_each_vector(result, [&](auto& vector) { processes::take(bytes, vector); });
    return result;
}

std::vector<layouts::Span> run_pass(const Schedule& schedule, const layouts::Program& program,
                                    const RankIdentity& identity, CpuRank& rank, Transport& transport,
                                    Clock::duration timeout) {
    rank.begin(schedule, program);
    transport.expose(rank.exposed());
    const auto start = transport.start_together();
    auto spans = execute(program.ranks[static_cast<std::size_t>(identity.rank)], program.lanes, identity, rank,
                         transport, start, timeout);
    transport.withdraw();
    rank.end();
    return spans;
}

/// Fills in what depends on the spans of all ranks: begin, and busy of transfers.
void finish_spans(Timeline& timeline, const layouts::Program& program) {
    layouts::set_begins(timeline, program);
    for (auto& span : timeline.spans)
        if (span.lane != layouts::compute_lane) span.busy = span.end - span.begin;
}

CpuRun assemble(const Schedule& schedule, bool with_backward, std::span<const RankResult> ranks) {
    const auto& p = schedule.problem();
    CpuRun run;
    auto& out = run.outputs;
    out.o = run.o_unrounded = zeros_of({p.batch, p.rows(), p.query_heads, p.value_dim});
    out.lse = Lse({static_cast<std::size_t>(p.batch), static_cast<std::size_t>(p.rows()),
                   static_cast<std::size_t>(p.query_heads)},
                  0.0);
    if (with_backward) {
        out.dsinks.assign(p.sinks.size(), 0.0);
        out.dq = zeros_of({p.batch, p.rows(), p.query_heads, p.head_dim});
        out.dk = zeros_of(p.key_shape());
        out.dv = zeros_of(p.value_shape());
    }
    run.forward.ranks = schedule.ranks();
    run.backward.ranks = with_backward ? schedule.ranks() : 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        const auto& part = ranks[static_cast<std::size_t>(rank)];
        const auto positions = schedule.layout().positions(rank);
        const auto rows = schedule.row_indices(rank);
        gather(part.o, rows, out.o);
        gather(part.o_unrounded, rows, run.o_unrounded);
        gather(part.lse, rows, out.lse);
        if (with_backward) {
            gather(part.dq, rows, out.dq);
            gather(part.dk, positions, out.dk);
            if (p.latent.is_given())  // the gradient of matrices that all ranks have is a sum over ranks
                std::transform(part.dv.begin(), part.dv.end(), out.dv.data(), out.dv.data(), std::plus());
            else
                gather(part.dv, positions, out.dv);
            for (std::size_t head = 0; head < out.dsinks.size(); ++head) out.dsinks[head] += part.dsinks[head];
        }
        run.forward.spans.insert(run.forward.spans.end(), part.forward.begin(), part.forward.end());
        run.backward.spans.insert(run.backward.spans.end(), part.backward.begin(), part.backward.end());
        run.own_bytes.push_back(part.own_bytes);
        run.scratch_bytes.push_back(part.scratch_bytes);
        run.workspace_bytes.push_back(part.workspace_bytes);
        run.clock_uncertainty = std::max(run.clock_uncertainty, part.clock_uncertainty);
        if (p.rotary.rotates())
            for (std::size_t pass = 0; pass < 2; ++pass)
                run.rotation_seconds[pass].push_back(part.rotation_seconds[pass]);
    }
    return run;
}

}  // namespace

std::vector<double> attend_seconds(const Timeline& timeline) {
    std::vector<double> seconds(static_cast<std::size_t>(timeline.ranks), 0.0);
    for (const auto& span : timeline.spans)
        if (span.kind == layouts::OpKind::attend)
            seconds[static_cast<std::size_t>(span.rank)] += layouts::to_seconds(span.busy);
    return seconds;
}

std::vector<CpuRun> run(World& world, const Schedule& forward, const Schedule* backward, std::span<const Inputs> inputs,
                        const CpuOptions& options) {
    const auto& group = world.group();
    require_pass(forward, Pass::forward);
    if (backward) {
        require_pass(*backward, Pass::backward);
        require_same_problem(forward, *backward);
    }
    require(forward.ranks() == group.ring, "the schedule is for {} ranks, but the rings have {}", forward.ranks(),
            group.ring);
    require(inputs.size() == static_cast<std::size_t>(group.replicas),
            "{} inputs were given for {} replicas; give one for each", inputs.size(), group.replicas);
    require(options.tiles.rows > 0 && options.tiles.keys > 0, "tiles of {} rows x {} keys; both must be at least 1",
            options.tiles.rows, options.tiles.keys);

    const auto forward_program = layouts::resolve(forward);
    const auto backward_program = backward ? layouts::resolve(*backward) : layouts::Program{};

    // Owned here and not by the body, because after an error other ranks may still read a rank's buffers.
    std::vector<std::unique_ptr<CpuRank>> ranks(static_cast<std::size_t>(group.world()));
    const SingleThreadedBlas single_threaded;
    const auto results = world.run(options.timeout, [&](Transport& transport) {
        const int replica = group.replica(transport.rank());
        const RankIdentity identity{group, replica, group.ring_rank(transport.rank()),
                                    transport.rank() == options.slow_rank};
        const auto& own_inputs = inputs[static_cast<std::size_t>(replica)];
        require_inputs(forward.problem(), forward.mask(), own_inputs);
        auto& rank = ranks[static_cast<std::size_t>(transport.rank())];
        rank = make_cpu_rank(forward, identity.rank, own_inputs, options);
        RankResult result;
        result.forward = run_pass(forward, forward_program, identity, *rank, transport, options.timeout);
        if (backward)
            result.backward = run_pass(*backward, backward_program, identity, *rank, transport, options.timeout);
        rank->collect(result);
        result.clock_uncertainty = transport.clock_uncertainty();
        return pack(result);
    });
    if (results.empty()) return {};

    std::vector<CpuRun> runs;
    for (int replica = 0; replica < group.replicas; ++replica) {
        std::vector<RankResult> of_replica;
        for (int rank = 0; rank < group.ring; ++rank)
            of_replica.push_back(unpack(results[static_cast<std::size_t>(group.global_rank(replica, rank))]));
        auto& run = runs.emplace_back(assemble(forward, backward != nullptr, of_replica));
        finish_spans(run.forward, forward_program);
        if (backward) finish_spans(run.backward, backward_program);
    }
    return runs;
}

CpuRun run(World& world, const Schedule& forward, const Schedule* backward, const Inputs& inputs,
           const CpuOptions& options) {
    auto runs = run(world, forward, backward, std::span(&inputs, 1), options);
    return runs.empty() ? CpuRun{} : std::move(runs.front());
}

}  // namespace ringlab::reference
