#pragma once

#include "layouts/layout.hpp"
#include "layouts/mask.hpp"
#include "layouts/problem.hpp"
#include "layouts/work.hpp"

#include <array>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::layouts {

/// Tensors that lie in one slot, travel in one message and are worked on together.
enum class Pool : std::uint8_t {
    kv,       ///< keys and values
    dkv,      ///< their gradients
    q,        ///< query rows
    state,    ///< running softmax (o, m, l) of rows: o not normalised, all in the accumulator's type
    output,   ///< (o, lse) of rows, normalised
    dout,     ///< dO of rows with what the backward pass knows of them (lse, delta)
    dq,       ///< gradient of rows
    latent,   ///< what keys and values of all heads are expanded from, see Problem
    dlatent,  ///< its gradient
};
inline constexpr int pool_count = 9;

/// Whether a pool holds something of query rows, by query heads; otherwise of keys, by kv heads, or for all of these.
constexpr bool of_rows(Pool pool) {
    return pool != Pool::kv && pool != Pool::dkv && pool != Pool::latent && pool != Pool::dlatent;
}

/// Whether attention is computed from what a pool holds, rather than to it.
constexpr bool is_input(Pool pool) {
    return pool == Pool::kv || pool == Pool::latent || pool == Pool::q || pool == Pool::dout;
}

/// How many heads all of a pool's are.
int heads_of(const Problem& problem, Pool pool);

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
const char* to_string(Pool pool);

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

/// The operations of one rank, made one by one as they are asked for: a coroutine that co_yields Op and gets its
/// OpIndex.
class Ops {
public:
    struct promise_type;
    struct WorkplaceTag {};
    static constexpr WorkplaceTag workplace{};
    using Handle = std::coroutine_handle<promise_type>;

    // Small: thousands of ranks have one each.
    struct promise_type {
        const Op* current = nullptr;
        Op* place = nullptr;
        OpIndex made = 0;
        bool owns_place = false;

        ~promise_type() {
            if (owns_place) delete place;
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
        /// `Op& op = co_await Ops::workplace;` gives the stream an Op to make its operations in: one that the reader
        /// lends (see made_in), or else one of its own.
        struct Workplace {
            Op& op;
            bool await_ready() const noexcept { return true; }
            void await_suspend(Handle) const noexcept {}
            Op& await_resume() const noexcept { return op; }
        };
        Workplace await_transform(WorkplaceTag) {
            owns_place = !place;
            if (owns_place) place = new Op;
            return {*place};
        }

        YieldIndex yield_value(const Op& op) noexcept {
            current = &op;
            return {made++};
        }
        void return_void() noexcept {}
        void unhandled_exception() { throw; }  // to who asks for the next operation
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
    const Op* next();

    /// Lets the stream, and others, make operations in `op` if they can, which saves memory where there are thousands
    /// of them: an operation is then valid until the next call of any of them. Before the first next().
    Ops made_in(Op& op) &&;

    /// Lets indices begin at `first`, for operations that are part of a longer stream; before the first next().
    Ops numbered_from(OpIndex first) &&;

private:
    explicit Ops(Handle handle) : handle_(handle) {}
    Handle handle_;
};

/// How forward partial results of several blocks become one.
enum class Accumulation {
    carry,     ///< (o, m, l) continue inside the kernel from block to block, nothing is rounded between
    partials,  ///< every block gives a normalised (o, lse) in the problem's dtype, merged by an operation of its own
};

struct ScheduleOptions {
    std::string algorithm = "ring";  ///< as typed: "ring", "all-gather:2", "pull"
    Pass pass = Pass::forward;
    Accumulation accumulation = Accumulation::carry;
    DType gradient_dtype = DType::fp32;  ///< of dK, dV between ranks
};

/// Scratch slots of one kind that a schedule asks of every rank. Those of a pool are numbered from 1, through its
/// groups in order.
struct SlotGroup {
    Pool pool = Pool::kv;
    int count = 0;
    int heads = 0;              ///< that each holds at a time
    std::int64_t tokens = 0;    ///< of the largest block that each may hold
    DType dtype = DType::bf16;  ///< of elements; m, l, lse and delta are always in the accumulator's type
};

struct Program;

/// What every rank does and when: the one description that simulator, CPU and GPU interpret.
class Schedule {
public:
    /// Throws Error if problem, mask and layout disagree about the tokens, or the problem is not valid.
    Schedule(Problem problem, Mask mask, Layout layout, ScheduleOptions options);
    virtual ~Schedule() = default;
    Schedule(const Schedule&) = delete;
    Schedule& operator=(const Schedule&) = delete;

    const Problem& problem() const { return problem_; }
    const Mask& mask() const { return mask_; }
    const Layout& layout() const { return layout_; }
    const ScheduleOptions& options() const { return options_; }
    int ranks() const { return layout_.ranks(); }

    /// A fresh stream of the operations of `rank`. Constant memory; the schedule must outlive it.
    virtual Ops ops(int rank) const = 0;

    /// Whether ranks do the same but for their number: an operation of rank r is rank 0's with its peer and blocks r
    /// ranks further on, around the ring. Attends are to whole blocks, and their cells, never 0, depend on nothing but
    /// which of rows and keys is the greater block.
    virtual bool ranks_are_alike() const { return false; }

    /// Scratch of every rank.
    const std::vector<SlotGroup>& slots() const { return slots_; }

    /// What travels on each channel that this pass uses, for people: "K,V".
    const std::vector<std::string>& channels() const { return channels_; }
    int lanes() const { return 1 + 2 * static_cast<int>(channels_.size()); }
    std::string lane_name(Lane lane) const;

    /// Tokens that lie together: block r is the shard of rank r; a schedule may put others together from shards. Where
    /// few positions have a query row, a rank's rows are a block of their own.
    int blocks() const { return static_cast<int>(blocks_.size()); }
    std::span<const Run> block(int index) const;
    std::int64_t block_tokens(int index) const { return blocks_[static_cast<std::size_t>(index)].tokens; }

    /// Whether a rank has something of its own in slot 0 of a pool. With a latent no K and V unless they are expanded
    /// at home.
    bool keeps(Pool pool) const {
        if (pool == Pool::kv || pool == Pool::dkv) return !problem_.latent.is_given() || expands_at_home_;
        return (pool != Pool::latent && pool != Pool::dlatent) || problem_.latent.is_given();
    }

    /// The block of a rank's own rows, and of what slot 0 of a pool holds.
    int row_block(int rank) const { return first_row_block_ + rank; }
    int own_block(Pool pool, int rank) const { return of_rows(pool) ? row_block(rank) : rank; }

    /// All tokens of a block.
    Part part(int block, HeadRange heads) const { return {block, heads, {0, block_tokens(block)}}; }
    Part rows_of(int rank, HeadRange heads) const { return part(row_block(rank), heads); }
    bool is_whole(const Part& part) const { return part.tokens == Interval{0, block_tokens(part.block)}; }

    /// Global positions of a part, in its order: what the mask is asked with. Virtual, as amend(), so that mistakes can
    /// be made on purpose from outside.
    virtual std::vector<Run> runs(const Part& part) const;

    /// Changes what resolve() made of this schedule, when all its rules have been checked.
    virtual void amend(Program&) const {}

    /// Positions of a rank's own rows, in local order, and where they lie in Q.
    std::vector<std::int64_t> row_positions(int rank) const;
    std::vector<std::int64_t> row_places(int rank) const { return problem_.rows_at(row_positions(rank)); }

    /// Visible pairs of one query head and batch element between rows and keys.
    std::int64_t cells(const Part& rows, const Part& keys) const;
    std::int64_t cells(int rows_block, int keys_block) const;
    bool needs(int rank, int owner) const { return sees(row_block(rank), owner); }

    /// Whether there are any.
    bool sees(int rows_block, int keys_block) const;

    /// Element type of a slot of a pool; slot 0 is the rank's own.
    DType dtype(Pool pool, int slot) const;

    /// Of sums: fp64 for an fp64 problem, else fp32.
    DType accumulator() const { return problem_.dtype == DType::fp64 ? DType::fp64 : DType::fp32; }

    /// Bytes of one token of one head and batch element in a slot.
    std::int64_t token_bytes(Pool pool, int slot) const;
    std::int64_t bytes(Pool pool, int slot, const Part& part) const {
        return problem_.batch * part.tokens.size() * part.heads.count() * token_bytes(pool, slot);
    }

    /// Floating-point operations of an attend, all its heads and batch elements.
    double flop(const Op& attend) const;

    /// Bytes of scratch slots per rank.
    std::int64_t scratch_bytes() const;

protected:
    HeadRange kv_heads() const { return {0, static_cast<int>(problem_.kv_heads)}; }
    HeadRange query_heads() const { return {0, static_cast<int>(problem_.query_heads)}; }

    /// The query heads that read these kv heads.
    HeadRange query_heads(HeadRange kv_heads) const;

    /// As many equal parts of the kv heads as leave each of a block's large enough to be worth a message.
    int parts_worth_a_message() const;

    // For constructors.
    void set_channels(std::vector<std::string> names) { channels_ = std::move(names); }

    /// With more of them in the backward pass. Lanes that a pass never uses would be waited for.
    void set_channels(std::vector<std::string> names, const std::vector<std::string>& backward_names);
    void add_slots(Pool pool, int count, int heads, std::int64_t tokens, DType dtype);
    void add_slots(Pool pool, int count, int heads, std::int64_t tokens);  ///< of the type that slot 0 has
    void expand_at_home() { expands_at_home_ = true; }
    int add_block(std::vector<Run> runs);
    std::int64_t largest_rows() const;
    bool partials() const { return options_.pass == Pass::forward && options_.accumulation == Accumulation::partials; }

    // Operations with the fields that follow from the problem filled in; the caller adds what begins and ends, and
    // dependencies. An attend has its rows in `row_slot` of all pools, but for output: with Accumulation::partials that
    // is the slot after it, and the attend begins and ends there.
    Op attend(int step, const Part& rows, const Part& keys, int row_slot, int kv_slot) const;
    Op merge(int step, const Part& rows, int slot, int source) const;
    Op add(Pool pool, int step, const Part& part, int slot, int source) const;
    Op add(Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;
    Op copy(Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;
    /// `keys` with the heads that K and V are made for, or that their gradients are summed over.
    Op expand(int step, const Part& keys, int slot, int source) const;
    Op compress(int step, const Part& keys, int slot, int latent_slot, int source) const;
    Op transfer(OpKind kind, int channel, Pool pool, int step, int peer, const Part& part, int slot) const;

private:
    struct Block {
        std::vector<Run> runs;  // empty: a shard of the layout
        std::int64_t tokens;
        KeyCounter keys;
    };

    Op take_in(OpKind kind, Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;

    Problem problem_;
    Mask mask_;
    Layout layout_;
    ScheduleOptions options_;
    std::vector<Block> blocks_;
    int first_row_block_ = 0;
    bool expands_at_home_ = false;
    std::vector<SlotGroup> slots_;
    std::vector<std::string> channels_;
};

/// Throws Error where the schedule's name or its arguments are wrong, or where it has no use for the problem. With a
/// latent that is what travels in place of K and V, whichever schedule it is; see latent.hpp.
std::unique_ptr<Schedule> make_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                        const ScheduleOptions& options);

using ScheduleFactory = std::function<std::unique_ptr<Schedule>(const std::string& arguments, const Problem&,
                                                                const Mask&, const Layout&, const ScheduleOptions&)>;
Registry<ScheduleFactory>& schedules();

/// A namespace-scope object of this type makes a schedule known by name.
struct ScheduleRegistration {
    ScheduleRegistration(std::string name, std::string usage, std::string help, ScheduleFactory factory) {
        schedules().add(std::move(name), {std::move(usage), std::move(help), std::move(factory)});
    }
};

}  // namespace ringlab::layouts
