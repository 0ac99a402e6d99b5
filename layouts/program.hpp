#pragma once

#include "layouts/joins.hpp"
#include "layouts/schedule.hpp"

#include <string>
#include <vector>

namespace ringlab::layouts {

enum class Access {
    read,
    write,   ///< overwrites all of the part
    update,  ///< reads and writes
};

/// Something that an operation works on at its own rank.
struct Operand {
    Pool pool = Pool::kv;
    int slot = 0;
    Part part;
    Access access = Access::read;
    bool last = false;  ///< the part is undefined afterwards
};

/// All operands of an operation; of an attend and merge in the order in which Op names its pools; what has_source()
/// reads last.
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

/// An operation with what follows from all the others.
struct Instruction {
    Op op;
    bool served = false;   ///< a send that no schedule has: the owner's half of a peer's fetch
    OpIndex partner = -1;  ///< of a message: the other half, in the peer's program
    /// Of both halves of a message of keys or their gradients: nothing of the pass is in the receiver's scratch slot
    /// before it comes, so it may come as soon as the pass has begun everywhere. All messages of the receiver's lane
    /// are from one peer: what has come is a sign that those before it have.
    bool may_come_early = false;
    /// Of both halves of a message, see pace(): an attend that it waits for besides what it comes after, so as not to
    /// begin long before the other half can; -1: none.
    OpIndex paced_by = -1;
    /// Of both halves of a message: FLOP of the sender's next attend, which it travels beside; 0 if there is none, or
    /// the receiver's next one, as the first of its launch, waits for it.
    double flop_beside = 0;
    /// By pool: the first head that the operation's slot holds. A block lies head by head, so this is where the heads
    /// of a part are.
    std::array<int, pool_count> first_head{};
    int source_first_head = 0;

    bool sends() const { return op.kind == OpKind::send; }
    /// A fetch has a partner where its owner serves it.
    bool receives() const { return op.kind == OpKind::receive || (op.kind == OpKind::fetch && partner >= 0); }
};

/// Where an operand lies: in which slot, and which heads and tokens of what the slot holds.
struct Place {
    Pool pool = Pool::kv;
    int slot = 0;
    int first_head = 0;             ///< that the slot holds
    std::int64_t block_tokens = 0;  ///< of the block that the slot holds
    HeadRange heads;
    Interval tokens;

    /// All tokens of the block.
    bool is_whole() const { return tokens == Interval{0, block_tokens}; }
};

/// Of an instruction's operand in `pool`; of what it reads, if it has_source(); and all of a rank's slot 0.
Place place_of(const Schedule& schedule, const Instruction& instruction, Pool pool);
Place source_of(const Schedule& schedule, const Instruction& instruction);
Place own_place(const Schedule& schedule, int rank, Pool pool);

/// One rank's part of a pass.
struct RankProgram {
    int rank = 0;
    Pass pass = Pass::forward;
    int query_heads = 1;            ///< of the problem
    std::vector<Instruction> code;  ///< the schedule's operations by index, then served sends
    std::size_t operations = 0;     ///< of the schedule
    /// Pools of gradients by keys whose slot 0 is added to before it is written, or never written.
    std::vector<Pool> sums_from_zero;
    bool leaves_output = false;  ///< some of output slot 0 is never written: rows that see nothing
    std::vector<Join> joins;

    bool uses(Lane lane) const;
};

/// A pass of all ranks, every message told its other half, every rule of Op checked.
struct Program {
    Pass pass = Pass::forward;
    int lanes = 1;
    std::vector<RankProgram> ranks;

    bool fetches() const;
};

/// Who carries out a fetch.
enum class Fetches {
    one_sided,  ///< the rank that wants it
    served,     ///< its owner sends it: for transports that cannot read a peer's memory
};

/// Resolves a schedule. Throws Error that names rank and operation if the schedule breaks its own rules: a slot that
/// does not exist or does not hold what is read, two operations on one part of a slot that nothing puts in order,
/// messages that do not match, operations that wait for each other.
Program resolve(const Schedule& schedule, Fetches fetches = Fetches::one_sided);

/// "rank 3: operation 7, send K,V of block 1, step 2, to rank 4"
std::string describe(int rank, OpIndex index, const Op& op);

/// The same, or what a served send is: "rank 3: half of a fetch by rank 1, step 2".
std::string describe(int rank, OpIndex index, const Instruction& instruction);

}  // namespace ringlab::layouts
