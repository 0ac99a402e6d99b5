#pragma once

#include "layouts/schedules/schedule.hpp"

#include <string>
#include <vector>

namespace ringlab::layouts {

/// What an operation does with an operand.
enum class Access {
    read,
    write,   ///< overwrites all of the part
    update,  ///< reads and writes
};

/// A part of a slot that an operation accesses at its own rank.
struct Operand {
    Pool pool = Pool::kv;
    int slot = 0;
    Part part;
    Access access = Access::read;
    bool last = false;  ///< the part is undefined afterwards
};

/// All operands of an operation. What an operation with has_source() reads is the last one.
class Operands {
public:
    Operands(const Op& op, Pass pass);

    const Operand* begin() const { return operands_.data(); }
    const Operand* end() const { return operands_.data() + count_; }

private:
    void add(Pool pool, int slot, const Part& part, Access access, bool last = false) {
        operands_[count_++] = {pool, slot, part, access, last};
    }

    std::array<Operand, 5> operands_;
    std::size_t count_ = 0;
};

/// An operation with what resolve() derives from the whole schedule.
struct Instruction {
    Op op;
    bool served = false;   ///< a send that is not in the schedule: the owner's half of a peer's fetch
    OpIndex partner = -1;  ///< of a message: the other half, in the peer's program
    /// In both halves of a message of keys or their gradients: whether it may arrive at any time after the pass has
    /// begun on all ranks, because it goes to a scratch slot that the receiver has not used in the pass before. Only
    /// set if all messages of the receiver's lane come from one peer, so that the arrival of a message implies the
    /// arrival of those before it, or if nothing relies on their order (ArrivalOrder).
    bool may_arrive_early = false;
    /// In both halves of a message: a computation of the same rank that it also waits for, so that it does not begin
    /// long before the other half can; -1: none. See pace_messages().
    OpIndex paced_by = -1;
    /// In both halves of a message: FLOP of the sender's next attend, which runs while the message travels; 0 if there
    /// is none, or if the receiver's next attend waits for the message and begins a launch.
    double overlapped_flop = 0;
    /// By pool: the first head that the operation's slot holds. A slot stores its block head by head, so this
    /// determines where the heads of a part are.
    std::array<int, pool_count> first_head{};
    int source_first_head = 0;  ///< the same for slot `source`

    bool sends() const { return op.kind == OpKind::send; }
    /// A fetch that its owner serves is a receive.
    bool receives() const { return op.kind == OpKind::receive || (op.kind == OpKind::fetch && partner >= 0); }
};

/// Where an operand is stored: its slot, and its heads and tokens within the block that the slot holds.
struct Place {
    Pool pool = Pool::kv;
    int slot = 0;
    int first_head = 0;             ///< first head that the slot holds
    std::int64_t block_tokens = 0;  ///< of the block that the slot holds
    HeadRange heads;
    Interval tokens;

    /// Whether it has all tokens of the block.
    bool is_whole() const { return tokens == Interval{0, block_tokens}; }
};

/// The place of an instruction's operand in `pool`, of what it reads (has_source()), and of all of a rank's slot 0.
Place place_of(const Schedule& schedule, const Instruction& instruction, Pool pool);
Place source_of(const Schedule& schedule, const Instruction& instruction);
Place own_place(const Schedule& schedule, int rank, Pool pool);

/// Two or more attends of a rank that the schedule marks as fused (Op::fused), so that a device may run them in one
/// launch.
///
/// Forward: no attend of the group waits for the end of another one. Backward: an attend may wait for an earlier one
/// through messages, when a peer adds to a gradient in between. One launch for the whole group must then begin the
/// attends in order before their inputs have arrived, wait inside the launch, and signal the end of each attend. A
/// device that cannot do that runs each section, up to the next of `section_begins`, as a launch of its own.
struct FusedLaunch {
    std::vector<std::size_t> attends;  ///< indices of the operations, in schedule order
    /// Positions in `attends` where a new section begins: that attend waits, directly or through other ranks, for an
    /// attend of the section before it.
    std::vector<std::size_t> section_begins;
};

/// One rank's program of a pass.
struct RankProgram {
    int rank = 0;
    Pass pass = Pass::forward;
    int query_heads = 1;            ///< of the problem
    std::vector<Instruction> code;  ///< the schedule's operations by index, then served sends
    std::size_t operations = 0;     ///< of the schedule
    /// Gradients of keys (dkv, dlatent) whose slot 0 must be set to 0 before the pass, because it is added to before it
    /// is written, or because not all of it is written.
    std::vector<Pool> needs_zeroed;
    bool has_unwritten_output = false;  ///< not all of output slot 0 is written: some rows see nothing
    std::vector<FusedLaunch> fused_launches;

    /// Whether any operation is on this lane.
    bool uses(Lane lane) const;
};

/// A pass of all ranks, with the halves of all messages matched and all rules of Op checked. Made by resolve().
struct Program {
    Pass pass = Pass::forward;
    int lanes = 1;
    std::vector<RankProgram> ranks;

    bool fetches() const;
};

/// Who moves the bytes of a fetch.
enum class Fetches {
    one_sided,  ///< the rank that fetches: it reads the owner's memory
    served,     ///< the owner, by a send: for transports that cannot read a peer's memory
};

/// Checks a schedule and makes a program of it. Throws Error that names rank and operation if the schedule breaks a
/// rule: it uses a slot that does not exist or does not hold what is read, nothing orders two operations that access
/// the same part of a slot, messages do not match, or operations wait for each other (deadlock).
Program resolve(const Schedule& schedule, Fetches fetches = Fetches::one_sided);

/// "rank 3: operation 7, send K,V of block 1, step 2, to rank 4"
std::string describe(int rank, OpIndex index, const Op& op);

/// The same; for the owner's half of a fetch: "rank 3: half of a fetch by rank 1, step 2".
std::string describe(int rank, OpIndex index, const Instruction& instruction);

}  // namespace ringlab::layouts
