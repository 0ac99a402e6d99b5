#pragma once

#include "layouts/schedule.hpp"

#include <array>
#include <optional>
#include <span>
#include <vector>

namespace ringlab::gpu {

/// Where blocks lie in a rank's exchange memory of one payload: slot 0, then the scratch slots, each as large as the
/// largest shard needs. Any rank can compute it for any other.
///
/// A block lies head by head, tight for its owner's tokens: per kv head K (batch, tokens, head_dim), then V (batch,
/// tokens, value_dim), or their gradients. So K and V of any range of heads are one piece of memory and one message,
/// out of slot 0 too, without packing; kernels take the strides as they are.
class SlotMap {
public:
    SlotMap(const layouts::Schedule& schedule, int rank, layouts::Payload payload, layouts::DType own_dtype,
            layouts::SlotPlan plan);

    std::size_t bytes() const;
    std::size_t scratch_bytes() const;
    std::size_t scratch_begin() const { return own_bytes_; }

    /// Of the head that lies `head` heads after the slot's first, for a block of `owner`.
    std::size_t offset(int slot, int owner, int head) const;
    std::size_t head_bytes(int slot, int owner) const;
    layouts::DType dtype(int slot) const { return slot == 0 ? own_dtype_ : scratch_dtype_; }
    int slots() const { return slots_; }
    int slot_heads(int slot) const { return slot == 0 ? all_heads_ : slot_heads_; }

private:
    const layouts::Schedule& schedule_;
    layouts::DType own_dtype_, scratch_dtype_;
    int slots_, all_heads_, slot_heads_;
    std::size_t own_bytes_, slot_bytes_;
};

/// An operation with everything resolved that follows from the schedule: what an issuer needs to enqueue it.
struct Instruction {
    layouts::Op op;
    bool served = false;     ///< a send that no schedule has: the owner's half of a peer's fetch
    bool two_sided = false;  ///< a fetch whose owner sends it
    bool first = false;      ///< attend: of these heads on this rank; merge likewise
    bool last = false;       ///< attend
    // Byte offsets in exchange memory.
    std::size_t local = 0;     ///< transfer: what is read or written; attend: the K/V block; add: the destination
    std::size_t gradient = 0;  ///< attend, backward: dK/dV written; add: the source
    std::size_t remote = 0;    ///< send: where it goes in the peer's memory; fetch: where it is in the owner's

    bool receives() const { return op.kind == layouts::OpKind::receive || two_sided; }
};

/// One rank's part of a pass.
struct Program {
    int rank = 0;
    layouts::Pass pass = layouts::Pass::forward;
    layouts::DType own_gradient_dtype = layouts::DType::fp32;
    std::vector<Instruction> code;  ///< the schedule's operations by index, then served sends
    std::size_t operations = 0;     ///< of the schedule
    /// Some part of the own gradient is read before it is written, or never written: it has to be zero at the start.
    bool adds_to_own_gradient = false;
    /// Attends that the schedule joins, two or more in the order in which it has them: none of a join waits for another
    /// one's end.
    std::vector<std::vector<std::size_t>> joins;

    bool uses(layouts::Lane lane) const;
};

/// Programs of all ranks of a schedule, each send and fetch told where its bytes are at the peer. With `serve_fetches`
/// the owner of a fetched block sends it (a transport that cannot read a peer's memory).
///
/// Throws Error that names rank and operation if the schedule breaks its own rules: a slot read that does not hold what
/// is read, messages that do not match, sizes that differ.
std::vector<Program> make_programs(const layouts::Schedule& schedule, bool serve_fetches);

/// "rank 3: operation 7, send kv of rank 1's block, step 2, to rank 4"
std::string describe(int rank, const Instruction& instruction, layouts::OpIndex index);

}  // namespace ringlab::gpu
