#pragma once

#include "layouts/schedule.hpp"
#include "sim/machine.hpp"

#include <deque>
#include <span>
#include <vector>

namespace ringlab::sim {

/// What of a message, besides its bytes, a transport's kernels look at.
struct Message {
    std::int64_t pieces = 1;  ///< of memory
    bool is_cut = false;      ///< into pieces of a head each; else one piece is nearly all of it
    bool has_time = false;    ///< the attend that it travels beside hides it, see LinkCost::Hidden
    friend bool operator==(const Message&, const Message&) = default;
};

/// In how many pieces of memory this rank has what a message brings or takes: keys lie head by head, K before V, rows
/// field by field and head by head; of a whole block all heads together.
std::int64_t pieces_of(const layouts::Schedule& schedule, const layouts::Op& transfer);

/// Whether it has it head by head.
bool is_cut(const layouts::Schedule& schedule, const layouts::Op& transfer);

/// Messages of all ranks that were read and have not ended, where it matters what they are. Whether one has time
/// follows from the next attend of the rank's schedule, which must not wait for it as the first of its launch: both
/// halves go by their own rank's, a send by what comes on its channel.
class Messages {
public:
    Messages(const layouts::Schedule& schedule, const Machine& machine, int ranks)
        : schedule_(schedule),
          flop_a_byte_(machine.inside_host.hidden.flop_a_byte),
          lanes_(static_cast<std::size_t>(schedule.lanes())),
          queues_(lanes_ * static_cast<std::size_t>(ranks)),
          undecided_(static_cast<std::size_t>(ranks)) {}

    /// Operation `self` of the rank, in its order.
    void read(int rank, const layouts::Op& op, layouts::OpIndex self);
    /// No attend comes any more.
    void read_all(int rank) { decide(rank, 0, {}); }

    /// Whether there are messages of which nobody knows yet if they have time.
    bool is_open(int rank) const { return !undecided_[static_cast<std::size_t>(rank)].empty(); }

    const Message& first(int rank, layouts::Lane lane) { return queue(rank, lane).front().message; }
    void pop(int rank, layouts::Lane lane) { queue(rank, lane).pop_front(); }

private:
    struct Queued {
        Message message;
        std::int64_t bytes = 0;
        int channel = 0;
        layouts::OpIndex receive = -1;  // itself, if it is one
    };
    std::deque<Queued>& queue(int rank, layouts::Lane lane) {
        return queues_[static_cast<std::size_t>(rank) * lanes_ + static_cast<std::size_t>(lane)];
    }
    void decide(int rank, double flop, std::span<const layouts::OpIndex> awaited);

    const layouts::Schedule& schedule_;
    const double flop_a_byte_;
    const std::size_t lanes_;
    std::vector<std::deque<Queued>> queues_;       // by rank and lane
    std::vector<std::vector<Queued*>> undecided_;  // by rank; a deque's elements stay where they are
};

}  // namespace ringlab::sim
