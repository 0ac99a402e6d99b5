#pragma once

#include "layouts/basics/checked_arithmetic.hpp"
#include "sim/tiles/tile_model.hpp"

#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace ringlab::sim {

using layouts::Picoseconds;

/// Whether a schedule has fused launches (several attends in one). Looks at the first attends of rank 0 only.
bool has_fused_launches(const Schedule& schedule);

/// A launch of a rank: one attend or, if the schedule fuses them, several.
struct AttendLaunch {
    std::vector<TileModel::FusedAttend> attends;
    std::vector<std::size_t> section_begins{};  ///< places where it may have to be cut, see layouts::FusedLaunch
};
std::vector<AttendLaunch> launches_of_rank(const Schedule& schedule, int rank);

/// Seconds of each attend of a rank, in order, launches included. `apart`: each stretch of a fused launch, between
/// `section_begins`, becomes two launches: attends that wait for nothing, and the rest. GPUs do that where transfers
/// are kernels, because these must not queue behind a launch that waits for them.
std::vector<double> attend_seconds_of_rank(const Schedule& schedule, int rank, bool apart, TileModel& tiles,
                                           const AttentionCost& cost);

/// Backward attends of a rank in one fused launch. SMs take work tiles of keys in the order of the kernel's list. A
/// thread block waits in place, so its SM stays occupied: before a work tile for its block to arrive, and behind it for
/// the gradient that the work tile adds to. So when a gradient is late, everything but the work tiles under way is
/// still to be done.
class KeyLaunch {
public:
    KeyLaunch(TileModel& tiles, std::span<const TileModel::FusedAttend> attends);

    void begin(double seconds);

    /// Returns when all work tiles of the next attend have ended. Its block arrives at `block`, the gradient that it
    /// adds to at `gradient`, and work tiles take `slower` times their price. All in seconds.
    double end_of_next_attend(double block, double gradient, double slower);

    bool is_done() const { return next_ == parts_.size(); }

    /// Everything given so far ends `seconds` later.
    void delay(double seconds) { sms_.delay(seconds); }

private:
    const TileModel* tiles_;
    std::vector<TileModel::KeyTiles> parts_;  // by attend
    std::size_t next_ = 0;
    TileModel::LaunchOrder launch_order_;
    ListScheduler sms_;
};

/// The fused launches of a rank, one after another; each proceeds as what it waits for arrives.
class KeyLaunches {
public:
    /// `schedule` and `tiles` must outlive it. Reads the rank's schedule at the first call of end_of_next_attend().
    KeyLaunches(const Schedule& schedule, int rank, TileModel& tiles, double launch_seconds)
        : schedule_(&schedule), rank_(rank), tiles_(&tiles), launch_seconds_(launch_seconds) {}

    /// Returns when the next attend of the rank ends. `ready`: when the compute lane has reached it and everything that
    /// it waits for has ended. `block` and `gradient`: times of arrival, 0 if it waits for none.
    Picoseconds end_of_next_attend(Picoseconds ready, Picoseconds block, Picoseconds gradient, double slower);

    /// The attend that end_of_next_attend() was last called for has ended.
    void ended(Picoseconds now);

private:
    const Schedule* schedule_;
    int rank_;
    TileModel* tiles_;
    double launch_seconds_;
    bool read_ = false;
    std::deque<KeyLaunch> launches_;  // the current one and those to come
    bool begun_ = false;              // the first of them has begun
    Picoseconds expected_end_ = 0;
};

/// KeyLaunches of one rank, fed by an event engine: it notes arrivals as they happen.
class ArrivalTracker {
public:
    explicit ArrivalTracker(KeyLaunches launches) : launches_(std::move(launches)) {}

    /// Adds an attend, in the rank's order.
    void read(const Op& attend) { attends_.push_back({attend.after_storage, attend.after_count}); }

    void arrived(std::int64_t transfer, bool gradient, Picoseconds now);

    /// End of the first attend that was read and has not ended; `ready` and `slower` as in KeyLaunches.
    Picoseconds end_of_next_attend(Picoseconds ready, double slower);
    void ended(Picoseconds now);

private:
    struct Waiting {
        decltype(Op::after_storage) after;
        decltype(Op::after_count) count;
    };
    struct Arrival {
        Picoseconds time = 0;
        bool gradient = false;
    };
    KeyLaunches launches_;
    std::deque<Waiting> attends_;
    std::map<std::int64_t, Arrival> arrivals_;  // by operation; the latest ones only
};

}  // namespace ringlab::sim
