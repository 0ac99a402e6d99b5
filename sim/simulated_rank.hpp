#pragma once

#include "sim/host_clock.hpp"
#include "sim/jitter.hpp"
#include "sim/lanes.hpp"
#include "sim/naive.hpp"
#include "sim/op_window.hpp"

#include <bit>

namespace ringlab::sim {

/// Rank and lane, packed into the engine's tag. A lane does one thing at a time, so they say which operation it is,
/// and its state says what ended: its wait for the host, or itself. Of a send and its receive, the sender stands for
/// both.
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

/// Where a rank is in its operations.
struct alignas(64) SimulatedRank {
    SimulatedRank(int lanes, Picoseconds start, HostClock::State issued, Picoseconds before)
        : window(lanes), prepared(layouts::later(start, before)) {
        give(issued);
    }

    /// The host, which has issued all that was read.
    HostClock::State host() const { return {issued_, computed_, issued_last_, computed_run_}; }
    void give(const HostClock::State& host) {
        issued_ = host.now;
        computed_ = host.computed;
        issued_last_ = host.last;
        computed_run_ = host.run;
    }

    // Of the host's state four bytes each lie in what window and naive leave.
    [[no_unique_address]] OpWindow window;

private:
    std::uint32_t issued_last_ = 0;

public:
    Picoseconds prepared;  // when what comes before the first operation on the compute lane has ended
    [[no_unique_address]] NaiveEstimate naive;

private:
    std::uint32_t computed_run_ = 0;
    Picoseconds issued_ = 0, computed_ = 0;

public:
    Picoseconds posted_since = 0, moving_since = 0;
    bool more = true;        // operations to read
    std::int8_t posted = 0;  // transfers whose own side is ready, to their ends: one a lane at most
    std::int8_t moving = 0;  // those whose peer is ready as well
    float held = 0;          // multiprocessors
};
static_assert(sizeof(SimulatedRank) == 128);

}  // namespace ringlab::sim
