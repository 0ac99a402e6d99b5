#pragma once

#include "layouts/basics/basic_types.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/operations/operation.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace ringlab::layouts {

enum class OpState : std::uint8_t {
    waiting,  ///< for its lane, its dependencies or the host
    issuing,  ///< everything is ready but the host's issue
    posted,   ///< its own side of a transfer is ready, the peer's is not
    running,
    done,
};

/// What is kept of an operation while it is in a rank's window: 32 bytes. Other operations are given by their distance
/// in the schedule, of which these are the lower 16 bits.
struct PendingOp {
    Picoseconds time = 0;                  ///< when the host issues it; once it runs, when it began
    std::int64_t work = 0;                 ///< bytes of a transfer, picoseconds of compute
    std::int32_t peer = -1;                // of a transfer
    std::array<std::uint16_t, 4> after{};  ///< distances back to operations that must have ended; 0: none
    std::uint16_t next_in_lane = 0;        ///< distance to the lane's next operation; 0: not read yet
    OpState state = OpState::waiting;
    std::uint8_t kind_code : 4 = 0;
    std::uint8_t pool_code : 4 = 0;

    OpKind kind() const { return static_cast<OpKind>(kind_code); }
    Pool pool() const { return static_cast<Pool>(pool_code); }
};
static_assert(sizeof(PendingOp) == 32);

/// The operations of one rank from the first unfinished one to the last one read, with the first unfinished one (head)
/// of each lane. It grows as operations are read; how far reading runs ahead of execution depends on the schedule.
class OpWindow {
public:
    static constexpr std::uint32_t none = ~0u;

    static constexpr int most_lanes = 31;  // of compute and 15 channels

    explicit OpWindow(int lanes) : lanes_(static_cast<std::uint8_t>(lanes)) {
        require(lanes <= most_lanes, "a rank has {} lanes; there is room for {}", lanes, most_lanes);
        resize(first_capacity);
    }

    bool empty() const { return base_ == end_; }
    std::uint32_t size() const { return end_ - base_; }
    std::uint32_t end() const { return end_; }

    PendingOp& operator[](std::uint32_t op) { return ops()[place_of(op)]; }

    /// First unfinished operation of the lane, or `none`.
    std::uint32_t head(Lane lane) const { return knows(lane) ? ends(lane).head : none; }

    /// Whether every lane has a head.
    bool every_lane_has_head() const { return lanes_with_ops_ == (1u << lanes_) - 1; }

    /// Moves the head of a lane from state `waiting` to another one.
    void set_head_state(Lane lane, OpState to) {
        (*this)[head(lane)].state = to;
        waiting_ &= ~(1u << lane);
    }

    /// Bit mask of the lanes whose head is in state `waiting`.
    std::uint32_t waiting() const { return waiting_; }

    /// Appends an operation. `first_rank` is the first rank of its ring; the operation counts ranks of the ring from 0.
    void push(const Op& op, int first_rank, Picoseconds issued, std::int64_t work) {
        if (size() == capacity_) grow();
        ++end_;
        const auto self = end_ - 1;
        auto& pending = (*this)[self];
        pending = PendingOp{};
        pending.time = issued;
        pending.work = work;
        pending.peer = op.peer < 0 ? op.peer : first_rank + op.peer;
        pending.kind_code = static_cast<std::uint8_t>(op.kind) & 15;
        pending.pool_code = static_cast<std::uint8_t>(op.pool) & 15;
        if (has_wide_distances()) upper_halves(self) = {};
        for (std::size_t i = 0; const auto index : op.after()) {
            const auto distance = self - static_cast<std::uint32_t>(index);
            if (distance > self - base_ || (*this)[self - distance].state == OpState::done) continue;
            pending.after[i] = low(distance);
            if (has_wide_distances()) upper_halves(self).after[i] = high(distance);
            ++i;
        }
        const auto lane = op.lane();
        auto& [head, tail] = ends(lane);
        if (knows(lane)) {
            (*this)[tail].next_in_lane = low(self - tail);
            if (has_wide_distances()) upper_halves(tail).next_in_lane = high(self - tail);
        } else {
            head = self;
            lanes_with_ops_ |= 1u << lane;
            waiting_ |= 1u << lane;
        }
        tail = self;
    }

    /// Whether `op`, which was read, has ended.
    bool has_ended(std::uint32_t op) { return op < base_ || (*this)[op].state == OpState::done; }

    /// Whether all operations that `op` depends on have ended.
    bool may_run(std::uint32_t op) {
        const auto& after = (*this)[op].after;
        for (std::size_t i = 0; i < after.size(); ++i) {
            const auto distance =
                has_wide_distances() ? after[i] | std::uint32_t{upper_halves(op).after[i]} << 16 : after[i];
            if (distance != 0 && distance <= op - base_ && (*this)[op - distance].state != OpState::done) return false;
        }
        return true;
    }

    /// Marks the head of a lane as done and moves on to the lane's next operation.
    void finish_head(Lane lane) {
        auto& head = ends(lane).head;
        auto& pending = (*this)[head];
        pending.state = OpState::done;
        const auto next = has_wide_distances()
                              ? pending.next_in_lane | std::uint32_t{upper_halves(head).next_in_lane} << 16
                              : std::uint32_t{pending.next_in_lane};
        head += next;
        next == 0 ? lanes_with_ops_ &= ~(1u << lane) : waiting_ |= 1u << lane;
        while (base_ != end_ && ops()[first_].state == OpState::done) {
            ++base_;
            if (++first_ == capacity_) first_ = 0;
        }
    }

private:
    /// First and last unfinished operation of a lane.
    struct Ends {
        std::uint32_t head = 0, tail = 0;
    };

    /// The upper 16 bits of an operation's distances. Only a large window needs them.
    struct UpperHalves {
        std::array<std::uint16_t, 4> after{};
        std::uint16_t next_in_lane = 0;
    };

    static constexpr std::uint32_t first_capacity = 7;  // enough for a ring

    static std::uint16_t low(std::uint32_t distance) { return static_cast<std::uint16_t>(distance); }
    static std::uint16_t high(std::uint32_t distance) { return static_cast<std::uint16_t>(distance >> 16); }

    bool knows(Lane lane) const { return lanes_with_ops_ >> lane & 1; }
    const Ends& ends(Lane lane) const { return reinterpret_cast<const Ends*>(memory_.get())[lane]; }
    Ends& ends(Lane lane) { return reinterpret_cast<Ends*>(memory_.get())[lane]; }
    std::size_t ends_bytes() const { return lanes_ * sizeof(Ends); }
    PendingOp* ops() { return reinterpret_cast<PendingOp*>(memory_.get() + ends_bytes()); }
    std::uint32_t place_of(std::uint32_t op) const {
        const auto place = first_ + (op - base_);
        return place < capacity_ ? place : place - capacity_;
    }

    /// Whether distances may need more than 16 bits.
    bool has_wide_distances() const { return has_wide_distances(capacity_); }
    static bool has_wide_distances(std::uint32_t capacity) { return capacity > 0xffff; }
    UpperHalves& upper_halves(std::uint32_t op) {
        return reinterpret_cast<UpperHalves*>(ops() + capacity_)[place_of(op)];
    }

    /// By an eighth, or by one: small steps, because there is a window for each rank.
    void grow() { resize(capacity_ + std::max(1u, capacity_ / 8)); }

    void resize(std::uint32_t capacity) {
        const auto bytes =
            ends_bytes() + capacity * (sizeof(PendingOp) + (has_wide_distances(capacity) ? sizeof(UpperHalves) : 0));
        auto larger = std::make_unique<std::byte[]>(bytes);
        if (memory_) {
            std::copy_n(memory_.get(), ends_bytes(), larger.get());
            auto* to = reinterpret_cast<PendingOp*>(larger.get() + ends_bytes());
            auto* to_far = reinterpret_cast<UpperHalves*>(to + capacity);
            for (auto op = base_; op != end_; ++op) {
                *to++ = (*this)[op];
                if (has_wide_distances()) *to_far++ = upper_halves(op);
            }
        }
        memory_ = std::move(larger);
        capacity_ = capacity;
        first_ = 0;
    }

    // First and last operation of each lane, then a ring buffer of operations, then their upper halves. One allocation,
    // which is all that most ranks need.
    std::unique_ptr<std::byte[]> memory_;
    std::uint32_t base_ = 0, end_ = 0;
    std::uint32_t first_ = 0,
                  capacity_ = 0;        // of the ring buffer: the index of `base_`, and its size
    std::uint32_t lanes_with_ops_ = 0;  // a bit for each lane that has unfinished operations here
    std::uint32_t waiting_ = 0;         // a bit for each lane whose head is in state `waiting`
    std::uint8_t lanes_;
};

/// The lane of the peer at the other end of a message.
constexpr Lane counterpart(Lane lane) { return lane % 2 == 1 ? lane + 1 : lane - 1; }

constexpr int channel_of(Lane lane) { return (lane - 1) / 2; }

/// An operation that can never begin.
struct StuckOperation {
    int rank = 0;
    OpIndex operation = 0;
};

/// What has started and ends at once, for walks that do not depend on the order in which operations end.
class EndedStack {
public:
    void push(int id, Lane lane) { ended_.emplace_back(id, lane); }
    bool empty() const { return ended_.empty(); }
    std::pair<int, Lane> pop() {
        const auto last = ended_.back();
        ended_.pop_back();
        return last;
    }

private:
    std::vector<std::pair<int, Lane>> ended_;
};

/// Walks the operations of a set of ranks in an order in which they can run. It knows which operation is next on every
/// lane, whether everything that it waits for has ended, and whether the two halves of a message meet. It knows nothing
/// of time: `Player`, the class that derives from it, says when an operation that has started ends. Whoever simulates
/// takes that from a queue of events; a deadlock check needs no times.
///
/// `Player` has these members:
///
///     auto& rank_of(int id);               // a walked rank: an OpWindow `window`
///     int stand_in(int rank);              // the rank that is walked for `rank`; the same one if all are
///     void refill(int id);                 // reads operations until every lane has a head or nothing is left
///     bool post(int id, Lane, OpIndex);    // everything that the lane's head waits for has ended. Sets the state of
///                                          // the head; false if it must wait for something else, and `Player`
///                                          // then calls try_start() again
///     void start(int id, Lane);            // the lane's head starts; for both halves of a message, this is the sender
///     void finish(int id, Lane);           // the lane's head has ended; for a message called for either half
///     void after_finish(int id, Lane, OpKind, int peer);  // called once behind finish(), for a message when both
///                                          // halves have ended; `peer` is the receiver's id, -1 if there is none
template <class Player>
class Walk {
protected:
    /// `ring_ranks`: the number of ranks of a ring; several rings may be walked side by side.
    explicit Walk(int ring_ranks) : ring_ranks_(ring_ranks) {}

    /// Starts what can start on a rank.
    void advance(int id) {
        player().refill(id);
        for (auto lanes = window(id).waiting(); lanes != 0; lanes &= lanes - 1) try_start(id, std::countr_zero(lanes));
    }

    /// Starts the head of a lane if it can start.
    void try_start(int id, Lane lane) {
        const auto head = window(id).head(lane);
        if (!window(id).may_run(head) || !player().post(id, lane, head)) return;
        const auto& op = window(id)[head];
        lane == compute_lane || op.kind() == OpKind::fetch ? player().start(id, lane) : player().meet(id, lane, op);
    }

    /// Starts a message if its other half is ready too.
    void meet(int id, Lane lane, const PendingOp& op) {
        if (!peer_is_posted(id, lane, op)) return;
        op.kind() == OpKind::send ? player().start(id, lane)
                                  : player().start(player().stand_in(op.peer), counterpart(lane));
    }

    /// Whether the other half of a message is ready.
    bool peer_is_posted(int id, Lane lane, const PendingOp& op) {
        const int by = player().stand_in(op.peer);
        auto& other = window(by);
        const auto head = other.head(counterpart(lane));
        return head != OpWindow::none && other[head].state == OpState::posted &&
               peer_awaited_by(other[head], op.peer, by) == id;
    }

    /// The head of a lane has ended, for a message the sender's. Starts what that makes possible.
    void end(int id, Lane lane) {
        const auto& op = head_of(id, lane);
        const auto kind = op.kind();
        const int peer = kind == OpKind::send ? player().stand_in(op.peer) : -1;
        player().finish(id, lane);
        if (peer >= 0) player().finish(peer, counterpart(lane));
        player().after_finish(id, lane, kind, peer);
        advance(id);
        if (peer >= 0) advance(peer);
    }

    /// Walks on until nothing more can start, if what starts ends at once.
    void end_all(EndedStack& ended) {
        while (!ended.empty()) {
            const auto [id, lane] = ended.pop();
            end(id, lane);
        }
    }

    PendingOp& head_of(int id, Lane lane) { return window(id)[window(id).head(lane)]; }

    /// The first operation of the ranks below `ranks` that has not ended.
    std::optional<StuckOperation> find_unfinished(int ranks, int lanes) {
        for (int id = 0; id < ranks; ++id)
            for (Lane lane = 0; lane < lanes; ++lane)
                if (const auto head = window(id).head(lane); head != OpWindow::none)
                    return StuckOperation{id, static_cast<OpIndex>(head)};
        return std::nullopt;
    }

private:
    Player& player() { return static_cast<Player&>(*this); }
    OpWindow& window(int id) { return player().rank_of(id).window; }

    /// The rank that the head of rank `peer` waits for, if rank `by` is walked for `peer` and `op` is by's head: the
    /// peer of `op`, shifted by the distance between the two.
    int peer_awaited_by(const PendingOp& op, int peer, int by) const {
        const int from = op.peer + (peer - by);
        return peer == by || from < ring_ranks_ ? from : from - ring_ranks_;
    }

    int ring_ranks_;
};

}  // namespace ringlab::layouts
