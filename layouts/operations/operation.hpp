#pragma once

#include "layouts/problem/problem.hpp"

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace ringlab::layouts {

/// A pool: tensors that share a slot, travel in one message and are used together. What each pool holds stands in
/// pool_table.
enum class Pool : std::uint8_t { kv, dkv, q, state, output, dout, dq, latent, dlatent };
inline constexpr int pool_count = 9;

/// How many numbers a tensor of a pool has for each token and head.
enum class Width : std::uint8_t { head_dim, value_dim, latent, one, two };

/// One tensor of a pool: (batch, tokens, heads, width).
struct PoolTensor {
    const char* name = nullptr;
    Width width = Width::one;
    /// Statistics of rows (m, l, lse, delta) are always in the accumulator's type. All other tensors of a slot have the
    /// slot's element type, see Schedule::dtype().
    bool statistic = false;
};

/// The heads that a pool has.
enum class Heads : std::uint8_t { query, kv, one };

/// What a pool holds.
struct PoolDescription {
    static constexpr std::size_t most_tensors = 3;

    Pool pool = Pool::kv;
    const char* name = nullptr;  ///< in messages to people and in traces
    Heads heads = Heads::query;
    bool input = false;  ///< attention is computed from it; otherwise it is a result of attention
    bool sum = false;    ///< slot 0 is in the accumulator's type, because it is summed up
    std::array<PoolTensor, most_tensors> row{};

    /// In the order in which they lie in a slot and travel.
    constexpr std::span<const PoolTensor> tensors() const {
        std::size_t count = 0;
        while (count < most_tensors && row[count].name) ++count;
        return {row.data(), count};
    }
};

/// Every pool, by number. Schedule (types and bytes), both backends (memory) and the simulator (messages) read this
/// table. A new tensor of rows is one more entry of a row here. A new tensor of keys, such as the scales of an 8-bit
/// payload, also needs the backends to keep fields of different types in one slot: CpuSlots and SlotMap do that for
/// pools of rows only.
inline constexpr std::array<PoolDescription, pool_count> pool_table{{
    {Pool::kv, "K,V", Heads::kv, true, false, {{{"k", Width::head_dim}, {"v", Width::value_dim}}}},
    {Pool::dkv, "dK,dV", Heads::kv, false, true, {{{"dk", Width::head_dim}, {"dv", Width::value_dim}}}},
    {Pool::q, "Q", Heads::query, true, false, {{{"q", Width::head_dim}}}},
    // Running softmax of rows: o is not normalised yet, m is the maximum, l the sum.
    {Pool::state,
     "state",
     Heads::query,
     false,
     true,
     {{{"o", Width::value_dim}, {"m", Width::one, true}, {"l", Width::one, true}}}},
    {Pool::output, "O", Heads::query, false, false, {{{"o", Width::value_dim}, {"lse", Width::one, true}}}},
    // dO, and what the backward pass knows of its rows.
    {Pool::dout, "dO", Heads::query, true, false, {{{"dout", Width::value_dim}, {"lse,delta", Width::two, true}}}},
    {Pool::dq, "dQ", Heads::query, false, true, {{{"dq", Width::head_dim}}}},
    // The latent from which K and V of all heads are expanded, see Problem, and its gradient.
    {Pool::latent, "latent", Heads::one, true, false, {{{"latent", Width::latent}}}},
    {Pool::dlatent, "dlatent", Heads::one, false, true, {{{"dlatent", Width::latent}}}},
}};

constexpr const PoolDescription& description(Pool pool) { return pool_table[static_cast<std::size_t>(pool)]; }
constexpr std::span<const PoolTensor> tensors(Pool pool) { return description(pool).tensors(); }
constexpr const char* to_string(Pool pool) { return description(pool).name; }

/// Whether a pool belongs to query rows and has query heads. The others belong to keys and have kv heads, or one head
/// for all of them.
constexpr bool of_rows(Pool pool) { return description(pool).heads == Heads::query; }

/// Whether a pool is an input of attention, and not a result or a running sum.
constexpr bool is_input(Pool pool) { return description(pool).input; }

/// Number of heads that a pool has in this problem.
int heads_of(const Problem& problem, Pool pool);

/// Numbers of one token and head.
std::int64_t width(const Problem& problem, const PoolTensor& tensor);

/// The same, of all tensors of a pool.
std::int64_t width(const Problem& problem, Pool pool);

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
    int step = 0;              ///< of the schedule, for display and for pace_messages()
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

/// The operations of one rank, generated one by one on demand: a coroutine that co_yields an Op and gets back its
/// OpIndex. It may also co_yield another such stream, whose operations then come next.
class Ops {
public:
    struct promise_type;
    struct OpStorageTag {};
    static constexpr OpStorageTag op_storage{};
    using Handle = std::coroutine_handle<promise_type>;

    // Kept small, because thousands of ranks have one each.
    struct promise_type {
        const Op* current = nullptr;
        Op* place = nullptr;
        Handle part = nullptr;  // the stream that the coroutine has co_yielded last, until it ends
        OpIndex made = 0;
        bool owns_storage = false;

        ~promise_type() {
            if (part) part.destroy();
            if (owns_storage) delete place;
        }

        struct YieldIndex {
            OpIndex index;
            bool await_ready() const noexcept { return false; }
            void await_suspend(Handle) const noexcept {}
            OpIndex await_resume() const noexcept { return index; }
        };

        Ops get_return_object() { return Ops(Handle::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        /// `Op& op = co_await Ops::op_storage;` gives the coroutine an Op to build its operations in: the one passed to
        /// with_op_storage(), or else one that the stream allocates.
        struct OpStorage {
            Op& op;
            bool await_ready() const noexcept { return true; }
            void await_suspend(Handle) const noexcept {}
            Op& await_resume() const noexcept { return op; }
        };
        OpStorage await_transform(OpStorageTag) {
            // clang's analyser does not see where a promise is initialised.
            owns_storage = !place;  // NOLINT(clang-analyzer-core.uninitialized.Assign)
            if (owns_storage) place = new Op;
            return {*place};
        }

        YieldIndex yield_value(const Op& op) noexcept {
            current = &op;
            return {made++};
        }
        /// Builds its operations where this stream does.
        std::suspend_always yield_value(Ops&& stream) noexcept {
            part = std::exchange(stream.handle_, nullptr);
            part.promise().made = made;
            if (place) part.promise().place = place;
            return {};
        }
        void return_void() noexcept {}
        void unhandled_exception() { throw; }  // to the caller of next()
    };

    Ops(Ops&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Ops& operator=(Ops&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Ops() {
        if (handle_) handle_.destroy();
    }

    /// The next operation, or nullptr after the last. Valid until the next call.
    const Op* next() { return next(handle_); }

    /// Lets the stream build its operations in `op`, if it asks for an OpStorage. Several streams may share one `op`,
    /// which saves memory when there are thousands of them; an operation is then valid only until next() is called on
    /// any of them. To be called before the first next().
    Ops with_op_storage(Op& op) &&;

    /// Numbers the operations from `first` on, for a part of a longer stream. To be called before the first next().
    Ops numbered_from(OpIndex first) &&;

private:
    explicit Ops(Handle handle) : handle_(handle) {}
    static const Op* next(Handle handle);

    Handle handle_;
};

}  // namespace ringlab::layouts
