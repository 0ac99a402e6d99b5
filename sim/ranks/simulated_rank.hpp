#pragma once

#include "layouts/walk/op_window.hpp"
#include "sim/ranks/naive_estimate.hpp"

#include <bit>

namespace ringlab::sim {

using layouts::compute_lane;
using layouts::Lane;
using layouts::Op;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::OpState;
using layouts::OpWindow;
using layouts::PendingOp;
using layouts::Pool;
using layouts::Schedule;

/// Rank and lane, packed into the engine's tag. A lane runs one operation at a time, so both identify the operation,
/// and its state tells what has ended: its wait for the host, or itself. For a send and its receive, the sender's tag
/// stands for both.
class Tags {
public:
    explicit Tags(int lanes) : lane_bits_(std::bit_width(static_cast<unsigned>(lanes - 1))) {}

    std::uint32_t of(int rank, Lane lane) const {
        return static_cast<std::uint32_t>(rank) << lane_bits_ | static_cast<std::uint32_t>(lane);
    }
    int rank(std::uint32_t tag) const { return static_cast<int>(tag >> lane_bits_); }
    Lane lane(std::uint32_t tag) const { return static_cast<Lane>(tag & ((1u << lane_bits_) - 1)); }

private:
    int lane_bits_;
};

/// Execution state of one rank.
struct alignas(64) SimulatedRank {
    SimulatedRank(int lanes, Picoseconds start, Picoseconds before)
        : window(lanes), begin_ended(layouts::checked_sum(start, before)), issued(start) {}

    // The order of members fills the gaps that window and naive leave: 128 bytes in all.
    [[no_unique_address]] OpWindow window;

    Picoseconds begin_ended;  // end of the work before the first operation on the compute lane
    [[no_unique_address]] NaiveEstimate naive;
    Picoseconds issued;  // when the host has issued all operations that were read
    Picoseconds posted_since = 0, moving_since = 0;
    bool more = true;        // there are operations left to read
    std::int8_t posted = 0;  // transfers whose own side is ready and that have not ended; at most one a lane
    std::int8_t moving = 0;  // those of them whose peer is ready too
    float held = 0;          // SMs that transfers hold
};
static_assert(sizeof(SimulatedRank) == 128);

}  // namespace ringlab::sim
