#pragma once

#include "layouts/operations/pools.hpp"

#include <array>
#include <cstdint>
#include <span>

namespace ringlab::layouts {

/// The whole instruction set: the operations that an interpreter of schedules has to implement.
enum class OpKind : std::uint8_t {
    attend,    ///< compute: attention of the rows in slots[q] to the keys in slots[kv]. Forward: added to state, and at
               ///< the end normalised into output. Backward, with dout: added to dq; dkv is overwritten or added to
    merge,     ///< compute: merges the partial result in slot `source` of output into slots[output]
    add,       ///< compute: adds the gradient in slot `source` of `pool` to slots[pool]
    send,      ///< sends slots[pool] to `peer`, which posts a receive
    receive,   ///< receives slots[pool] from `peer`, which posts a send
    fetch,     ///< reads slot 0 of `peer` into slots[pool]; the peer does nothing
    copy,      ///< compute: copies slot `source` of `pool` to slots[pool], whose element type may differ
    expand,    ///< compute: K and V of some heads into slots[kv], from the latent in slot `source`
    compress,  ///< compute: the gradient of the latent into slots[dlatent], overwritten or added to, from dK and dV in
               ///< slot `source` of dkv; with slots[latent] also the rank's part of the matrices' gradient
};

const char* to_string(OpKind kind);

/// Heads [begin, end).
struct HeadRange {
    int begin = 0;
    int end = 0;

    constexpr int count() const { return end - begin; }
    constexpr bool contains(HeadRange other) const { return begin <= other.begin && other.end <= end; }
    friend constexpr bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// Tokens [begin, end) of a block in its local order, for some heads: query heads in pools of rows, kv heads in pools
/// of keys. See Schedule::block().
struct Part {
    int block = 0;
    HeadRange heads;
    Interval tokens;

    friend constexpr bool operator==(const Part&, const Part&) = default;
};

/// Index of an operation in its rank's schedule, from 0.
using OpIndex = std::int32_t;

/// One in-order queue of a rank: its operations run one at a time, in schedule order. The lanes of a rank run
/// concurrently. Lane 0 computes; message channel c sends on lane 1 + 2c and receives on lane 2 + 2c.
using Lane = int;
inline constexpr Lane compute_lane = 0;

/// One operation of one rank. It may begin when the operation before it on its lane and all of after() have ended; a
/// transfer also needs its peer's side to be ready.
///
/// Slots are the numbered buffers of a pool. Slot 0 holds the rank's own tensors, see Schedule::keeps(): q, kv (or the
/// latent) and dout are inputs; output and dq are results, 0 (and lse -inf) where no operation writes them; dkv (or
/// dlatent) is the wanted sum, 0 at the start. Gradients in slot 0 have the accumulator's type. The other slots are
/// scratch: they start undefined and hold one block at a time. Writing a part of another block, or heads that the slot
/// does not hold, discards what it held.
struct Op {
    OpKind kind = OpKind::attend;
    Pool pool = Pool::kv;      ///< that a transfer moves, or that an operation with has_source() writes
    bool begins = false;       ///< attend: first of these rows, overwrites state or dq; merge: overwrites output
    bool ends = false;         ///< attend, forward: last of these rows, normalises them into output
    bool adds = false;         ///< attend, backward: adds to dkv; compress: adds to dlatent; else they overwrite it
    bool fused = false;        ///< attend: continues the attend before it; a device may run both as one launch
    std::int16_t channel = 0;  ///< of a transfer; messages between two ranks on one channel match in order
    int step = 0;              ///< of the algorithm, for display and for pace_messages()
    int peer = -1;             ///< ring rank at the other end of a transfer
    int source = 0;            ///< slot that an operation with has_source() reads
    Part part;                 ///< what is sent, received or written; attend: the keys
    Part second;               ///< see rows() and read()
    std::array<int, pool_count> slots{};  ///< by pool: the slot that the operation uses
    std::int64_t pair_count = 0;          ///< attend: visible (query, key) pairs of one query head and batch element
    std::int64_t bytes = 0;               ///< size of the message; has_source(): of what is read
    std::array<OpIndex, 4> after_storage{};
    int after_count = 0;

    std::span<const OpIndex> after() const { return {after_storage.data(), static_cast<std::size_t>(after_count)}; }
    int& slot(Pool of) { return slots[static_cast<std::size_t>(of)]; }
    int slot(Pool of) const { return slots[static_cast<std::size_t>(of)]; }

    /// The slot of `pool`.
    int slot() const { return slot(pool); }

    /// The query rows of an attend.
    Part& rows() { return second; }
    const Part& rows() const { return second; }

    /// Whether the operation reads slot `source` of source_pool() to write another slot: merge, add, copy, expand and
    /// compress.
    bool has_source() const { return !transfers() && kind != OpKind::attend; }

    /// What an operation with has_source() reads: the same tokens as `part`, and the same heads if both are in the same
    /// pool.
    Part& read() { return second; }
    const Part& read() const { return second; }
    Pool source_pool() const {
        return kind == OpKind::expand ? Pool::latent : kind == OpKind::compress ? Pool::dkv : pool;
    }

    bool transfers() const { return kind == OpKind::send || kind == OpKind::receive || kind == OpKind::fetch; }
    Lane lane() const { return transfers() ? 1 + 2 * channel + (kind != OpKind::send) : compute_lane; }

    /// Adds a dependency on an operation of the same rank; -1 means none. Throws Error if there are more than four.
    void run_after(OpIndex index);
};

}  // namespace ringlab::layouts
