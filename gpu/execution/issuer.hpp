#pragma once

#include "gpu/device/cuda_handles.hpp"
#include "gpu/ranks/rank.hpp"
#include "gpu/transports/transport.hpp"
#include "processes/waiting.hpp"

#include <array>
#include <limits>
#include <span>
#include <vector>

namespace ringlab::gpu {

/// Events of one rank's pass. Each use has only those that it needs, because recording one takes the host time.
struct PassEvents {
    enum class Use {
        ordering,  ///< nothing is timed
        pass,      ///< `start` and `finish` have time stamps
        timeline,  ///< every operation has two time stamps
    };
    PassEvents(std::size_t instructions, Use use);

    bool is_timeline() const { return !begin.empty(); }

    bool timed;
    Event start, finish;  // start is recorded only if `timed`
    Event transfers_begin{Event::Use::ordering};
    std::vector<Event> begin, end;  // by instruction
};

/// A rank as the issuer sees it.
struct IssuedRank {
    int rank = 0;  ///< in the ring
    int replica = 0;
    int global_rank = 0;
    int device = 0;
    Rank* work = nullptr;
    Transport* transport = nullptr;
    /// One stream per lane; null for a lane without operations. Ranks that share a device share the stream of the
    /// compute lane, so that they compute one after another and can be timed.
    std::vector<cudaStream_t> lanes;
};

/// Enqueues a pass of some ranks from the calling thread and waits for its end. Operations go to their lane's stream in
/// schedule order. `after` on another lane becomes an event that the stream waits for, and so does a peer. So the host
/// takes no part once everything is enqueued. A lane is never more than `most_ahead` operations ahead of what has
/// ended, because a full stream queue would block the host, which could then not watch for failures.
class Issuer {
public:
    struct Options {
        layouts::RingGroup group;
        Clock::duration timeout = std::chrono::minutes(1);
    };

    Issuer(std::vector<IssuedRank> ranks, const Team& team, const Options& options)
        : ranks_(std::move(ranks)), team_(team), options_(options) {}

    /// Prepares what enqueue() is to enqueue next, with one set of events per rank: everything that takes host time and
    /// can be done before the ranks start together.
    void prepare(layouts::Pass pass, const std::vector<PassEvents*>& events);

    /// Enqueues what was prepared. Waits for devices only where a lane is too far ahead, and for other threads or
    /// processes where a transfer needs their part. Throws Error that names rank and operation if nothing has ended for
    /// the time-out, if no operation can ever begin, or if a device or transfer fails; Cancelled if another
    /// member of the team has failed.
    void enqueue();

    /// Waits for the end of what was enqueued; throws likewise.
    void wait();

    /// Host time of the last enqueue(), including waits for peers.
    Clock::duration issue_time() const { return issue_time_; }

    /// After a failure: ends all waits and lets the devices run dry, whatever the data.
    void abort() noexcept;

private:
    struct Lane {
        std::vector<std::size_t> code;  // indices into the program, in its order
        std::size_t issued = 0;
        std::size_t ended = 0;
        bool begun = false;   // whether its stream was made to wait until transfers of the pass may begin
        bool posted = false;  // whether the next operation is a receive whose slot was reported free
    };
    struct PassState {
        const layouts::RankProgram* program = nullptr;
        bool timeline = false;
        std::vector<char> marked;  // by instruction: its end is an event
        /// By instruction: the marked one whose end says that it has ended, too, or end_of_pass.
        std::vector<std::size_t> shown_by;
        // The rest is of the latest pass.
        PassEvents* events = nullptr;
        std::vector<char> issued;  // by instruction
        std::vector<Lane> lanes;
        bool finished = false;  // whether all of it was enqueued
    };
    static constexpr std::size_t most_ahead = 64, end_of_pass = std::numeric_limits<std::size_t>::max();

    void start(std::size_t rank);
    void finish(std::size_t rank);
    /// All of a rank's pass that is one launch. The host then follows the pass as a whole, not its operations.
    void issue_launch(std::size_t rank);
    bool issue_next(std::size_t rank);
    bool may_issue(std::size_t rank, const Lane& lane) const;
    bool issue(std::size_t rank, Lane& lane);

    void plan(std::size_t rank, PassState& pass) const;
    void mark(std::size_t rank, PassState& pass) const;
    void begin(std::size_t rank, std::size_t index);
    void hold_back(std::size_t rank, std::size_t index);
    void end(std::size_t rank, Lane& lane);
    Message message(std::size_t rank, std::size_t index) const;
    bool all_issued() const;
    bool all_ended() const;
    void look();
    void wait_a_little();
    [[noreturn]] void fail_unissuable() const;
    [[noreturn]] void fail_stalled() const;
    std::string describe_front(std::size_t rank, const Lane& lane, std::size_t position) const;

    std::vector<IssuedRank> ranks_;
    const Team& team_;
    Options options_;
    layouts::Pass pass_ = layouts::Pass::forward;
    std::array<std::vector<PassState>, 2> by_pass_;  // by rank
    std::span<PassState> passes_;                    // those of pass_
    processes::Waiting since_progress_;
    Clock::time_point last_look_;
    Clock::duration issue_time_{};
};

}  // namespace ringlab::gpu
