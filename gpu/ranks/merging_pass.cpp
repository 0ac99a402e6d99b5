#include "gpu/ranks/merging_pass.hpp"

#include "gpu/device/driver.hpp"
#include "gpu/ranks/fused_launches.hpp"
#include "layouts/basics/counts.hpp"

#include <algorithm>

namespace ringlab::gpu {

using layouts::OpKind;
using layouts::Pool;

namespace {

/// Rows of all heads.
std::int64_t rows_of(const layouts::Schedule& schedule, int rank) {
    const auto& problem = schedule.problem();
    return problem.batch * schedule.block_tokens(schedule.row_block(rank)) * problem.query_heads;
}

/// Both are even, so that each begins at a multiple of 16 bytes.
std::int64_t pairs_of_o(const layouts::Schedule& schedule, int owner) {
    return rounded_up(rows_of(schedule, owner) * schedule.problem().value_dim, 2);
}
std::int64_t pairs_of_result(const layouts::Schedule& schedule, int owner) {
    return pairs_of_o(schedule, owner) + rounded_up(rows_of(schedule, owner), 2);
}

/// Pairs of the messages that a rank receives before instruction `end`.
std::size_t pairs_before(const layouts::Schedule& schedule, const layouts::Program& program, int rank,
                         std::size_t end) {
    std::int64_t pairs = 0;
    for (std::size_t i = 0; i < end; ++i) {
        const auto& op = program.ranks[static_cast<std::size_t>(rank)].code[i].op;
        if (op.kind != OpKind::receive) continue;
        pairs += op.pool == Pool::q ? rounded_up(rows_of(schedule, op.peer) * schedule.problem().head_dim, 4) / 2
                                    : pairs_of_result(schedule, rank);
    }
    return static_cast<std::size_t>(pairs);
}

}  // namespace

std::size_t merging_pairs(const layouts::Schedule& schedule, const layouts::Program& program) {
    if (!schedule.is_one_launch()) return 0;
    std::size_t most = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        if (schedule.block_tokens(schedule.row_block(rank)) > most_merging_tokens) return 0;
        most = std::max(
            most, pairs_before(schedule, program, rank, program.ranks[static_cast<std::size_t>(rank)].code.size()));
    }
    return most;
}

MergingPass::MergingPass(const layouts::Schedule& schedule, const layouts::Program& program, int rank,
                         const PassMemory& memory, std::vector<SlotMap> maps, const FindWorkList& work_list,
                         const Options& options)
    : schedule_(schedule),
      program_(program),
      rank_(rank),
      memory_(memory),
      maps_(std::move(maps)),
      shape_(attend_shape(schedule.problem(), memory.own(Pool::q).heads, memory.own(Pool::kv).heads)),
      options_(options) {
    const auto own = schedule.part(schedule.row_block(rank), {});
    if (own.tokens.size() > 0) own_work_ = &work_list(own);
    std::vector<const WorkList*> work;
    if (own_work_) work.push_back(own_work_);
    for (const auto& instruction : code(rank)) {
        const auto& op = instruction.op;
        if (op.kind != OpKind::attend || op.rows().block == own.block) continue;
        work.push_back(&work_list(op.rows()));
        others_.push_back({.work = work.back()});
        other_blocks_.push_back(op.rows().block);
    }
    is_possible_ = options.family.can_merge(shape_, work, maps_.size() - 1, options.ranks_on_device);
    if (!is_possible_) return;
    own_pairs_ = uploaded(std::vector<Pair>(static_cast<std::size_t>(pairs_of_result(schedule, rank))));
    late_ = uploaded(std::vector<std::uint32_t>(1));
    reported_ = DeviceMemory::plain().host_word();
}

std::size_t MergingPass::other_of(int block) const {
    return size(std::ranges::find(other_blocks_, block) - other_blocks_.begin());
}

Pair* MergingPass::pairs_at(char* memory, int receiver, std::size_t receive) const {
    return reinterpret_cast<Pair*>(memory + maps_[size(receiver)].merging_pairs()) +
           pairs_before(schedule_, program_, receiver, receive);
}

ResultPairs MergingPass::result_at(Pair* pairs, int owner) const {
    return {.o = pairs, .lse = pairs + pairs_of_o(schedule_, owner)};
}

void MergingPass::connect(const std::function<char*(int)>& memory_of) {
    rows_received_.resize(others_.size());
    for (std::size_t i = 0; i < code(rank_).size(); ++i) {
        const auto& instruction = code(rank_)[i];
        const auto& op = instruction.op;
        if (!op.transfers()) continue;
        const bool sends = op.kind == OpKind::send;
        Pair* const pairs = sends ? pairs_at(memory_of(op.peer), op.peer, size(instruction.partner))
                                  : pairs_at(memory_.data(), rank_, i);
        if (op.pool == Pool::q) {
            if (sends) {
                messages_.push_back(pairs);
            } else {
                const auto other = other_of(op.part.block);
                others_[other].q = pairs;
                rows_received_[other] = i;
            }
        } else if (sends) {
            others_[other_of(op.part.block)].result = result_at(pairs, op.peer);
        } else {
            arriving_.push_back(result_at(pairs, rank_));
            results_received_.push_back(i);
        }
    }
    is_connected_ = true;
}

void MergingPass::launch(std::uint32_t number, const ForwardResult& result, cudaStream_t stream) {
    if (!own_work_ && others_.empty()) return;
    const auto kv = memory_.own(Pool::kv);
    if (!work_)
        work_ = options_.family.make_merging({.shape = shape_,
                                              .k = memory_.view(kv, 0),
                                              .v = memory_.view(kv, 1),
                                              .messages = messages_,
                                              .others = others_,
                                              .work = own_work_,
                                              .q = memory_.view(memory_.own(Pool::q)),
                                              .result = result,
                                              .arriving = arriving_,
                                              .own = result_at(own_pairs_.as<Pair>(), rank_),
                                              .ranks_on_device = options_.ranks_on_device,
                                              .most_wait = options_.most_wait,
                                              .late = late_.as<std::uint32_t>(),
                                              .reported = reported_.get()});
    work_(number, stream);
}

void MergingPass::require_arrived() const {
    if (!is_connected_) return;
    const auto code_of_peer = *static_cast<volatile const std::uint32_t*>(reported_.get());
    if (code_of_peer == 0) return;
    const auto late = LatePeer::from(code_of_peer);
    const auto receive = (late.is_result ? results_received_ : rows_received_).at(late.index);
    fail("a launch has waited {} s for what {} brings; its peer is dead or stuck, or the time-out is too short",
         std::chrono::duration<double>(options_.most_wait).count(),
         describe(rank_, static_cast<layouts::OpIndex>(receive), code(rank_)[receive]));
}

void MergingPass::give_up() noexcept {
    if (!is_connected_) return;
    try {
        write_value(options_.give_up_stream, late_.as<std::uint32_t>(), 1);
    } catch (const Error&) {
        // A running launch then waits until its time is up.
    }
}

}  // namespace ringlab::gpu
