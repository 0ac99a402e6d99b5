#pragma once

#include "layouts/program/walk.hpp"
#include "sim/cost/messages.hpp"
#include "sim/engine/huge_pages.hpp"
#include "sim/play/fold.hpp"
#include "sim/play/shared_resources.hpp"
#include "sim/play/simulate.hpp"
#include "sim/play/sm_admission.hpp"
#include "sim/tiles/fused_launch.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <vector>

namespace ringlab::sim {

using layouts::compute_lane;
using layouts::Lane;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::OpState;
using layouts::OpWindow;
using layouts::PendingOp;
using layouts::Pool;
using layouts::RankTotals;

/// simulate() with tile times that may be shared by several plays, one after another, of the same schedule and machine.
Prediction simulate(const Schedule& schedule, const Machine& machine, const SimOptions& options,
                    const std::shared_ptr<TileModel>& tiles);

/// Sums of one rank's durations step by step: the estimates that a simulator has to beat.
class NaiveEstimate {
public:
    void add_compute(int step, Picoseconds duration) {
        enter(step);
        compute_ = layouts::checked_sum(compute_, duration);
    }
    void add_transfer(int step, Picoseconds duration) {
        enter(step);
        transfer_ = layouts::checked_sum(transfer_, duration);
    }
    Picoseconds overlapped() const { return layouts::checked_sum(overlapped_, std::max(compute_, transfer_)); }
    Picoseconds serial() const { return layouts::checked_sum(serial_, layouts::checked_sum(compute_, transfer_)); }

private:
    void enter(int step) {
        if (step == step_) return;
        overlapped_ = overlapped();
        serial_ = serial();
        compute_ = transfer_ = 0;
        step_ = step;
    }

    Picoseconds overlapped_ = 0, serial_ = 0, compute_ = 0, transfer_ = 0;
    int step_ = -1;
};

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

/// Spans and host issue times of a traced prediction. Operations are counted by rank.
class Trace {
public:
    Trace(std::size_t ranks, int query_heads) : query_heads_(query_heads), spans_(ranks), issued_(ranks) {}

    /// Adds the next operation of rank `id`. Its ring begins at rank `first_rank`.
    void read(int id, int first_rank, const layouts::Op& op, layouts::Interval issued) {
        auto& spans = spans_[static_cast<std::size_t>(id)];
        auto& span =
            spans.emplace_back(layouts::span_of(id, static_cast<layouts::OpIndex>(spans.size()), op, query_heads_));
        if (op.peer >= 0) span.peer += first_rank;
        issued_[static_cast<std::size_t>(id)].push_back(issued);
    }

    void post(int id, std::size_t op, Picoseconds now) {
        auto& span = spans_[static_cast<std::size_t>(id)][op];
        if (span.busy == 0) span.posted = now;
    }

    /// An operation has ended, or a part of it if it stood still in between.
    void end(int id, std::size_t op, Picoseconds began, Picoseconds now) {
        auto& span = spans_[static_cast<std::size_t>(id)][op];
        if (span.busy == 0) span.begin = began;
        span.end = now;
        span.busy += now - began;
    }

    /// Appends all spans to the prediction, rank by rank.
    void give(Prediction& prediction) const {
        for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
            auto& spans = prediction.timeline.spans;
            spans.insert(spans.end(), spans_[rank].begin(), spans_[rank].end());
            prediction.host_issue.insert(prediction.host_issue.end(), issued_[rank].begin(), issued_[rank].end());
        }
    }

private:
    int query_heads_;
    std::vector<std::vector<layouts::Span>> spans_;
    std::vector<std::vector<layouts::Interval>> issued_;
};

/// One play of a schedule on a machine: a walk in which an event engine says what ends next.
class Simulation : layouts::Walk<Simulation> {
public:
    /// All arguments must outlive it, except `clocks` and `tiles`; see CostModel.
    Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options, std::vector<double> clocks,
               std::shared_ptr<TileModel> tiles);

    /// Plays, once.
    Prediction run();

    /// FLOP of the tiles that each rank computes; counted only for the sustained clock.
    std::vector<double> flop() const;

private:
    friend class layouts::Walk<Simulation>;

    SimulatedRank& rank_of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    int query_heads() const { return static_cast<int>(schedule_.problem().query_heads); }
    RankTotals& totals_of(int rank) { return prediction_.ranks[static_cast<std::size_t>(rank)]; }

    int stand_in(int rank) const { return fold_.of(rank); }

    /// Transfers that are kernels take this many SMs of the rank, or give them back if negative.
    void hold_sms(int rank, double sms);

    /// Gives compute the SMs that transfers do not hold.
    void set_sms_of_compute(int rank);

    /// The attend that the rank is running, or null.
    const PendingOp* running_attend(int rank);

    // ---- Reading the schedule ----

    /// Reads operations until every lane has a next one.
    void refill(int id) {
        auto& rank = rank_of(id);
        while (rank.more && !rank.window.every_lane_has_head()) read(id, rank);
    }
    void read(int id, SimulatedRank& rank);

    /// First rank of the ring that `rank` belongs to.
    int ring_of(int rank) const { return rank < ring_ranks_ ? 0 : rank - rank % ring_ranks_; }

    /// Durations and bytes of the operation. Returns PendingOp::work.
    std::int64_t take(int id, const Op& op, layouts::OpIndex index, layouts::Interval issue);

    void count(NaiveEstimate& naive, RankTotals& totals, int id, const Op& op, std::int64_t work);

    // ---- Starting operations ----

    /// Whether a ready transfer, if it is a kernel, must wait until an attend leaves it SMs. Starts its wait.
    bool waits_for_sms(int id, Lane lane, PendingOp& op);

    /// Whether a transfer that is ready now comes before an attend that begins now. It does not if it waited for the
    /// operation that the attend follows: the attend is next in its own stream, and another stream learns later that
    /// the operation has ended.
    bool precedes_attend(const PendingOp& attend) const { return attend.time == engine_.now() && !after_compute_; }

    /// waits_for_sms() for messages whose two kernels begin together.
    bool waits_for_sms_at_both_ends(int id, Lane lane, PendingOp& op);

    /// Whether both halves of the message take SMs only when both are ready.
    bool takes_sms_together(const PendingOp& op) const { return halves_together_ && op.kind() != OpKind::fetch; }

    /// Whether the head of a lane, which is ready but for the host and SMs, need not wait for these. If it must, it is
    /// started again later.
    bool post(int id, Lane lane, std::uint32_t head);

    /// Starts the head of a lane, for a message the sender's.
    void start(int id, Lane lane);

    /// Throws Error if the send at the head of a lane and its receive are not of the same message.
    void require_match(int id, Lane lane);

    void start_compute(int id, PendingOp& op);
    void start_transfer(int id, Lane lane, PendingOp& op);

    /// Starts the head of a lane if it can start. If it is a transfer, it has waited for SMs.
    void start_admitted(int id, Lane lane) {
        admitted_ = true;
        try_start(id, lane);
        admitted_ = false;
    }

    void start_flow(int source, int destination, const TransferCost& cost, int id, Lane lane);

    /// Cost of the first unfinished transfer of a lane, as this rank sees it.
    const TransferCost& transfer_cost(int id, Lane lane, const PendingOp& op) {
        const auto& message = messages_ ? messages_->first(id, lane) : Message{};
        return op.kind() == OpKind::fetch ? cost_.transfer(op.peer, id, op.work, message)
                                          : cost_.transfer(id, op.peer, op.work, message);
    }

    /// Cost of a send as both ends see it: the larger number of pieces counts.
    const TransferCost& transfer_of_both(int id, Lane lane, const PendingOp& send) {
        auto message = messages_->first(id, lane);
        const auto& other = messages_->first(send.peer, layouts::counterpart(lane));
        message.pieces = std::max(message.pieces, other.pieces);
        message.is_split_by_heads |= other.is_split_by_heads;
        return cost_.transfer(id, send.peer, send.work, message);
    }

    void begin_span(int id, PendingOp& op);

    // ---- Ending operations ----

    void handle(int rank, Lane lane);

    /// Admits transfers that have waited for SMs for `least_wait` or longer.
    void admit_waiting(int rank, Picoseconds least_wait);

    /// A transfer of the rank has ended: its SMs go to transfers whose kernels have been launched by then.
    void pass_on_sms(int rank);

    void finish(int id, Lane lane);
    void after_finish(int rank, Lane lane, OpKind kind, int peer);

    // ---- The result ----

    void require_finished();
    Prediction result();

    const Schedule& schedule_;
    const Machine& machine_;
    const SimOptions& options_;
    CostModel cost_;
    int lanes_, ring_ranks_;
    Tags tags_;
    OpSource ops_;
    Fold fold_;
    Engine engine_;
    bool transfers_hold_sms_ = false;  // transfers take SMs
    bool halves_together_ = false;     // the two halves of a message take SMs together
    bool after_compute_ = false;       // what starts now has waited for an operation of its rank's compute lane
    bool admitted_ = false;            // the transfer that starts now has waited for SMs
    std::optional<PendingMessages> messages_;
    std::optional<SmAdmission> admission_;
    Prediction prediction_;                         // totals of ranks grow during the run
    HugeVector<SimulatedRank> ranks_;               // the ranks that are simulated
    std::vector<PartlyFilledSlots> partly_filled_;  // by rank
    std::vector<double> flop_;                      // by rank, for the sustained clock
    std::vector<ArrivalTracker> arrivals_;          // by rank, if fused launches wait inside the kernel
    std::optional<Trace> trace_;
    std::optional<SharedResources> resources_;
};

}  // namespace ringlab::sim
