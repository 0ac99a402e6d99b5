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

/// The whole instruction set: what an interpreter must be able to do, and all it needs to know.
enum class OpKind {
    attend,   ///< compute: the rank's query rows against the K/V block in `slot`; backward writes dK/dV to
              ///< `gradient_slot`
    merge,    ///< compute: take the last attend's normalised partial (o, lse) into the running result
    add,      ///< compute: dK/dV of `gradient_slot` added to those in `slot`
    send,     ///< `slot` to `peer`, which posts a receive
    receive,  ///< into `slot` from `peer`, which posts a send
    fetch,    ///< into `slot`, read from the memory of `peer` (== owner), which does nothing
};

/// One queue per rank and lane: operations of a lane run one at a time, in schedule order. Lanes of a rank run beside
/// each other.
enum class Lane { compute, send_kv, receive_kv, send_dkv, receive_dkv };
inline constexpr int lane_count = 5;

/// What a transfer carries. Messages between two ranks with the same payload match in order.
enum class Payload { kv, dkv };

const char* to_string(OpKind kind);
const char* to_string(Lane lane);
const char* to_string(Payload payload);

/// Kv heads [begin, end), with all query heads that read them.
struct HeadRange {
    int begin = 0;
    int end = 0;

    constexpr int count() const { return end - begin; }
    friend constexpr bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// Index of an operation in its rank's schedule, from 0.
using OpIndex = std::int64_t;

/// One operation of one rank. It may begin when the operation before it on its lane and all of `after` have ended
/// (and a transfer when its peer's side is ready as well).
///
/// Slots are numbered buffers. K/V slot 0 is the rank's own block, given by the user; the others are scratch. dK/dV
/// slot 0 is the rank's own gradient, zero at the start and the result at the end; the others are scratch and start
/// undefined.
struct Op {
    OpKind kind = OpKind::attend;
    Lane lane = Lane::compute;
    Payload payload = Payload::kv;
    int step = 0;     ///< of the algorithm, for people and plots
    int peer = -1;    ///< ring rank at the other end of a transfer
    int owner = 0;    ///< ring rank whose K/V block, or gradient of it, this is about
    HeadRange heads;  ///< of that block
    int slot = 0;
    int gradient_slot = -1;  ///< attend, backward: dK/dV slot overwritten for `heads`; add: dK/dV slot read
    bool fused = false;      ///< attend: continues the attend before it; a device may run both as one launch
    std::int64_t cells = 0;  ///< attend: visible (query, key) pairs of one query head and batch element
    std::int64_t bytes = 0;  ///< of the message; add and merge: of the operand taken in
    std::array<OpIndex, 4> after_storage{};
    int after_count = 0;

    std::span<const OpIndex> after() const { return {after_storage.data(), static_cast<std::size_t>(after_count)}; }

    /// Adds a dependency; -1 stands for none.
    void run_after(OpIndex index);
};

/// The operations of one rank, made one by one as they are asked for: a coroutine that co_yields Op and gets its
/// OpIndex.
class Ops {
public:
    struct promise_type;
    using Handle = std::coroutine_handle<promise_type>;

    struct promise_type {
        const Op* current = nullptr;
        OpIndex made = 0;
        std::exception_ptr error;

        struct YieldIndex {
            OpIndex index;
            bool await_ready() const noexcept { return false; }
            void await_suspend(Handle) const noexcept {}
            OpIndex await_resume() const noexcept { return index; }
        };

        Ops get_return_object() { return Ops(Handle::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        YieldIndex yield_value(const Op& op) noexcept {
            current = &op;
            return {made++};
        }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { error = std::current_exception(); }
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

/// Scratch that a schedule asks of every rank, beyond inputs and results.
struct SlotPlan {
    int kv_slots = 0;        ///< K/V slots 1..kv_slots
    int kv_slot_heads = 0;   ///< kv heads that each holds at a time
    int gradient_slots = 0;  ///< dK/dV slots 1..gradient_slots
    int gradient_slot_heads = 0;
};

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
    virtual SlotPlan slots() const = 0;

    /// Visible pairs of one query head and batch element between the rows of `rank` and the keys of `owner`.
    std::int64_t cells(int rank, int owner) const;
    bool needs(int rank, int owner) const { return cells(rank, owner) > 0; }

    /// Bytes of the K/V block of `owner`, or of its gradient, for `head_count` kv heads.
    std::int64_t block_bytes(Payload payload, int owner, int head_count) const;

    /// Floating-point operations of an attend, all its heads and batch elements.
    double flop(const Op& attend) const;

    /// Bytes of scratch slots per rank, sized for the largest shard.
    std::int64_t scratch_bytes() const;

protected:
    HeadRange all_heads() const { return {0, static_cast<int>(problem_.kv_heads)}; }

    // Operations with the fields that follow from the problem filled in; the caller adds dependencies.
    Op attend(int rank, int step, int owner, HeadRange heads, int slot, int gradient_slot) const;
    Op merge(int rank, int step, int owner, HeadRange heads) const;
    Op add(int step, int owner, HeadRange heads, int slot, int from_slot) const;
    Op transfer(OpKind kind, Payload payload, int step, int peer, int owner, HeadRange heads, int slot) const;

private:
    Problem problem_;
    Mask mask_;
    Layout layout_;
    ScheduleOptions options_;
    std::vector<KeyCounter> keys_;  // by owner
};

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
