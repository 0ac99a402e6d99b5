#include "sim/simulate.hpp"

#include "layouts/require.hpp"
#include "sim/cost.hpp"
#include "sim/engine.hpp"
#include "sim/lanes.hpp"
#include "sim/naive.hpp"
#include "sim/op_window.hpp"
#include "sim/parallel.hpp"
#include "sim/room.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

namespace ringlab::sim {
namespace {

using layouts::compute_lane;
using layouts::Ops;
using layouts::RankTotals;
using layouts::Span;

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

/// The resources that one rank's GPU brings, or none where it never limits anything.
struct GpuResources {
    static constexpr ResourceId none = ~0u;
    ResourceId egress = none, ingress = none, memory = none, multiprocessors = none;
};

struct alignas(64) Rank {
    Rank(Ops stream, int lanes, Picoseconds start, Picoseconds issue, Picoseconds before)
        : ops(std::move(stream)),
          window(lanes),
          host(layouts::later(start, issue)),
          prepared(layouts::later(start, before)) {}

    Ops ops;
    OpWindow window;
    Picoseconds host;      // when the host has issued all that was read
    Picoseconds prepared;  // when what comes before the first operation on the compute lane has ended
    NaiveEstimate naive;
    Picoseconds posted_since = 0, moving_since = 0;
    bool more = true;        // operations to read
    std::int8_t posted = 0;  // transfers whose own side is ready, to their ends: one a lane at most
    std::int8_t moving = 0;  // those whose peer is ready as well
    float held = 0;          // multiprocessors
};
static_assert(sizeof(Rank) == 128);

class Simulation {
public:
    Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options, double clock,
               std::shared_ptr<TileModel> tiles)
        : schedule_(schedule),
          machine_(machine),
          options_(options),
          cost_(schedule, machine, options, clock, std::move(tiles)),
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
        if (options.trace) {
            spans_.resize(ranks_.size());
            issued_.resize(ranks_.size());
        }
        if (options.clock == Clock::sustained) flop_.resize(ranks_.size());
        if (options.sharing) add_resources();
    }

    Prediction run() {
        for (int rank = 0; rank < cost_.ranks(); ++rank) advance(rank);
        for (std::uint32_t ended = 0; engine_.next(ended);) {
            prefetch_upcoming();
            handle(tags_.rank(ended), tags_.lane(ended));
        }
        return result();
    }

    /// FLOP of visible pairs of the rank that has most of them; counted for the sustained clock alone.
    double most_flop() const { return flop_.empty() ? 0 : *std::max_element(flop_.begin(), flop_.end()); }

private:
    Rank& rank_of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
    RankTotals& totals_of(int rank) { return prediction_.ranks[static_cast<std::size_t>(rank)]; }

    /// With thousands of ranks, what an event needs is hardly ever in the cache. A transfer also ends something at its
    /// peer, which is often the next rank.
    void prefetch_upcoming() {
        prefetch(&rank_of(tags_.rank(engine_.upcoming(1))), 2 * sizeof(Rank));
        const auto& window = rank_of(tags_.rank(engine_.upcoming(0))).window;
        prefetch(window.storage(), std::min<std::size_t>(window.storage_bytes(), 256));
    }

    // ---- Resources ----

    // Memory and multiprocessors of every rank; links and network ports when something first travels over them: of a
    // ring only the hosts' ends are joined to others.
    void add_resources() {
        const bool memory = std::isfinite(machine_.memory_bytes_per_second);
        const bool kernels = machine_.inside_host.multiprocessors_per_channel > 0 ||
                             machine_.between_hosts.multiprocessors_per_channel > 0;
        one_channel_ = schedule_.channels().size() == 1;
        const bool links = !one_channel_ && std::isfinite(machine_.inside_host.link_bytes_per_second);
        const std::size_t ends_of_hosts = 2 * (ranks_.size() / static_cast<std::size_t>(machine_.gpus_per_host) + 1);
        engine_.reserve(0, ranks_.size() * (memory + kernels + 2 * links) + ends_of_hosts);
        holds_ = kernels;
        const auto pass = schedule_.options().pass;
        if (kernels && options_.compute == ComputeModel::tiles &&
            machine_.attention(pass).room != AttentionCost::Room::at_once)
            room_.emplace(cost_, machine_, pass);
        gpus_.resize(ranks_.size());
        for (auto& gpu : gpus_) {
            if (memory) gpu.memory = engine_.add_resource(machine_.memory_bytes_per_second);
            if (kernels) gpu.multiprocessors = engine_.add_resource(machine_.multiprocessors);
        }
        if (!std::isfinite(machine_.between_hosts.link_bytes_per_second)) return;
        const auto hosts = static_cast<std::size_t>(cost_.topology().hosts());
        const auto ports = static_cast<std::size_t>(machine_.nics_per_host);
        if (hosts == 1) return;
        ports_.resize(hosts * ports);
        if (machine_.network.hosts_per_leaf > 0) leaves_.resize(hosts * ports);  // at least as many as are in use
        for (const auto rank : cost_.draws().slow_links())                       // also for those who share the port
            made(port_of(rank).out, machine_.between_hosts.link_bytes_per_second / cost_.draws().link_factor(rank));
    }

    /// What a port sends and receives, or a leaf to and from the spine.
    struct TwoWays {
        ResourceId out = GpuResources::none, in = GpuResources::none;
    };
    TwoWays& port_of(int rank) { return ports_[static_cast<std::size_t>(cost_.topology().port(rank))]; }
    TwoWays& leaf_of(int rank) { return leaves_[static_cast<std::size_t>(cost_.topology().leaf(rank))]; }

    /// The first rank of the ring that `rank` is in.
    int ring_of(int rank) const { return options_.replicas == 1 ? 0 : rank - rank % schedule_.ranks(); }

    std::uint32_t place_of(int rank, Lane lane) const {
        return static_cast<std::uint32_t>(rank * places_ + (lane == compute_lane ? 0 : 1 + channel_of(lane)));
    }

    /// The resource, made now if it was not there.
    ResourceId made(ResourceId& resource, double capacity) {
        if (resource == GpuResources::none && std::isfinite(capacity)) resource = engine_.add_resource(capacity);
        return resource;
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
        engine_.set_capacity(
            gpus_[static_cast<std::size_t>(rank)].multiprocessors,
            room_ && attending(rank) ? room_->left(rank, held) : std::max(0.0, machine_.multiprocessors - held));
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

    static layouts::OpIndex next_of(const Rank& rank) { return static_cast<layouts::OpIndex>(rank.window.end()); }

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
        if (room_ && op->kind == OpKind::attend) room_->add(id, *op);
        rank.window.push(*op, ring_of(id), op->lane() == compute_lane ? std::max(issued, rank.prepared) : issued, work);
        count(rank.naive, totals_of(id), id, *op, work);
        if (!options_.trace) return;
        auto& spans = spans_[static_cast<std::size_t>(id)];
        Span span;
        span.rank = id;
        span.op = static_cast<layouts::OpIndex>(spans.size());
        span.step = op->step;
        span.kind = op->kind;
        span.lane = op->lane();
        span.peer = op->peer < 0 ? op->peer : ring_of(id) + op->peer;
        span.block = op->part.block;
        span.cells = op->cells;
        span.bytes = op->bytes;
        spans.push_back(span);
        issued_[static_cast<std::size_t>(id)].push_back({issued - issue, issued});
    }

    /// A transfer that was read, and not started, is issued later.
    void put_off(int id, layouts::OpIndex transfer, Picoseconds delay) {
        auto& time = rank_of(id).window[static_cast<std::uint32_t>(transfer)].time;
        time = layouts::later(time, delay);
        if (!options_.trace) return;
        auto& issued = issued_[static_cast<std::size_t>(id)][static_cast<std::size_t>(transfer)];
        issued = {issued.begin + delay, issued.end + delay};
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
            case OpKind::copy: naive.add_compute(op.step, work); return;
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
        if (options_.trace && !admitted) spans_[static_cast<std::size_t>(id)][head].posted = engine_.now();
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
        const auto tag = tags_.of(id, compute_lane);
        std::array<Demand, Engine::most_demands> demands;
        std::size_t count = 0;
        const bool attends = op.kind() == OpKind::attend;
        if (!gpus_.empty()) {
            const auto& gpu = gpus_[static_cast<std::size_t>(id)];
            const auto memory = attends ? machine_.attention_memory_bytes_per_second : machine_.memory_bytes_per_second;
            if (gpu.memory != GpuResources::none && memory > 0) demands[count++] = {gpu.memory, memory};
            if (gpu.multiprocessors != GpuResources::none && attends)
                demands[count++] = {gpu.multiprocessors, machine_.multiprocessors};
        }
        if (room_ && attends) leave(id);
        if (count == 0) return engine_.start_timer(tag, op.work);
        engine_.start({.duration = op.work,
                       .demands = {demands.data(), count},
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
        if (!options_.sharing || cost.bytes_per_second == 0)
            engine_.start_timer(tags_.of(id, lane), cost.whole());
        else
            op.kind() == OpKind::fetch ? start_flow(op.peer, id, cost, id, lane)
                                       : start_flow(id, op.peer, cost, id, lane);
    }

    /// Where all messages are sent on one channel, one after another, each has its sender's way out and its receiver's
    /// way in to itself, if ports are those of one GPU each. Of fetches there may be several from one rank.
    bool has_link_alone(int id, int source, Route route) {
        if (!one_channel_) return false;
        (id == source ? sends_ : fetches_) = true;
        require(!(sends_ && fetches_), "rank {} sends and others fetch on the only channel; give each one of its own",
                id);
        return id == source && (route == Route::inside_host || machine_.nics_per_host == machine_.gpus_per_host);
    }

    void start_flow(int source, int destination, const TransferCost& cost, int id, Lane lane) {
        auto &from = gpus_[static_cast<std::size_t>(source)], &to = gpus_[static_cast<std::size_t>(destination)];
        std::array<Demand, Engine::most_demands> demands;
        std::size_t count = 0;
        const auto demand = [&](ResourceId resource, double amount) {
            if (resource != GpuResources::none && amount > 0) demands[count++] = {resource, amount};
        };
        const auto rate = cost.bytes_per_second;
        const auto capacity = cost.link->link_bytes_per_second;
        if (has_link_alone(id, source, cost.route)) {
            // Never short: nothing to share.
        } else if (cost.route == Route::inside_host) {
            demand(made(from.egress, capacity / cost_.draws().link_factor(source)), rate);
            demand(made(to.ingress, capacity), rate);
        } else if (!ports_.empty()) {
            demand(made(port_of(source).out, capacity), rate);
            demand(made(port_of(destination).in, capacity), rate);
        }
        if (cost.route == Route::spine && !leaves_.empty()) {
            const auto uplinks = machine_.leaf_bytes_per_second();
            demand(made(leaf_of(source).out, uplinks), rate);
            demand(made(leaf_of(destination).in, uplinks), rate);
        }
        demand(from.memory, rate * cost.link->send_memory_ratio);
        demand(to.memory, rate * cost.link->receive_memory_ratio);
        engine_.start({.duration = cost.duration,
                       .delay = cost.latency,
                       .demands = {demands.data(), count},
                       .weight = 1e9 / rate,  // flows on a short link get the same bytes per second
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
        const int peer = op.kind() == OpKind::send ? op.peer : -1;
        const bool attended = room_ && op.kind() == OpKind::attend;
        finish(rank, lane);
        if (attended) make_room(rank);
        if (peer >= 0) finish(peer, counterpart(lane));
        advance(rank);
        if (peer >= 0) advance(peer);
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
        if (options_.trace) {
            auto& span = spans_[static_cast<std::size_t>(id)][index];
            span.begin = op.time;
            span.end = now;
            span.busy = length;
        }
        totals.end = now;
        if (lane == compute_lane) {
            totals.compute += length;
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
        for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
            auto& spans = prediction.timeline.spans;
            spans.insert(spans.end(), spans_[rank].begin(), spans_[rank].end());
            prediction.host_issue.insert(prediction.host_issue.end(), issued_[rank].begin(), issued_[rank].end());
        }
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
    bool one_channel_ = false, sends_ = false, fetches_ = false;
    Op workplace_;           // of all ranks' streams
    Prediction prediction_;  // its ranks count up under way
    std::vector<Rank> ranks_;
    std::vector<GpuResources> gpus_;        // by rank; empty without sharing
    std::vector<TwoWays> ports_, leaves_;   // empty where they never limit anything
    std::vector<double> flop_;              // by rank, for the sustained clock
    std::vector<std::vector<Span>> spans_;  // by rank, if traced
    std::vector<std::vector<layouts::Interval>> issued_;
};

/// The energy of a FLOP goes as the square of the voltage, and that about as the clock: so power bounds rate x clock^2,
/// and attends that keep more of a multiprocessor busy run at a lower clock. Averaged over repeated passes with their
/// pauses. From what was predicted at the clock `before`, where a pass that computes for longer is taken to last longer
/// by as much.
double sustained_clock(const Prediction& prediction, double before, double flop, double power_flops,
                       const SimOptions& options) {
    const auto period = layouts::to_seconds(prediction.makespan) + options.pause_seconds;
    double busy = 0;  // of the busiest rank, which the others wait for
    for (const auto& rank : prediction.ranks) busy = std::max(busy, layouts::to_seconds(rank.compute));
    if (busy == 0) return 1;
    double low = 0, high = 1;
    for (int halvings = 0; halvings < 50; ++halvings) {
        const auto clock = (low + high) / 2, at_clock = busy * before / clock;
        // Seconds of all power that there is. The other attends, in the pause, take as much at a time.
        const auto taken = flop * clock * clock / power_flops * (1 + options.pause_busy_seconds / at_clock);
        (taken <= period - busy + at_clock ? low : high) = clock;
    }
    return high;
}

Prediction played(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options,
                  const std::shared_ptr<TileModel>& tiles) {
    require(options.replicas >= 1 && options.replicas <= (1 << 22) / schedule.ranks(),
            "{} rings of {} ranks; there must be one or more, of 2^22 ranks in all", options.replicas,
            schedule.ranks());
    if (options.clock == Clock::calibrated) return Simulation(schedule, machine, options, 1, tiles).run();
    // The clock depends on how busy ranks are, and that on the clock, though little.
    const auto power_flops = machine.attention(schedule.options().pass).power_flops;
    require(options.pause_busy_seconds >= 0 && options.pause_seconds >= options.pause_busy_seconds,
            "the pause between passes is {} s, and busy for {} s; it must not be negative, nor busy for longer",
            options.pause_seconds, options.pause_busy_seconds);
    auto quiet = options;
    quiet.trace = false;
    double clock = 1;
    constexpr int rounds = 2;
    for (int round = 0; round < rounds && std::isfinite(power_flops); ++round) {
        Simulation simulation(schedule, machine, quiet, clock, tiles);
        const auto found = simulation.run();
        clock = sustained_clock(found, clock, simulation.most_flop(), power_flops, options);
    }
    auto prediction = Simulation(schedule, machine, options, clock, tiles).run();
    prediction.clock = clock;
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
