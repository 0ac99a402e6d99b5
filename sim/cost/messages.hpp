#pragma once

#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"

#include <deque>
#include <set>
#include <utility>
#include <vector>

namespace ringlab::sim {

/// What a message's cost depends on besides its bytes.
struct Message {
    std::int64_t pieces = 1;         ///< separate pieces of memory that it comes from, or goes to
    bool is_split_by_heads = false;  ///< into pieces of equal size; else one piece is nearly all of it
    friend bool operator==(const Message&, const Message&) = default;
};

/// Number of pieces of memory that this rank has for a message. A whole block is one piece for each field (K and V
/// together are one). A part of a block is one piece for each head, of K and of V or of each field.
std::int64_t pieces_of(const layouts::Schedule& schedule, const layouts::Op& transfer);

/// Whether the message is only some tokens of a block, which lie in separate pieces for each head.
bool is_split_by_heads(const layouts::Schedule& schedule, const layouts::Op& transfer);

/// The slots of one rank to which receives and copies have brought a part of a block.
class PartlyFilledSlots {
public:
    /// Whether an operation, the rank's next one, brings a part to a slot that has had one before. Whole blocks are not
    /// remembered: a receive that follows one to the same slot waits for it to be used.
    bool had_part(const layouts::Schedule& schedule, const layouts::Op& op);

private:
    std::set<std::pair<layouts::Pool, int>> slots_;
};

/// By lane: layouts::ArrivalOrder::matters(). Looks at the first and the last rank only, whose schedules differ most
/// under a mask.
std::vector<bool> lanes_where_arrival_order_matters(const layouts::Schedule& schedule);

/// For each rank and lane, the messages that were read from its schedule and have not ended, if their cost depends on
/// more than bytes.
class PendingMessages {
public:
    PendingMessages(const layouts::Schedule& schedule, int ranks)
        : schedule_(schedule),
          lanes_(static_cast<std::size_t>(schedule.lanes())),
          queues_(lanes_ * static_cast<std::size_t>(ranks)) {}

    /// Adds the rank's next operation, if it is a transfer.
    void read(int rank, const layouts::Op& op) {
        if (op.transfers())
            queue(rank, op.lane()).push_back({pieces_of(schedule_, op), is_split_by_heads(schedule_, op)});
    }

    const Message& first(int rank, layouts::Lane lane) { return queue(rank, lane).front(); }
    void pop(int rank, layouts::Lane lane) { queue(rank, lane).pop_front(); }

private:
    std::deque<Message>& queue(int rank, layouts::Lane lane) {
        return queues_[static_cast<std::size_t>(rank) * lanes_ + static_cast<std::size_t>(lane)];
    }

    const layouts::Schedule& schedule_;
    const std::size_t lanes_;
    std::vector<std::deque<Message>> queues_;  // by rank and lane
};

}  // namespace ringlab::sim
