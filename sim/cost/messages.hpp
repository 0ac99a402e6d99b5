#pragma once

#include "layouts/schedules/schedule.hpp"
#include "sim/machine/machine.hpp"

#include <deque>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace ringlab::sim {

/// What a message's cost depends on besides its bytes.
struct Message {
    std::int64_t pieces = 1;         ///< separate pieces of memory that it comes from, or goes to
    bool is_split_by_heads = false;  ///< into pieces of equal size; else one piece is nearly all of it
    bool is_hidden = false;          ///< the attend beside it is long enough to hide it, see LinkCost::HiddenMessages
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

/// For each rank, the messages that were read from its schedule and have not ended, if their cost depends on more than
/// bytes. Decides which are hidden (`is_hidden`). A message is hidden if the rank's next attend has enough FLOP per
/// byte of it and does not wait for it. An attend that continues a fused launch waits for nothing here. Send and
/// receive are each judged by their own rank's next attend; a send counts as waited for if the attend waits for a
/// receive on the same channel.
class PendingMessages {
public:
    PendingMessages(const layouts::Schedule& schedule, const Machine& machine, int ranks)
        : schedule_(schedule),
          flop_per_byte_(machine.inside_host.hidden.flop_per_byte),
          lanes_(static_cast<std::size_t>(schedule.lanes())),
          queues_(lanes_ * static_cast<std::size_t>(ranks)),
          undecided_(static_cast<std::size_t>(ranks)) {}

    /// Adds operation `self` of the rank, in its order.
    void read(int rank, const layouts::Op& op, layouts::OpIndex self);
    /// The rank has no further attends.
    void read_all(int rank) { decide(rank, 0, {}); }

    /// Whether it is still unknown for some message of the rank if it is hidden.
    bool is_open(int rank) const { return !undecided_[static_cast<std::size_t>(rank)].empty(); }

    const Message& first(int rank, layouts::Lane lane) { return queue(rank, lane).front().message; }
    void pop(int rank, layouts::Lane lane) { queue(rank, lane).pop_front(); }

private:
    struct Queued {
        Message message;
        std::int64_t bytes = 0;
        int channel = 0;
        layouts::OpIndex receive = -1;  // index of the operation if it is a receive
    };
    std::deque<Queued>& queue(int rank, layouts::Lane lane) {
        return queues_[static_cast<std::size_t>(rank) * lanes_ + static_cast<std::size_t>(lane)];
    }
    void decide(int rank, double flop, std::span<const layouts::OpIndex> awaited);

    const layouts::Schedule& schedule_;
    const double flop_per_byte_;
    const std::size_t lanes_;
    std::vector<std::deque<Queued>> queues_;       // by rank and lane
    std::vector<std::vector<Queued*>> undecided_;  // by rank; pointers stay valid because a deque does not move its
                                                   // elements
};

}  // namespace ringlab::sim
