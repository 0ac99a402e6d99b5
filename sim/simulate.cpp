#include "sim/simulate.hpp"

#include "layouts/require.hpp"
#include "sim/cost.hpp"
#include "sim/engine.hpp"
#include "sim/lanes.hpp"
#include "sim/naive.hpp"
#include "sim/op_window.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::sim {
namespace {

using layouts::compute_lane;
using layouts::Ops;
using layouts::RankTotals;
using layouts::Span;

// Room for what rings need; more is made when it is needed.
constexpr std::size_t activities_per_rank = 5, resources_per_rank = 6;

/// What an ended activity was, packed into the engine's tag. A lane does one thing at a time, so rank and lane say
/// which operation it was; of a send and its receive, the sender stands for both.
struct Tag {
    enum What : std::uint32_t { operation, issue, latency };
    int rank;
    Lane lane;
    What what;

    static constexpr int lane_bits = 5;
    static_assert(most_lanes <= 1 << lane_bits);

    std::uint32_t pack() const {
        return (static_cast<std::uint32_t>(rank) << lane_bits | static_cast<std::uint32_t>(lane)) << 2 | what;
    }
    static Tag unpack(std::uint32_t tag) {
        return {static_cast<int>(tag >> (2 + lane_bits)), static_cast<Lane>(tag >> 2 & ((1 << lane_bits) - 1)),
                static_cast<What>(tag & 3)};
    }
};

/// The resources that one rank's GPU brings, or none where it never limits anything.
struct GpuResources {
    static constexpr ResourceId none = ~0u;
    ResourceId egress = none, ingress = none, memory = none, multiprocessors = none;
};

struct Rank {
    Rank(Ops stream, Picoseconds start, Picoseconds before)
        : ops(std::move(stream)), host(start), prepared(layouts::later(start, before)) {}

    Ops ops;
    bool more = true;  // operations to read
    OpWindow window;
    Picoseconds host;      // when the host has issued all that was read
    Picoseconds prepared;  // when what comes before the first operation on the compute lane has ended
    RankTotals totals;
    NaiveEstimate naive;
    Picoseconds posted_since = 0, moving_since = 0;
    std::int16_t posted = 0;  // transfers whose own side is ready, to their ends
    std::int16_t moving = 0;  // those whose peer is ready as well
    float held = 0;           // multiprocessors
};

class Simulation {
public:
    Simulation(const Schedule& schedule, const Machine& machine, const SimOptions& options, double clock)
        : schedule_(schedule),
          machine_(machine),
          options_(options),
          cost_(schedule, machine, options, clock),
          lanes_(schedule.lanes()) {
        require(lanes_ <= most_lanes, "the schedule has {} channels; the simulator has room for {}",
                schedule.channels().size(), most_channels);
        const auto starts = cost_.starts();
        ranks_.reserve(starts.size());
        engine_.reserve(activities_per_rank * starts.size(), resources_per_rank * starts.size());
        for (int rank = 0; rank < schedule.ranks(); ++rank)
            ranks_.emplace_back(schedule.ops(rank), starts[static_cast<std::size_t>(rank)], cost_.before_pass(rank));
        if (options.trace) {
            spans_.resize(ranks_.size());
            issued_.resize(ranks_.size());
        }
        if (options.sharing) add_resources();
    }

    Prediction run() {
        for (int rank = 0; rank < schedule_.ranks(); ++rank) advance(rank);
        for (std::uint32_t ended = 0; engine_.next(ended);) {
            prefetch_upcoming();
            handle(Tag::unpack(ended));
        }
        return result();
    }

private:
    Rank& rank_of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    /// With thousands of ranks, what an event needs is hardly ever in the cache. A transfer also ends something at its
    /// peer, which is often the next rank.
    void prefetch_upcoming() {
        prefetch(&rank_of(Tag::unpack(engine_.upcoming(1)).rank), 2 * sizeof(Rank));
        prefetch(rank_of(Tag::unpack(engine_.upcoming(0)).rank).window.storage(), 8 * sizeof(PendingOp));
    }

    // ---- Resources ----

    void add_resources() {
        const auto limited = [](double rate) { return std::isfinite(rate); };
        const auto add = [&](bool wanted, double capacity) {
            return wanted ? engine_.add_resource(capacity) : GpuResources::none;
        };
        const auto& link = machine_.inside_host;
        const auto& far = machine_.between_hosts;
        const bool memory = limited(machine_.memory_bytes_per_second);
        const bool kernels = link.multiprocessors_per_channel > 0 || far.multiprocessors_per_channel > 0;
        const bool spread = cost_.host(0) != cost_.host(schedule_.ranks() - 1) || !options_.placement.empty();
        gpus_.reserve(ranks_.size());
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            auto& gpu = gpus_.emplace_back();
            gpu.egress = add(limited(link.link_bytes_per_second), link.link_bytes_per_second);
            gpu.ingress = add(limited(link.link_bytes_per_second), link.link_bytes_per_second);
            gpu.memory = add(memory, machine_.memory_bytes_per_second);
            gpu.multiprocessors = add(kernels, machine_.multiprocessors);
        }
        if (!spread || !limited(far.link_bytes_per_second)) return;
        int hosts = 0;
        for (int rank = 0; rank < schedule_.ranks(); ++rank) hosts = std::max(hosts, cost_.host(rank) + 1);
        for (int nic = 0; nic < hosts * machine_.nics_per_host; ++nic) {
            const auto out = engine_.add_resource(far.link_bytes_per_second);
            nics_.push_back({out, engine_.add_resource(far.link_bytes_per_second)});
        }
    }

    struct Nic {
        ResourceId out, in;
    };

    const Nic* nic_of(int rank) const {
        if (nics_.empty()) return nullptr;
        const auto per_nic = machine_.gpus_per_host / machine_.nics_per_host;
        const auto local = cost_.gpu(rank) % machine_.gpus_per_host;
        return &nics_[static_cast<std::size_t>(cost_.host(rank) * machine_.nics_per_host + local / per_nic)];
    }

    /// Multiprocessors given to, or taken back from, the kernels that carry out transfers.
    void hold(int rank, double multiprocessors) {
        if (multiprocessors == 0 || gpus_.empty()) return;
        auto& held = rank_of(rank).held;
        held += static_cast<float>(multiprocessors);
        engine_.set_capacity(gpus_[static_cast<std::size_t>(rank)].multiprocessors,
                             std::max(0.0, machine_.multiprocessors - static_cast<double>(held)));
    }

    // ---- Reading the schedule ----

    /// Reads on until every lane knows its next operation.
    void refill(int id) {
        auto& rank = rank_of(id);
        while (rank.more && !rank.window.knows_all(lanes_) &&
               rank.window.size() < static_cast<std::uint32_t>(options_.look_ahead))
            read(id);
    }

    void read(int id) {
        auto& rank = rank_of(id);
        const auto* op = rank.ops.next();
        if (!op) {
            rank.more = false;
            return;
        }
        require(op->lane() < lanes_, "rank {} has a transfer on channel {} of {}", id, op->channel,
                schedule_.channels().size());
        const auto before = rank.host;
        rank.host = layouts::later(rank.host, cost_.issue(*op));
        const auto work = op->transfers() ? op->bytes : cost_.compute(*op);
        rank.window.push(*op, op->lane() == compute_lane ? std::max(rank.host, rank.prepared) : rank.host, work);
        count(rank, id, *op, work);
        if (!options_.trace) return;
        auto& spans = spans_[static_cast<std::size_t>(id)];
        Span span;
        span.rank = id;
        span.op = static_cast<layouts::OpIndex>(spans.size());
        span.step = op->step;
        span.kind = op->kind;
        span.lane = op->lane();
        span.peer = op->peer;
        span.block = op->part.block;
        span.cells = op->cells;
        span.bytes = op->bytes;
        spans.push_back(span);
        issued_[static_cast<std::size_t>(id)].push_back({before, rank.host});
    }

    void count(Rank& rank, int id, const Op& op, std::int64_t work) {
        switch (op.kind) {
            case OpKind::attend:
                require(!__builtin_add_overflow(rank.totals.cells, op.cells, &rank.totals.cells),
                        "rank {} has more than 2^63 visible pairs; fewer --tokens have less", id);
                [[fallthrough]];
            case OpKind::merge:
            case OpKind::add:
            case OpKind::copy: rank.naive.add_compute(op.step, work); return;
            case OpKind::receive: rank.totals.bytes_received += op.bytes; return;
            case OpKind::send: rank.totals.bytes_sent += op.bytes; break;
            case OpKind::fetch: rank.totals.bytes_received += op.bytes; break;
        }
        const auto cost =
            op.kind == OpKind::fetch ? cost_.transfer(op.peer, id, op.bytes) : cost_.transfer(id, op.peer, op.bytes);
        rank.naive.add_transfer(op.step, cost.whole());
    }

    // ---- Starting operations ----

    void advance(int rank) {
        refill(rank);
        for (Lane lane = 0; lane < lanes_; ++lane) try_start(rank, lane);
    }

    void try_start(int id, Lane lane) {
        auto& window = rank_of(id).window;
        const auto head = window.head(lane);
        if (head == OpWindow::none) return;
        auto& op = window[head];
        if (op.state != OpState::waiting || !window.may_run(head)) return;
        if (op.time > engine_.now()) {
            op.state = OpState::issuing;
            engine_.start({.duration = op.time - engine_.now(), .tag = Tag{id, lane, Tag::issue}.pack()});
            return;
        }
        if (options_.trace) spans_[static_cast<std::size_t>(id)][head].posted = engine_.now();
        if (lane == compute_lane) return start_compute(id, op);
        if (auto& rank = rank_of(id); rank.posted++ == 0) rank.posted_since = engine_.now();
        hold(id, cost_.held(id, op.peer, op.work));
        if (op.kind() == OpKind::fetch) return start_transfer(id, lane);
        op.state = OpState::posted;
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
        Activity activity{.duration = op.work,
                          .priority = Priority::compute,
                          .crowds = op.kind() == OpKind::attend,
                          .tag = Tag{id, compute_lane, Tag::operation}.pack()};
        std::array<Demand, Engine::most_demands> demands;
        std::size_t count = 0;
        if (!gpus_.empty()) {
            const auto& gpu = gpus_[static_cast<std::size_t>(id)];
            const auto memory = op.kind() == OpKind::attend ? machine_.attention_memory_bytes_per_second
                                                            : machine_.memory_bytes_per_second;
            if (gpu.memory != GpuResources::none && memory > 0) demands[count++] = {gpu.memory, memory};
            if (gpu.multiprocessors != GpuResources::none && op.kind() == OpKind::attend)
                demands[count++] = {gpu.multiprocessors, machine_.multiprocessors};
        }
        activity.demands = {demands.data(), count};
        engine_.start(activity);
    }

    /// Starts what the head of `lane` stands for: a send with its receive, or a fetch.
    void start_transfer(int id, Lane lane) {
        auto& op = head_of(id, lane);
        begin_span(id, op);
        if (op.kind() == OpKind::send) begin_span(op.peer, head_of(op.peer, counterpart(lane)));
        const auto cost = transfer_cost(id, op);
        if (!options_.sharing || cost.bytes_per_second == 0) {
            engine_.start({.duration = cost.whole(), .tag = Tag{id, lane, Tag::operation}.pack()});
        } else if (cost.latency > 0) {
            engine_.start({.duration = cost.latency, .tag = Tag{id, lane, Tag::latency}.pack()});
        } else {
            start_flow(id, lane);
        }
    }

    void start_flow(int id, Lane lane) {
        const auto& op = head_of(id, lane);
        const auto cost = transfer_cost(id, op);
        const int source = op.kind() == OpKind::fetch ? op.peer : id,
                  destination = op.kind() == OpKind::fetch ? id : op.peer;
        const auto &from = gpus_[static_cast<std::size_t>(source)], &to = gpus_[static_cast<std::size_t>(destination)];
        std::array<Demand, Engine::most_demands> demands;
        std::size_t count = 0;
        const auto demand = [&](ResourceId resource, double amount) {
            if (resource != GpuResources::none && amount > 0) demands[count++] = {resource, amount};
        };
        const auto rate = cost.bytes_per_second;
        if (!cost.between_hosts) {
            demand(from.egress, rate);
            demand(to.ingress, rate);
        } else if (!nics_.empty()) {
            demand(nic_of(source)->out, rate);
            demand(nic_of(destination)->in, rate);
        }
        demand(from.memory, rate * cost.link->send_memory_ratio);
        demand(to.memory, rate * cost.link->receive_memory_ratio);
        engine_.start({.duration = cost.duration,
                       .demands = {demands.data(), count},
                       .weight = 1e9 / rate,  // flows on a short link get the same bytes per second
                       .crowded_speed = cost.link->busy_speed_ratio,
                       .tag = Tag{id, lane, Tag::operation}.pack()});
    }

    TransferCost transfer_cost(int id, const PendingOp& op) const {
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

    void handle(const Tag& tag) {
        switch (tag.what) {
            case Tag::issue:
                head_of(tag.rank, tag.lane).state = OpState::waiting;
                try_start(tag.rank, tag.lane);
                return;
            case Tag::latency: start_flow(tag.rank, tag.lane); return;
            case Tag::operation: break;
        }
        const auto& op = head_of(tag.rank, tag.lane);
        const int peer = op.kind() == OpKind::send ? op.peer : -1;
        finish(tag.rank, tag.lane);
        if (peer >= 0) finish(peer, counterpart(tag.lane));
        advance(tag.rank);
        if (peer >= 0) advance(peer);
    }

    void finish(int id, Lane lane) {
        auto& rank = rank_of(id);
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
        rank.totals.end = now;
        if (lane == compute_lane) {
            rank.totals.compute += length;
        } else {
            if (--rank.moving == 0) rank.totals.communication += now - rank.moving_since;
            if (--rank.posted == 0) rank.totals.waiting += now - rank.posted_since;
            hold(id, -cost_.held(id, op.peer, op.work));
        }
        rank.window.finish_head(lane);
    }

    // ---- The result ----

    void require_finished() {
        for (int id = 0; id < schedule_.ranks(); ++id) {
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
        Prediction prediction;
        prediction.events = engine_.events();
        prediction.notes = cost_.notes();
        prediction.timeline.ranks = schedule_.ranks();
        for (int id = 0; id < schedule_.ranks(); ++id) {
            auto& rank = rank_of(id);
            rank.totals.end = layouts::later(std::max(rank.totals.end, rank.prepared), cost_.behind_pass(id));
            // Compute spans follow one another, so the time without one is what they do not cover.
            rank.totals.exposed = rank.totals.end - rank.totals.compute;
            rank.totals.waiting -= rank.totals.communication;  // so far the time in which any was posted
            prediction.makespan = std::max(prediction.makespan, rank.totals.end);
            prediction.naive_overlapped = std::max(prediction.naive_overlapped, rank.naive.overlapped());
            prediction.naive_serial = std::max(prediction.naive_serial, rank.naive.serial());
            prediction.ranks.push_back(rank.totals);
        }
        for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
            auto& spans = prediction.timeline.spans;
            spans.insert(spans.end(), spans_[rank].begin(), spans_[rank].end());
            prediction.host_issue.insert(prediction.host_issue.end(), issued_[rank].begin(), issued_[rank].end());
        }
        return prediction;
    }

    const Schedule& schedule_;
    const Machine& machine_;
    const SimOptions& options_;
    CostModel cost_;
    Engine engine_;
    int lanes_;
    std::vector<Rank> ranks_;
    std::vector<GpuResources> gpus_;        // by rank; empty without sharing
    std::vector<Nic> nics_;                 // by host and port
    std::vector<std::vector<Span>> spans_;  // by rank, if traced
    std::vector<std::vector<layouts::Interval>> issued_;
};

/// Power goes as the third power of the clock: a kernel that may run at `sustained` when it never stops may run faster
/// when it stops now and then, up to the clock of short runs. From what was predicted at the clock `before`, where a
/// pass that computes for longer is taken to last longer by as much.
double sustained_clock(const Prediction& prediction, double before, double sustained, const SimOptions& options) {
    const auto period = layouts::to_seconds(prediction.makespan) + options.pause_seconds;
    double busy = 0;  // of the busiest rank, which the others wait for
    for (const auto& rank : prediction.ranks) busy = std::max(busy, layouts::to_seconds(rank.compute));
    if (busy == 0) return 1;
    double low = sustained, high = 1;  // the share of time in which it may run at a clock, less that in which it does
    for (int halvings = 0; halvings < 50; ++halvings) {
        const auto clock = (low + high) / 2, at_clock = busy * before / clock;
        (std::pow(sustained / clock, 3) >= (at_clock + options.pause_busy_seconds) / (period - busy + at_clock)
             ? low
             : high) = clock;
    }
    return high;
}

}  // namespace

Prediction simulate(const layouts::Schedule& schedule, const Machine& machine, const SimOptions& options) {
    if (options.clock == Clock::calibrated) return Simulation(schedule, machine, options, 1).run();
    // The clock depends on how busy ranks are, and that on the clock, though little.
    const auto sustained = machine.attention(schedule.options().pass).sustained_clock;
    require(options.pause_busy_seconds >= 0 && options.pause_seconds >= options.pause_busy_seconds,
            "the pause between passes is {} s, and busy for {} s; it must not be negative, nor busy for longer",
            options.pause_seconds, options.pause_busy_seconds);
    auto quiet = options;
    quiet.trace = false;
    double clock = sustained;
    constexpr int rounds = 2;
    for (int round = 0; round < rounds && sustained < 1; ++round)
        clock = sustained_clock(Simulation(schedule, machine, quiet, clock).run(), clock, sustained, options);
    auto prediction = Simulation(schedule, machine, options, clock).run();
    prediction.clock = clock;
    return prediction;
}

}  // namespace ringlab::sim
