#include "sim/simulate.hpp"

#include "layouts/require.hpp"
#include "sim/clocks.hpp"
#include "sim/parallel.hpp"
#include "sim/room.hpp"
#include "sim/shared_resources.hpp"
#include "sim/simulated_rank.hpp"
#include "sim/trace.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

namespace ringlab::sim {
namespace {

using layouts::compute_lane;
using layouts::RankTotals;

class Simulation {
public:
    Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options, std::vector<double> clocks,
               std::shared_ptr<TileModel> tiles)
        : schedule_(schedule),
          machine_(machine),
          options_(options),
          cost_(schedule, machine, options, std::move(clocks), std::move(tiles)),
          lanes_(schedule.lanes()),
          tags_(lanes_),
          places_(options.sharing ? 1 + static_cast<int>(schedule.channels().size()) : 0),
          engine_(tags_.of(cost_.ranks(), 0), static_cast<std::uint32_t>(places_ * cost_.ranks())) {
        require(lanes_ <= most_lanes, "the schedule has {} channels; the simulator has room for {}",
                schedule.channels().size(), most_channels);
        const auto starts = cost_.starts();
        ranks_.reserve(starts.size());
        prediction_.ranks.resize(starts.size());
        for (int rank = 0; rank < cost_.ranks(); ++rank)
            ranks_.emplace_back(schedule.ops(rank % schedule.ranks()).made_in(workplace_), lanes_,
                                starts[static_cast<std::size_t>(rank)], cost_.issue_pass(), cost_.before_pass(rank));
        if (options.trace) trace_.emplace(ranks_.size());
        if (cost_.gradients_come_later()) first_items_.resize(ranks_.size());
        if (options.clock == Clock::sustained) flop_.resize(ranks_.size());
        if (!options.sharing) return;
        resources_.emplace(engine_, schedule, machine, cost_);
        holds_ = resources_->kernels();
        const auto pass = schedule.options().pass;
        if (holds_ && options.compute == ComputeModel::tiles &&
            machine.attention(pass).room != AttentionCost::Room::at_once)
            room_.emplace(cost_, machine, pass);
    }

    Prediction run() {
        for (int rank = 0; rank < cost_.ranks(); ++rank) advance(rank);
        for (std::uint32_t ended = 0; engine_.next(ended);) {
            prefetch_upcoming();
            handle(tags_.rank(ended), tags_.lane(ended));
        }
        return result();
    }

    /// FLOP of visible pairs, by rank; counted for the sustained clock alone.
    const std::vector<double>& flop() const { return flop_; }

    /// Power of the GPU of each rank, by that of those of the calibration.
    std::vector<double> powers(double of_calibrated) const {
        std::vector<double> all(ranks_.size(), of_calibrated);
        const auto& ratios = machine_.power_of_gpus;
        for (std::size_t rank = 0; rank < all.size() && !ratios.empty(); ++rank)
            all[rank] *= ratios[static_cast<std::size_t>(cost_.topology().gpu(static_cast<int>(rank))) % ratios.size()];
        return all;
    }

private:
    SimulatedRank& rank_of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    RankTotals& totals_of(int rank) { return prediction_.ranks[static_cast<std::size_t>(rank)]; }

    /// With thousands of ranks, what an event needs is hardly ever in the cache. A transfer also ends something at its
    /// peer, which is often the next rank.
    void prefetch_upcoming() {
        prefetch(&rank_of(tags_.rank(engine_.upcoming(1))), 2 * sizeof(SimulatedRank));
        const auto& window = rank_of(tags_.rank(engine_.upcoming(0))).window;
        prefetch(window.storage(), std::min<std::size_t>(window.storage_bytes(), 256));
    }

    /// The first rank of the ring that `rank` is in.
    int ring_of(int rank) const { return options_.replicas == 1 ? 0 : rank - rank % schedule_.ranks(); }

    std::uint32_t place_of(int rank, Lane lane) const {
        return static_cast<std::uint32_t>(rank * places_ + (lane == compute_lane ? 0 : 1 + channel_of(lane)));
    }

    /// Multiprocessors given to, or taken back from, the kernels that carry out transfers.
    void hold(int rank, double multiprocessors) {
        if (multiprocessors == 0) return;
        auto& held = rank_of(rank).held;
        held += static_cast<float>(multiprocessors);
        leave(rank);
    }

    /// To compute, what transfers do not hold.
    void leave(int rank) {
        const auto held = static_cast<double>(rank_of(rank).held);
        resources_->leave_to_compute(
            rank, room_ && attending(rank) ? room_->left(rank, held) : std::max(0.0, machine_.multiprocessors - held));
    }

    /// The attend that the rank runs, if any.
    const PendingOp* attending(int rank) {
        auto& window = rank_of(rank).window;
        const auto head = window.head(compute_lane);
        if (head == OpWindow::none) return nullptr;
        const auto& op = window[head];
        return op.state == OpState::running && op.kind() == OpKind::attend ? &op : nullptr;
    }

    // ---- Reading the schedule ----

    /// Reads on until every lane knows its next operation.
    void refill(int id) {
        auto& rank = rank_of(id);
        auto host = cost_.host_clock(rank.host, next_of(rank));
        while (rank.more && (!rank.window.knows_all() || host.is_open(next_of(rank))) &&
               rank.window.size() < static_cast<std::uint32_t>(options_.look_ahead))
            read(id, host);
        rank.host = host.now();
    }

    static layouts::OpIndex next_of(const SimulatedRank& rank) {
        return static_cast<layouts::OpIndex>(rank.window.end());
    }

    void read(int id, HostClock& host) {
        auto& rank = rank_of(id);
        const auto* op = rank.ops.next();
        if (!op) {
            rank.more = false;
            const Ops done = std::move(rank.ops);
            return;
        }
        require(op->lane() < lanes_, "rank {} has a transfer on channel {} of {}", id, op->channel,
                schedule_.channels().size());
        const auto issue = cost_.issue(*op);
        const auto issued = host.issue(*op, next_of(rank), issue, [&](layouts::OpIndex transfer, Picoseconds delay) {
            put_off(id, transfer, delay);
        });
        const auto work = op->transfers() ? op->bytes : cost_.compute(*op, id, rank.window.end());
        const bool attends = op->kind == OpKind::attend;
        if (room_ && attends) room_->add(id, *op);
        if (!first_items_.empty() && attends)
            first_items_[static_cast<std::size_t>(id)].push_back(std::min(work, cost_.item(id)));
        rank.window.push(*op, ring_of(id), op->lane() == compute_lane ? std::max(issued, rank.prepared) : issued, work,
                         !first_items_.empty() && attends);
        count(rank.naive, totals_of(id), id, *op, work);
        if (trace_) trace_->read(id, ring_of(id), *op, {issued - issue, issued});
    }

    /// A transfer that was read, and not started, is issued later.
    void put_off(int id, layouts::OpIndex transfer, Picoseconds delay) {
        auto& time = rank_of(id).window[static_cast<std::uint32_t>(transfer)].time;
        time = layouts::later(time, delay);
        if (trace_) trace_->put_off(id, transfer, delay);
    }

    void count(NaiveEstimate& naive, RankTotals& totals, int id, const Op& op, std::int64_t work) {
        switch (op.kind) {
            case OpKind::attend:
                require(!__builtin_add_overflow(totals.cells, op.cells, &totals.cells),
                        "rank {} has more than 2^63 visible pairs; fewer --tokens have less", id);
                if (!flop_.empty()) flop_[static_cast<std::size_t>(id)] += schedule_.flop(op);
                [[fallthrough]];
            case OpKind::merge:
            case OpKind::add:
            case OpKind::copy:
            case OpKind::expand:
            case OpKind::compress: naive.add_compute(op.step, work); return;
            case OpKind::receive: totals.bytes_received += op.bytes; return;
            case OpKind::send: totals.bytes_sent += op.bytes; break;
            case OpKind::fetch: totals.bytes_received += op.bytes; break;
        }
        const auto peer = ring_of(id) + op.peer;
        const auto cost =
            op.kind == OpKind::fetch ? cost_.transfer(peer, id, op.bytes) : cost_.transfer(id, peer, op.bytes);
        naive.add_transfer(op.step, cost.whole());
    }

    // ---- Starting operations ----

    void advance(int rank) {
        refill(rank);
        for (auto lanes = rank_of(rank).window.waiting(); lanes != 0; lanes &= lanes - 1)
            try_start(rank, std::countr_zero(lanes));
    }

    /// Whether the kernel of a transfer that is ready has to wait until an attend leaves it room.
    bool waits_for_room(int id, Lane lane, PendingOp& op) {
        const auto* attend = attending(id);
        if (!attend || attend->time == engine_.now() || transfer_cost(id, op).multiprocessors == 0) return false;
        op.state = OpState::issuing;
        const auto wait = room_->wait(id, engine_.now() - attend->time, attend->work);
        (wait > 0 ? room_->admitted(id) : room_->waiting(id)) |= 1u << lane;
        if (wait > 0) engine_.start_timer(tags_.of(id, lane), wait);
        return true;
    }

    /// The head of a lane that waits; `admitted` if it is a transfer that has waited for room.
    void try_start(int id, Lane lane, bool admitted = false) {
        auto& window = rank_of(id).window;
        const auto head = window.head(lane);
        auto& op = window[head];
        if (!window.may_run(head)) return;
        window.leave_waiting(lane, op.time > engine_.now() ? OpState::issuing : OpState::posted);
        if (op.state == OpState::issuing) {
            engine_.start_timer(tags_.of(id, lane), op.time - engine_.now());
            return;
        }
        if (trace_ && !admitted) trace_->post(id, head, engine_.now());
        if (lane == compute_lane) return start_compute(id, op);
        if (room_ && !admitted && waits_for_room(id, lane, op)) return;
        if (auto& rank = rank_of(id); rank.posted++ == 0) rank.posted_since = engine_.now();
        if (holds_) hold(id, transfer_cost(id, op).multiprocessors);
        if (op.kind() == OpKind::fetch) return start_transfer(id, lane);
        const auto other_lane = counterpart(lane);
        auto& other = rank_of(op.peer).window;
        const auto other_head = other.head(other_lane);
        if (other_head == OpWindow::none) return;
        const auto& match = other[other_head];
        if (match.state != OpState::posted || match.peer != id) return;
        check_match(id, op, match);
        op.kind() == OpKind::send ? start_transfer(id, lane) : start_transfer(op.peer, other_lane);
    }

    void check_match(int id, const PendingOp& op, const PendingOp& match) const {
        require(op.pool() == match.pool() && op.work == match.work,
                "rank {} and rank {} disagree about a message: {} bytes of {} and {} of {}", id, op.peer, op.work,
                layouts::to_string(op.pool()), match.work, layouts::to_string(match.pool()));
    }

    void start_compute(int id, PendingOp& op) {
        op.state = OpState::running;
        op.time = engine_.now();
        auto work = op.work;
        if (op.peer >= 0 && begins_early(id)) {
            work = first_items_[static_cast<std::size_t>(id)].front();
            op.work -= work;
        }
        const auto tag = tags_.of(id, compute_lane);
        const bool attends = op.kind() == OpKind::attend;
        SharedResources::Demands demands;
        if (resources_) demands = resources_->of_compute(id, attends);
        if (room_ && attends) leave(id);
        if (demands.count == 0) return engine_.start_timer(tag, work);
        engine_.start({.duration = work,
                       .demands = demands.span(),
                       .priority = Priority::compute,
                       .crowds = attends,
                       .tag = tag,
                       .place = place_of(id, compute_lane)});
    }

    /// Starts what the head of `lane` stands for: a send with its receive, or a fetch.
    void start_transfer(int id, Lane lane) {
        auto& op = head_of(id, lane);
        begin_span(id, op);
        if (op.kind() == OpKind::send) begin_span(op.peer, head_of(op.peer, counterpart(lane)));
        const auto cost = cost_.with_noise(transfer_cost(id, op), id, rank_of(id).window.head(lane));
        if (!resources_ || cost.bytes_per_second == 0)
            engine_.start_timer(tags_.of(id, lane), cost.whole());
        else
            op.kind() == OpKind::fetch ? start_flow(op.peer, id, cost, id, lane)
                                       : start_flow(id, op.peer, cost, id, lane);
    }

    void start_flow(int source, int destination, const TransferCost& cost, int id, Lane lane) {
        const auto demands = resources_->of_transfer(source, destination, cost, id);
        engine_.start({.duration = cost.duration,
                       .delay = cost.latency,
                       .demands = demands.span(),
                       .weight = 1e9 / cost.bytes_per_second,  // flows on a short link get the same bytes per second
                       .crowded_speed = cost.link->busy_speed_ratio,
                       .tag = tags_.of(id, lane),
                       .place = place_of(id, lane)});
    }

    TransferCost transfer_cost(int id, const PendingOp& op) {
        return op.kind() == OpKind::fetch ? cost_.transfer(op.peer, id, op.work) : cost_.transfer(id, op.peer, op.work);
    }

    PendingOp& head_of(int rank, Lane lane) {
        auto& window = rank_of(rank).window;
        return window[window.head(lane)];
    }

    void begin_span(int id, PendingOp& op) {
        op.state = OpState::running;
        op.time = engine_.now();
        auto& rank = rank_of(id);
        if (rank.moving++ == 0) rank.moving_since = engine_.now();
    }

    // ---- Ending operations ----

    void handle(int rank, Lane lane) {
        auto& op = head_of(rank, lane);
        if (op.state == OpState::issuing) {
            op.state = OpState::waiting;
            if (!room_) return try_start(rank, lane);
            const auto admitted = room_->admitted(rank);
            room_->admitted(rank) &= ~(1u << lane);
            return try_start(rank, lane, admitted >> lane & 1);
        }
        if (lane == compute_lane && op.peer >= 0) return go_on(rank, op);
        const int peer = op.kind() == OpKind::send ? op.peer : -1;
        const bool attended = room_ && op.kind() == OpKind::attend;
        finish(rank, lane);
        if (attended) make_room(rank);
        if (peer >= 0) finish(peer, counterpart(lane));
        advance(rank);
        if (peer >= 0) advance(peer);
    }

    /// Whether the attend at the head of the compute lane has to go on without its gradient for now; if not, it is an
    /// attend like others.
    bool begins_early(int id) {
        auto& window = rank_of(id).window;
        const auto head = window.head(compute_lane);
        const bool early = first_items_[static_cast<std::size_t>(id)].front() > 0;
        if (early && !window.has_gradient(head)) return true;
        if (early) window[head].peer = -1;
        return false;
    }

    /// An attend whose first items have been done, all but adding to the gradient.
    void go_on(int id, PendingOp& op) {
        auto& window = rank_of(id).window;
        const auto head = window.head(compute_lane);
        totals_of(id).compute += engine_.now() - op.time;
        if (trace_) trace_->end(id, head, op.time, engine_.now());
        const bool arrived = window.has_gradient(head);
        window.wait_for_gradient(compute_lane);
        if (arrived) try_start(id, compute_lane);
    }

    /// For transfers that waited for the attend that has ended.
    void make_room(int rank) {
        room_->drop(rank);
        for (auto lanes = std::exchange(room_->waiting(rank), 0u); lanes != 0; lanes &= lanes - 1) {
            const Lane lane = std::countr_zero(lanes);
            head_of(rank, lane).state = OpState::waiting;
            try_start(rank, lane, true);
        }
    }

    void finish(int id, Lane lane) {
        auto& rank = rank_of(id);
        auto& totals = totals_of(id);
        const auto now = engine_.now();
        const auto index = rank.window.head(lane);
        const auto& op = rank.window[index];
        const auto length = now - op.time;
        if (trace_) trace_->end(id, index, op.time, now);
        totals.end = now;
        if (lane == compute_lane) {
            totals.compute += length;
            if (!first_items_.empty() && op.kind() == OpKind::attend)
                first_items_[static_cast<std::size_t>(id)].pop_front();
        } else {
            if (--rank.moving == 0) totals.communication += now - rank.moving_since;
            if (--rank.posted == 0) totals.waiting += now - rank.posted_since;
            if (holds_) hold(id, -transfer_cost(id, op).multiprocessors);
        }
        rank.window.finish_head(lane);
    }

    // ---- The result ----

    void require_finished() {
        for (int id = 0; id < cost_.ranks(); ++id) {
            auto& rank = rank_of(id);
            for (Lane lane = 0; lane < lanes_; ++lane) {
                const auto head = rank.window.head(lane);
                if (head == OpWindow::none) continue;
                const auto& op = rank.window[head];
                fail("the schedule cannot be finished: operation {} of rank {} ({}, peer {}) waits for ever", head, id,
                     layouts::to_string(op.kind()), op.peer);
            }
        }
    }

    Prediction result() {
        require_finished();
        auto& prediction = prediction_;
        prediction.events = engine_.events();
        prediction.notes = cost_.notes();
        prediction.timeline.ranks = cost_.ranks();
        for (int id = 0; id < cost_.ranks(); ++id) {
            auto& rank = rank_of(id);
            auto& totals = totals_of(id);
            totals.end = layouts::later(std::max(totals.end, rank.prepared), cost_.behind_pass(id));
            // Compute spans follow one another, so the time without one is what they do not cover.
            totals.exposed = totals.end - totals.compute;
            totals.waiting -= totals.communication;  // so far the time in which any was posted
            prediction.makespan = std::max(prediction.makespan, totals.end);
            prediction.naive_overlapped = std::max(prediction.naive_overlapped, rank.naive.overlapped());
            prediction.naive_serial = std::max(prediction.naive_serial, rank.naive.serial());
        }
        if (trace_) trace_->give(prediction);
        return std::move(prediction);
    }

    const Schedule& schedule_;
    const Machine& machine_;
    const SimOptions& options_;
    CostModel cost_;
    int lanes_;
    Tags tags_;
    int places_;  // of activities of a rank: compute, and the transfer of a channel that begins or is fetched here
    Engine engine_;
    bool holds_ = false;  // transfers take multiprocessors
    std::optional<Room> room_;
    Op workplace_;           // of all ranks' streams
    Prediction prediction_;  // its ranks count up under way
    std::vector<SimulatedRank> ranks_;
    std::vector<double> flop_;  // by rank, for the sustained clock
    // Of each rank's attends that were read, where they begin before the gradients that they add to have arrived.
    std::vector<std::deque<Picoseconds>> first_items_;
    std::optional<Trace> trace_;
    std::optional<SharedResources> resources_;
};

Prediction played(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                  const std::shared_ptr<TileModel>& tiles) {
    require(options.replicas >= 1 && options.replicas <= (1 << 22) / schedule.ranks(),
            "{} rings of {} ranks; there must be one or more, of 2^22 ranks in all", options.replicas,
            schedule.ranks());
    if (options.clock == Clock::calibrated) return Simulation(schedule, machine, options, {}, tiles).run();
    // The clock depends on how busy ranks are, and that on the clock, though little.
    const auto power_flops = machine.attention(schedule.options().pass).power_flops;
    require(options.pause_busy_seconds >= 0 && options.pause_seconds >= options.pause_busy_seconds,
            "the pause between passes is {} s, and busy for {} s; it must not be negative, nor busy for longer",
            options.pause_seconds, options.pause_busy_seconds);
    auto quiet = options;
    quiet.trace = false;
    std::vector<double> clocks(static_cast<std::size_t>(schedule.ranks()) * static_cast<std::size_t>(options.replicas),
                               1);
    constexpr int rounds = 2;
    for (int round = 0; round < rounds && std::isfinite(power_flops); ++round) {
        Simulation simulation(schedule, machine, quiet, clocks, tiles);
        const auto found = simulation.run();
        clocks = sustained_clocks(found, clocks, simulation.flop(), simulation.powers(power_flops), options);
    }
    auto prediction = Simulation(schedule, machine, options, clocks, tiles).run();
    prediction.clock = *std::min_element(clocks.begin(), clocks.end());
    return prediction;
}

}  // namespace

Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    return played(schedule, machine, options, std::make_shared<TileModel>(schedule, machine));
}

std::vector<Picoseconds> simulate_repeatedly(const layouts::Schedule& schedule, const Machine& machine,
                                             const SimOptions& options, int repeats, int threads) {
    std::vector<Picoseconds> makespans(static_cast<std::size_t>(repeats));
    // Tiles are timed once by each thread: a share of the repeats is its own.
    const auto shares = static_cast<std::size_t>(std::clamp(threads, 1, std::max(1, repeats)));
    for_each_in_parallel(shares, threads, [&](std::size_t share) {
        const auto tiles = std::make_shared<TileModel>(schedule, machine);
        auto disturbed = options;
        disturbed.trace = false;
        for (auto i = share; i < makespans.size(); i += shares) {
            disturbed.jitter.repeat = static_cast<int>(i);
            makespans[i] = played(schedule, machine, disturbed, tiles).makespan;
        }
    });
    return makespans;
}

}  // namespace ringlab::sim
