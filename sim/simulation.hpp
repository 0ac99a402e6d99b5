#pragma once

#include "sim/fold.hpp"
#include "sim/huge_pages.hpp"
#include "sim/key_launch.hpp"
#include "sim/messages.hpp"
#include "sim/op_source.hpp"
#include "sim/room.hpp"
#include "sim/shared_resources.hpp"
#include "sim/simulate.hpp"
#include "sim/simulated_rank.hpp"
#include "sim/trace.hpp"

#include <memory>
#include <optional>

namespace ringlab::sim {

using layouts::compute_lane;
using layouts::RankTotals;

/// As without `tiles`, which are of the same schedule and machine, and may serve any number of plays one after another.
Prediction simulate(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                    const std::shared_ptr<TileModel>& tiles);

/// One play of a schedule on a machine.
class Simulation {
public:
    /// All must outlive it, but `tiles`; see CostModel.
    Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options, std::vector<double> clocks,
               std::shared_ptr<TileModel> tiles);

    /// Once. Nothing, if ranks were folded that it turned out might differ, or something is wrong.
    std::optional<Prediction> run();

    /// FLOP of what tiles hold, by rank; counted for the sustained clock alone.
    std::vector<double> flop() const { return of_all(flop_); }

    /// Power of the GPU of each rank.
    std::vector<double> powers() const;

private:
    bool is_folded() const { return fold_.played() < cost_.ranks(); }

    /// What ranks that are played stand for, by rank.
    std::vector<double> of_all(const std::vector<double>& played) const;

    SimulatedRank& rank_of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    int query_heads() const { return static_cast<int>(schedule_.problem().query_heads); }
    RankTotals& totals_of(int rank) { return prediction_.ranks[static_cast<std::size_t>(rank)]; }

    /// The first rank of the ring that `rank` is in.
    int ring_of(int rank) const { return options_.replicas == 1 ? 0 : rank - rank % schedule_.ranks(); }

    std::uint32_t place_of(int rank, Lane lane) const {
        return static_cast<std::uint32_t>(rank * places_ + (lane == compute_lane ? 0 : 1 + channel_of(lane)));
    }

    /// Multiprocessors given to, or taken back from, the kernels that carry out transfers.
    void hold(int rank, double multiprocessors);

    /// To compute, what transfers do not hold.
    void leave(int rank);

    /// The attend that the rank runs, if any.
    const PendingOp* attending(int rank);

    // ---- Reading the schedule ----

    /// Reads on until every lane knows its next operation.
    void refill(int id);

    static layouts::OpIndex next_of(const SimulatedRank& rank) {
        return static_cast<layouts::OpIndex>(rank.window.end());
    }

    void read(int id, HostClock& host);

    /// A transfer that was read, and not started, is issued later.
    void put_off(int id, layouts::OpIndex transfer, Picoseconds delay);

    void count(NaiveEstimate& naive, RankTotals& totals, int id, const Op& op, std::int64_t work);

    // ---- Starting operations ----

    void advance(int rank);

    /// Whether the kernel of a transfer that is ready has to wait until an attend leaves it room.
    bool waits_for_room(int id, Lane lane, PendingOp& op);

    /// Whether a transfer that is ready now is there before an attend that begins now: not if it waited for what was
    /// computed before. The attend follows that in its own stream, sooner than another stream is told of it.
    bool comes_before(const PendingOp& attend) const { return attend.time == engine_.now() && !behind_compute_; }

    /// The same of two halves that begin together.
    bool wait_for_room(int id, Lane lane, PendingOp& op);

    /// The rank of which `op`, of rank `by`, is the other half of what `peer` has, if that is folded onto `by`.
    int awaited_by(const PendingOp& op, int peer, int by) const {
        const int from = op.peer + (peer - by);
        return peer == by || from < schedule_.ranks() ? from : from - schedule_.ranks();
    }

    /// Whether the other half of a message is ready too.
    bool is_met(int id, Lane lane, const PendingOp& op);

    /// Whether halves of the message hold multiprocessors from when both are ready.
    bool begins_together(const PendingOp& op) const { return together_ && op.kind() != OpKind::fetch; }

    /// The head of a lane that waits; `admitted` if it is a transfer that has waited for room.
    void try_start(int id, Lane lane, bool admitted = false);

    void check_match(int id, const PendingOp& op, const PendingOp& match) const;

    void start_compute(int id, PendingOp& op);

    /// Starts what the head of `lane` stands for: a send with its receive, or a fetch.
    void start_transfer(int id, Lane lane);

    void start_flow(int source, int destination, const TransferCost& cost, int id, Lane lane);

    /// As the first transfer on a lane of the rank has it.
    const TransferCost& transfer_cost(int id, Lane lane, const PendingOp& op) {
        const auto& message = messages_ ? messages_->first(id, lane) : Message{};
        return op.kind() == OpKind::fetch ? cost_.transfer(op.peer, id, op.work, message)
                                          : cost_.transfer(id, op.peer, op.work, message);
    }

    /// Of a send: a message is in as many pieces as it is at the end that has more.
    const TransferCost& transfer_of_both(int id, Lane lane, const PendingOp& send) {
        auto message = messages_->first(id, lane);
        const auto& other = messages_->first(send.peer, counterpart(lane));
        message.pieces = std::max(message.pieces, other.pieces);
        message.is_cut |= other.is_cut;
        return cost_.transfer(id, send.peer, send.work, message);
    }

    PendingOp& head_of(int rank, Lane lane) {
        auto& window = rank_of(rank).window;
        return window[window.head(lane)];
    }

    void begin_span(int id, PendingOp& op);

    // ---- Ending operations ----

    void handle(int rank, Lane lane);

    /// For transfers that have waited for it as long as that.
    void make_room(int rank, Picoseconds least_wait);

    /// A transfer has ended, and leaves its multiprocessors to those whose kernels are there by then.
    void take_over(int rank);

    void finish(int id, Lane lane);

    // ---- The result ----

    void require_finished();

    Prediction result();

    const Schedule& schedule_;
    const Machine& machine_;
    const SimOptions& options_;
    CostModel cost_;
    int lanes_;
    Tags tags_;
    OpSource ops_;
    Fold fold_;
    int places_;  // of activities of a rank: compute, and the transfer of a channel that begins or is fetched here
    Engine engine_;
    bool holds_ = false;           // transfers take multiprocessors
    bool together_ = false;        // halves of messages do so together
    bool behind_compute_ = false;  // what starts now waited for an operation of its rank's compute lane
    std::optional<Messages> messages_;
    std::optional<Room> room_;
    Prediction prediction_;              // its ranks count up under way
    HugeVector<SimulatedRank> ranks_;    // that are played
    std::vector<double> flop_;           // by rank, for the sustained clock
    std::vector<WaitingInside> inside_;  // by rank, where launches of several attends wait inside
    std::optional<Trace> trace_;
    std::optional<SharedResources> resources_;
};

}  // namespace ringlab::sim
