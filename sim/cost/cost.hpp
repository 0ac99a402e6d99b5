#pragma once

#include "layouts/basics/checked_arithmetic.hpp"
#include "layouts/schedules/schedule.hpp"
#include "sim/cost/messages.hpp"
#include "sim/machine/machine.hpp"
#include "sim/machine/options.hpp"
#include "sim/machine/topology.hpp"
#include "sim/tiles/tile_model.hpp"

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace ringlab::sim {

/// What one message costs.
struct TransferCost {
    Picoseconds latency = 0;
    Picoseconds duration = 0;        ///< after the latency, if it has the link to itself
    double bytes_per_second = 0;     ///< at full speed; 0 if the message takes no time
    double sms = 0;                  ///< SMs held at each end from when that end is ready; 0 for copy engines
    double speed_beside_attend = 1;  ///< speed while an attend runs, relative to alone
    const LinkCost* link = nullptr;
    Route route = Route::inside_host;

    Picoseconds whole() const { return layouts::checked_sum(latency, duration); }
};

/// Bytes of q and k of a rank with `tokens` tokens (backward: of dq and dk) that a rotary embedding rotates; 0 without
/// one.
double rotated_bytes(const Schedule& schedule, std::int64_t tokens);

/// Seconds that a rank takes to rotate q and k before the forward pass, or dq and dk behind the backward pass: two
/// launches. Not part of a predicted pass.
double rotation_seconds(const Schedule& schedule, const Machine& machine, std::int64_t tokens);

class KeyLaunches;

/// Tile times for several models and plays of one schedule on one machine; null with ComputeModel::rate, which needs
/// none.
std::shared_ptr<TileModel> make_tiles(const Schedule& schedule, const Machine& machine, const SimOptions& options);

/// Price of every operation on a machine: its duration when it shares nothing.
class CostModel {
public:
    /// `schedule`, `machine` and `options` must outlive the model. `clocks` are by rank, relative to the calibration;
    /// empty means 1. `tiles` are those of make_tiles(), made here if they are null. Throws Error if ranks cannot be
    /// placed on the machine's GPUs, or if an option is out of range.
    CostModel(const Schedule& schedule, const Machine& machine, const SimOptions& options,
              std::vector<double> clocks = {}, std::shared_ptr<TileModel> tiles = nullptr);

    int ranks() const { return schedule_.ranks() * options_.replicas; }

    /// Duration of an operation of the compute lane: without noise, and with the noise and slow GPU of operation
    /// `index`. Attends of fused launches must be asked for in the rank's order.
    Picoseconds compute(const Op& op, int rank);
    Picoseconds compute(const Op& op, int rank, layouts::OpIndex index);

    /// The part of `price`, which compute() gave for this attend, that its tiles take if they are spread evenly over
    /// all SMs. All of `price` if it is not made of tiles.
    Picoseconds time_of_tiles_alone(const Op& attend, int rank, Picoseconds price);

    /// Cost of a message between two ranks; includes a slow link of the source. The reference is valid until the next
    /// call.
    const TransferCost& transfer(int source, int destination, std::int64_t bytes, const Message& message = {}) {
        const auto route = topology_.route(source, destination);
        const auto slower = draws_.link_factor(source);
        auto& known = known_[2 * static_cast<std::size_t>(route) + (slower > 1)];
        if (known.bytes != bytes || known.message != message) price(known, route, slower, bytes, message);
        return known.cost;
    }

    /// `cost` with the noise, or the measured price, of operation `index` of `rank`, which sends or fetches.
    TransferCost with_noise(TransferCost cost, int rank, layouts::OpIndex index) const;

    /// Whether the options say that this cause costs nothing.
    bool is_free(Cause cause) const { return options_.free == cause; }

    /// Whether the rank's backward attends are one fused launch that waits, inside the kernel, for blocks and for the
    /// gradients that it adds to. Then key_launches() tells when each attend ends, and compute() tells how long it
    /// takes if everything has arrived.
    bool waits_inside_kernel() const;
    KeyLaunches key_launches(int rank) const;

    /// Factor on the calibrated time of compute operation `index` of a rank: its clock, slow GPUs and noise.
    double slowdown(int rank, layouts::OpIndex index) const;

    /// Whether the schedule has fused launches, and the machine prices them as such.
    bool prices_fused_launches() const;

    const Draws& draws() const { return draws_; }
    TileModel& tiles() { return *tiles_; }
    Picoseconds at_clock(double seconds, int rank) const;

    /// FLOP of an attend that take power: those of all pairs of the tiles that it computes.
    double computed_flop(const Op& op) const;

    /// Host time to issue an operation, which is that of messages alone. A receive whose sender sets an arrival flag
    /// takes no call. `slot_has_part`: what PartlyFilledSlots says of the operation.
    Picoseconds issue(const Op& op, bool slot_has_part) const {
        if (!op.transfers() || is_one_launch_) return 0;
        if (by_copy_engine_ && !slot_has_part && sender_sets_flag(op)) return 0;
        const auto message = op.kind == layouts::OpKind::fetch ? issue_fetch_ : issue_transfer_;
        return issue_piece_ == 0 ? message : message + issue_piece_ * (pieces_of(schedule_, op) - 1);
    }

    /// Whether the host issues an operation that computes before all messages of the pass: over copy engines, one that
    /// waits for nothing, or that a launch of an earlier operation has in it.
    bool is_issued_first(const Op& op) const {
        return by_copy_engine_ && !op.transfers() && (op.fused || op.after().empty());
    }

    /// When the host issues the rank's next operation. It issues in the order of the schedule, but for
    /// is_issued_first(). `host`: when it has issued all operations so far.
    layouts::Interval issue_next(const Op& op, int rank, PartlyFilledSlots& slots, Picoseconds& host) const {
        const auto issue_time = issue(op, slots.had_part(schedule_, op));
        host = layouts::checked_sum(host, issue_time);
        const auto issued = is_issued_first(op) ? start(rank) : host;
        return {issued - issue_time, issued};
    }

    /// GPU time of a rank's pass before its first operation on the compute lane, and behind its last operation.
    Picoseconds begin_of_pass(int rank) const;
    Picoseconds end_of_pass(int rank) const;
    const Topology& topology() const { return topology_; }

    /// When a rank starts the pass.
    Picoseconds start(int rank) const;

    /// What the machine file does not cover exactly and how it was stretched, one sentence each, for users.
    std::vector<std::string> notes() const;

private:
    /// Whether the sender alone starts a message that this rank receives, and sets a flag behind it. It does if the
    /// message comes to a scratch slot of keys or gradients that is free from the start of the pass, and if the order
    /// of arrivals on its lane is given or does not matter. The first part of a block alone counts as such a message.
    bool sender_sets_flag(const Op& op) const {
        return op.kind == layouts::OpKind::receive && !layouts::of_rows(op.pool) && op.slot(op.pool) > 0 &&
               op.after().empty() && !arrival_order_matters_[static_cast<std::size_t>(op.lane())];
    }
    Picoseconds issue_time(double seconds) const;
    double clock(int rank) const { return clocks_.empty() ? 1 : clocks_[static_cast<std::size_t>(rank)]; }
    double attend_seconds(const Op& op, int rank);
    double dropout_seconds(const Op& op, int rank) const;
    double sink_seconds(std::int64_t rows) const;
    double next_fused_seconds(int rank);
    bool splits_fused_launches() const { return machine_.inside_host.uses_kernels(); }
    double latent_seconds(const Op& op, int rank) const;

    const Schedule& schedule_;
    const Machine& machine_;
    const AttentionCost& attention_;
    const SimOptions& options_;
    Topology topology_;
    bool is_one_launch_;  // of every rank: passes_are_one_launch()
    Draws draws_;
    std::vector<double> clocks_;               // by rank; empty: all 1
    bool by_copy_engine_;                      // messages inside a host take no SMs
    std::vector<bool> arrival_order_matters_;  // by lane
    Picoseconds issue_transfer_, issue_fetch_, issue_piece_;
    std::shared_ptr<TileModel> tiles_;
    bool prices_fused_launches_;  // by tiles
    struct FusedPrices {
        std::vector<double> times;
        std::size_t next = 0;
    };
    std::vector<FusedPrices> fused_prices_;  // by rank: prices of attends that were not asked for yet
    struct Known {
        std::int64_t bytes = -1;
        Message message;
        TransferCost cost;
    };
    void price(Known& known, Route route, double slower, std::int64_t bytes, const Message& message) const;
    std::array<Known, 2 * route_count> known_;  // the last message on each route, slow link or not; kept because most
                                                // have one size
};

}  // namespace ringlab::sim
