#pragma once

#include "layouts/schedule.hpp"
#include "sim/lanes.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ringlab::sim {

using layouts::Op;
using layouts::OpKind;
using layouts::Picoseconds;
using layouts::Pool;

enum class OpState : std::uint8_t {
    waiting,  ///< for its lane, its dependencies, or the host
    issuing,  ///< everything but the host is ready
    posted,   ///< one side of a transfer, ready for the other
    running,
    done,
};

/// What is left of an operation while it is in a rank's window: 32 bytes.
struct PendingOp {
    Picoseconds time = 0;                  ///< issued by the host at; once it runs, begun at
    std::int64_t work = 0;                 ///< bytes of a transfer, picoseconds of compute
    std::int32_t peer = -1;                // of a transfer
    std::array<std::uint16_t, 4> after{};  ///< distances back to operations that must be done; 0: none
    std::uint16_t next_in_lane = 0;        ///< distance; 0: not read yet
    OpState state = OpState::waiting;
    std::uint8_t kind_code : 4 = 0;
    std::uint8_t pool_code : 4 = 0;

    OpKind kind() const { return static_cast<OpKind>(kind_code); }
    Pool pool() const { return static_cast<Pool>(pool_code); }
};
static_assert(sizeof(PendingOp) == 32);

/// The operations of one rank from the first unfinished one to the last one read, with the head of each lane.
class OpWindow {
public:
    static constexpr std::uint32_t none = ~0u;

    explicit OpWindow(int lanes) : lanes_(static_cast<std::uint8_t>(lanes)) { resize(first_capacity); }

    bool empty() const { return base_ == end_; }
    std::uint32_t size() const { return end_ - base_; }
    std::uint32_t end() const { return end_; }

    PendingOp& operator[](std::uint32_t op) {
        const auto place = first_ + (op - base_);
        return ops()[place < capacity_ ? place : place - capacity_];
    }

    /// First operation of the lane that is not done, or none.
    std::uint32_t head(Lane lane) const { return knows(lane) ? position(ends(lane).head) : none; }

    /// Whether all lanes have a head.
    bool knows_all() const { return known_ == (1u << lanes_) - 1; }

    /// The head of a lane goes to another state than waiting.
    void leave_waiting(Lane lane, OpState to) {
        (*this)[head(lane)].state = to;
        waiting_ &= ~(1u << lane);
    }

    /// A bit for each lane whose head waits.
    std::uint32_t waiting() const { return waiting_; }

    /// `first_rank` is that of the ring, whose ranks the operation counts from 0.
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
        for (std::size_t i = 0; const auto index : op.after()) {
            const auto distance = self - static_cast<std::uint32_t>(index);
            if (distance > self - base_ || (*this)[self - distance].state == OpState::done) continue;
            pending.after[i++] = static_cast<std::uint16_t>(distance);
        }
        const auto lane = op.lane();
        auto& [head, tail] = ends(lane);
        if (knows(lane)) {
            const auto last = position(tail);
            (*this)[last].next_in_lane = static_cast<std::uint16_t>(self - last);
        } else {
            head = static_cast<std::uint16_t>(self);
            known_ |= 1u << lane;
            waiting_ |= 1u << lane;
        }
        tail = static_cast<std::uint16_t>(self);
    }

    /// Whether everything that `op` must come after is done.
    bool may_run(std::uint32_t op) {
        const auto& after = (*this)[op].after;
        for (const auto distance : after)
            if (distance != 0 && distance <= op - base_ && (*this)[op - distance].state != OpState::done) return false;
        return true;
    }

    /// Marks the head of a lane as done and moves the lane on.
    void finish_head(Lane lane) {
        auto& pending = (*this)[head(lane)];
        pending.state = OpState::done;
        ends(lane).head = static_cast<std::uint16_t>(ends(lane).head + pending.next_in_lane);
        pending.next_in_lane == 0 ? known_ &= ~(1u << lane) : waiting_ |= 1u << lane;
        while (base_ != end_ && ops()[first_].state == OpState::done) {
            ++base_;
            if (++first_ == capacity_) first_ = 0;
        }
    }

private:
    /// First and last unfinished operation of a lane: low bits of their numbers, which say it all, as a window is
    /// shorter than 2^16.
    struct Ends {
        std::uint16_t head = 0, tail = 0;
    };

    static constexpr std::uint32_t first_capacity = 7;  // of a ring there are no more

    bool knows(Lane lane) const { return known_ >> lane & 1; }
    const Ends& ends(Lane lane) const { return reinterpret_cast<const Ends*>(memory_.get())[lane]; }
    Ends& ends(Lane lane) { return reinterpret_cast<Ends*>(memory_.get())[lane]; }
    std::size_t ends_bytes() const { return (lanes_ * sizeof(Ends) + 7) / 8 * 8; }
    PendingOp* ops() { return reinterpret_cast<PendingOp*>(memory_.get() + ends_bytes()); }
    std::uint32_t position(std::uint16_t low_bits) const {
        return base_ + static_cast<std::uint16_t>(low_bits - base_);
    }

    /// By an eighth, or one: there are as many as ranks.
    void grow() { resize(capacity_ + std::max(1u, capacity_ / 8)); }

    void resize(std::uint32_t capacity) {
        auto larger = std::make_unique<std::byte[]>(ends_bytes() + capacity * sizeof(PendingOp));
        if (memory_) {
            std::copy_n(memory_.get(), ends_bytes(), larger.get());
            auto* to = reinterpret_cast<PendingOp*>(larger.get() + ends_bytes());
            for (auto op = base_; op != end_; ++op) *to++ = (*this)[op];
        }
        memory_ = std::move(larger);
        capacity_ = capacity;
        first_ = 0;
    }

    // The ends of each lane, then a ring of operations: one allocation, which is all that most ranks need.
    std::unique_ptr<std::byte[]> memory_;
    std::uint32_t base_ = 0, end_ = 0;
    std::uint32_t first_ = 0, capacity_ = 0;  // of the ring: where `base_` is
    std::uint32_t known_ = 0;                 // a bit per lane: it has unfinished operations here
    std::uint32_t waiting_ = 0;               // likewise: the first of them waits
    std::uint8_t lanes_;
};

}  // namespace ringlab::sim
