#pragma once

#include "sim/cost.hpp"
#include "sim/dealing.hpp"

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace ringlab::sim {

/// Backward attends of a rank that are one launch: items of keys, which processors take in the order of the kernel's
/// list. A processor waits in place: before an item for its block to arrive, and behind it for the gradient that the
/// item adds to. So what is left to do when a gradient comes late is all but what processors had begun.
class KeyLaunch {
public:
    KeyLaunch(TileModel& tiles, std::span<const TileModel::Joint> attends);

    void begin(double seconds);

    /// When all items of the next attend have ended. Its block arrives at `block`, the gradient that it adds to at
    /// `gradient`, and all takes `slower` times as long.
    double end_of_next(double block, double gradient, double slower);

    bool is_done() const { return next_ == parts_.size(); }

    /// What has been given ends so much later.
    void delay(double seconds) { processors_.delay(seconds); }

private:
    const TileModel* tiles_;
    std::vector<TileModel::KeyPart> parts_;  // by attend
    std::size_t next_ = 0;
    TileModel::Way way_;
    Processors processors_;
};

/// The launches of a rank whose kernels wait inside, one after another, as what they wait for arrives.
class KeyLaunches {
public:
    /// `schedule` and `tiles` must outlive it. Reads the rank's schedule when it is asked first.
    KeyLaunches(const Schedule& schedule, int rank, TileModel& tiles, double launch_seconds)
        : schedule_(&schedule), rank_(rank), tiles_(&tiles), launch_seconds_(launch_seconds) {}

    /// When the next attend of the rank ends, the compute lane having come to it, and to all that it waits for, at
    /// `ready`. Times of arrival: 0 if it waits for none.
    Picoseconds end_of_next(Picoseconds ready, Picoseconds block, Picoseconds gradient, double slower);

    /// The attend asked for last has ended.
    void ended(Picoseconds now);

private:
    const Schedule* schedule_;
    int rank_;
    TileModel* tiles_;
    double launch_seconds_;
    bool read_ = false;
    std::deque<KeyLaunch> launches_;  // under way, and to come
    bool begun_ = false;              // the first of them
    Picoseconds promised_ = 0;
};

/// What an event queue knows of such a rank.
class WaitingInside {
public:
    explicit WaitingInside(KeyLaunches launches) : launches_(std::move(launches)) {}

    /// An attend, in the rank's order.
    void read(const Op& attend) { attends_.push_back({attend.after_storage, attend.after_count}); }

    void arrived(std::int64_t transfer, bool gradient, Picoseconds now);

    /// Of the first attend that was read and has not ended, the rest as KeyLaunches has it.
    Picoseconds end_of_next(Picoseconds ready, double slower);
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
    std::map<std::int64_t, Arrival> arrivals_;  // by operation, the latest
};

}  // namespace ringlab::sim
