#pragma once

#include "layouts/pools.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace ringlab::layouts {

/// The whole instruction set: what an interpreter must be able to do, and all it needs to know.
enum class OpKind : std::uint8_t {
    attend,    ///< compute: rows of `slots` q against keys of kv. Forward: taken into state, or normalised into output.
               ///< Backward, with dout: taken into dq; dkv is overwritten, or added to
    merge,     ///< compute: the output of slot `source` taken into that of slots[output]
    add,       ///< compute: the gradient of slot `source` added to that of slots[pool]
    send,      ///< slots[pool] to `peer`, which posts a receive
    receive,   ///< into slots[pool] from `peer`, which posts a send
    fetch,     ///< into slots[pool], read from slot 0 of `peer`, which does nothing
    copy,      ///< compute: slot `source` of `pool` to slots[pool], perhaps of another type
    expand,    ///< compute: some heads of slots[kv], made of the latent of slot `source`
    compress,  ///< compute: slots[dlatent], overwritten or added to, from the heads' gradient of slot `source` of dkv;
               ///< and, by slots[latent], the rank's part of the matrices' gradient
};
inline constexpr int op_kind_count = 9;

const char* to_string(OpKind kind);

/// Heads [begin, end).
struct HeadRange {
    int begin = 0;
    int end = 0;

    constexpr int count() const { return end - begin; }
    constexpr bool contains(HeadRange other) const { return begin <= other.begin && other.end <= end; }
    friend constexpr bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// Tokens [begin, end) of a block in its local order, and heads of them: query heads in pools of rows, kv heads in
/// pools of keys. See Schedule::block().
struct Part {
    int block = 0;
    HeadRange heads;
    Interval tokens;

    friend constexpr bool operator==(const Part&, const Part&) = default;
};

/// Index of an operation in its rank's schedule, from 0.
using OpIndex = std::int32_t;

/// One queue of a rank: operations of a lane run one at a time, in schedule order. Lanes of a rank run beside each
/// other. Lane 0 computes; channel c of messages has lane 1 + 2c out and 2 + 2c in.
using Lane = int;
inline constexpr Lane compute_lane = 0;

/// One operation of one rank. It may begin when the operation before it on its lane and all of `after` have ended (and
/// a transfer when its peer's side is ready as well).
///
/// Slots are numbered buffers of a pool. Slot 0 is the rank's own, see Schedule::keeps(): q, kv (or the latent) and
/// dout are given; output and dq are what attends, merges and messages leave in them, and 0 (lse -inf) where none does;
/// dkv (or dlatent) is the sum wanted, 0 at the start; gradients are in the accumulator's type. The others are scratch,
/// start undefined, and hold one block at a time: a part of another block, or with other heads than lie there,
/// displaces what was there.
struct Op {
    OpKind kind = OpKind::attend;
    Pool pool = Pool::kv;      ///< that a transfer, merge, add or copy is about
    bool begins = false;       ///< attend: first for these rows, state or dq starts here; merge: output starts here
    bool ends = false;         ///< attend, forward: last for these rows, which are normalised into output
    bool adds = false;         ///< attend, backward: to dkv, compress: to dlatent, where earlier parts of it are
    bool fused = false;        ///< attend: continues the attend before it; a device may run both as one launch
    std::int16_t channel = 0;  ///< of a transfer; messages between two ranks on one channel match in order
    int step = 0;              ///< of the algorithm, for people and plots
    int peer = -1;             ///< ring rank at the other end of a transfer
    int source = 0;            ///< slot that an operation with has_source() reads
    Part part;                 ///< what it is about; attend: the keys; has_source(): what is written
    Part second;               ///< see rows() and read()
    std::array<int, pool_count> slots{};  ///< by pool
    std::int64_t cells = 0;               ///< attend: visible (query, key) pairs of one query head and batch element
    std::int64_t bytes = 0;               ///< of the message; has_source(): of what is read
    std::array<OpIndex, 4> after_storage{};
    int after_count = 0;

    std::span<const OpIndex> after() const { return {after_storage.data(), static_cast<std::size_t>(after_count)}; }
    int& slot(Pool of) { return slots[static_cast<std::size_t>(of)]; }
    int slot(Pool of) const { return slots[static_cast<std::size_t>(of)]; }

    /// Of the operation's own pool.
    int slot() const { return slot(pool); }

    /// Of an attend: its rows.
    Part& rows() { return second; }
    const Part& rows() const { return second; }

    /// Whether it reads a slot, `source`, to write another.
    bool has_source() const { return !transfers() && kind != OpKind::attend; }

    /// Of such an operation: what is read, the same tokens, and the same heads where both pools have them.
    Part& read() { return second; }
    const Part& read() const { return second; }
    Pool source_pool() const {
        return kind == OpKind::expand ? Pool::latent : kind == OpKind::compress ? Pool::dkv : pool;
    }

    bool transfers() const { return kind == OpKind::send || kind == OpKind::receive || kind == OpKind::fetch; }
    Lane lane() const { return transfers() ? 1 + 2 * channel + (kind != OpKind::send) : compute_lane; }

    /// Adds a dependency; -1 stands for none.
    void run_after(OpIndex index);
};

}  // namespace ringlab::layouts
