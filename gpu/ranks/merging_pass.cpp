#include "gpu/ranks/merging_pass.hpp"

#include "gpu/device/driver.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "gpu/ranks/fused_launches.hpp"
#include "layouts/basics/counts.hpp"

#include <algorithm>

namespace ringlab::gpu {

using layouts::OpKind;
using layouts::Pool;

namespace {

constexpr std::size_t o_of_output = 0, lse_of_output = 1;  // fields

}  // namespace

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
    bool one_piece_each = true;  // because a message has one flag
    for (const auto& instruction : code(rank)) {
        const auto& op = instruction.op;
        if (op.kind == OpKind::attend && op.rows().block != own.block) {
            work.push_back(&work_list(op.rows()));
            others_.push_back({.work = work.back()});
            other_blocks_.push_back(op.rows().block);
        }
        if (op.kind == OpKind::send && op.pool == Pool::q) one_piece_each &= pieces(instruction).size() == 1;
    }
    is_possible_ = one_piece_each && options.family.can_merge(shape_, work, maps_.size() - 1, options.ranks_on_device);
    if (!is_possible_) return;
    counters_ = uploaded(std::vector<std::uint32_t>(2 * maps_.size() + 2));
    late_ = uploaded(std::vector<std::uint32_t>(1));
    RINGLAB_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&reported_), sizeof(*reported_), cudaHostAllocMapped));
    *reported_ = 0;
}

MergingPass::~MergingPass() {
    if (reported_) cudaFreeHost(reported_);
}

std::size_t MergingPass::other_of(int block) const {
    return size(std::ranges::find(other_blocks_, block) - other_blocks_.begin());
}

std::vector<Piece> MergingPass::pieces(const layouts::Instruction& message) const {
    return message_pieces(schedule_, program_, message, maps_[size(rank_)], maps_[size(message.op.peer)]);
}

Field MergingPass::field_at_peer(const layouts::Instruction& send, std::size_t field) const {
    const auto& map = maps_[size(send.op.peer)];
    const auto place = place_of(schedule_, code(send.op.peer)[size(send.partner)], send.op.pool);
    return map.field(map.message_frame(program_.pass, place), place, field);
}

void MergingPass::connect(const std::function<char*(int)>& memory_of) {
    const auto pass = program_.pass;
    rows_received_.resize(others_.size());
    for (std::size_t i = 0; i < others_.size(); ++i) others_[i].row_groups_done = counters_.as<std::uint32_t>() + i;
    for (std::size_t i = 0; i < code(rank_).size(); ++i) {
        const auto& instruction = code(rank_)[i];
        const auto& op = instruction.op;
        if (!op.transfers()) continue;
        char* const peer = memory_of(op.peer);
        const auto flag_at_peer =
            reinterpret_cast<std::uint32_t*>(peer + SlotMap::arrival_flag(pass, size(instruction.partner)));
        const bool sends = op.kind == OpKind::send;
        if (sends && op.pool == Pool::q) {
            const auto piece = pieces(instruction).front();
            messages_.push_back({.from = memory_.data() + piece.from,
                                 .to = peer + piece.to,
                                 .bytes = piece.bytes,
                                 .rows = piece.rows,
                                 .from_pitch = piece.from_pitch,
                                 .to_pitch = piece.to_pitch,
                                 .flag = flag_at_peer,
                                 .parts_done = counters_.as<std::uint32_t>() + maps_.size() + messages_.size()});
        } else if (op.pool == Pool::q) {
            const auto which = other_of(op.part.block);
            others_[which].q = memory_.view(memory_.place(instruction, Pool::q));
            others_[which].rows_flag = memory_.arrival_flag(pass, i);
            rows_received_[which] = i;
        } else if (sends) {
            auto& other = others_[other_of(op.part.block)];
            const auto o = field_at_peer(instruction, o_of_output), lse = field_at_peer(instruction, lse_of_output);
            other.o = {peer + o.begin, o.dtype, o.strides};
            other.lse = {reinterpret_cast<float*>(peer + lse.begin), lse.strides};
            other.result_flag = flag_at_peer;
        } else {
            const auto place = memory_.place(instruction, Pool::output);
            arriving_.push_back(
                {memory_.view(place, o_of_output), memory_.rows(place, lse_of_output), memory_.arrival_flag(pass, i)});
            results_received_.push_back(i);
        }
    }
    is_connected_ = true;
}

void MergingPass::launch(std::uint32_t number, const ForwardResult& result, cudaStream_t stream) {
    if (!own_work_ && others_.empty()) return;
    const auto kv = memory_.own(Pool::kv);
    options_.family.attend_and_merge({.shape = shape_,
                                      .k = memory_.view(kv, 0),
                                      .v = memory_.view(kv, 1),
                                      .messages = messages_,
                                      .others = others_,
                                      .work = own_work_,
                                      .q = memory_.view(memory_.own(Pool::q)),
                                      .result = result,
                                      .arriving = arriving_,
                                      .own_done = counters_.as<std::uint32_t>() + 2 * maps_.size(),
                                      .own_flag = counters_.as<std::uint32_t>() + 2 * maps_.size() + 1,
                                      .ranks_on_device = options_.ranks_on_device,
                                      .number = number,
                                      .most_wait = options_.most_wait,
                                      .late = late_.as<std::uint32_t>(),
                                      .reported = reported_},
                                     stream);
}

void MergingPass::require_arrived() const {
    if (!is_connected_) return;
    const auto code_of_peer = *static_cast<volatile const std::uint32_t*>(reported_);
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
        write_value(other_stream_, late_.as<std::uint32_t>(), 1);
    } catch (const Error&) {
        // A running launch then waits until its time is up.
    }
}

}  // namespace ringlab::gpu
