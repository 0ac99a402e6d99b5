#include "gpu/execution/ready_rank.hpp"

#include "gpu/device/driver.hpp"
#include "gpu/team/bytes.hpp"
#include "layouts/program/deadlock_check.hpp"
#include "layouts/schedules/same_problem.hpp"
#include "processes/waiting.hpp"

#include <algorithm>
#include <set>

namespace ringlab::gpu {

using layouts::Pass;

namespace {

bool messages_carry_rows(const std::vector<layouts::Program>& programs) {
    for (const auto& program : programs)
        for (const auto& rank : program.ranks)
            for (const auto& instruction : rank.code)
                if (instruction.op.transfers() && of_rows(instruction.op.pool)) return true;
    return false;
}

/// What passes of this process have launched so far; see ReadyRank::rehearse().
class LaunchedKernels {
public:
    bool contains(const std::string& kernels) {
        const std::lock_guard lock(mutex_);
        return known_.contains(kernels);
    }
    void insert(const std::string& kernels) {
        const std::lock_guard lock(mutex_);
        known_.insert(kernels);
    }

private:
    std::mutex mutex_;
    std::set<std::string> known_;
};

LaunchedKernels& launched_kernels() {
    static LaunchedKernels all;
    return all;
}

}  // namespace

ReadyRank::ReadyRank(Team& team, std::unique_ptr<const layouts::Schedule> forward,
                     std::unique_ptr<const layouts::Schedule> backward, const Options& options)
    : team_(team), options_(options), rank_(team.first_local()), schedules_{std::move(forward), std::move(backward)} {
    const bool nccl = options.transport == TransportKind::nccl;
    require(options.transport != TransportKind::loopback, "a ring of processes has no loopback transport");
    require(schedule(Pass::forward).ranks() == team.size(), "the schedule is for {} ranks, the ring has {}",
            schedule(Pass::forward).ranks(), team.size());
    layouts::require_same_problem(schedule(Pass::forward), schedule(Pass::backward));
    for (const auto& schedule : schedules_)
        programs_.push_back(layouts::resolve(*schedule, nccl ? layouts::Fetches::served : layouts::Fetches::one_sided));
    if (nccl) layouts::pace_messages(programs_[index(Pass::backward)]);  // as the executor does
    PassPrograms programs;
    for (const auto& program : programs_) {
        programs.push_back(&program);
        fetches_ |= program.fetches();
    }

    const DeviceScope scope(options.device);
    fabric_ = (nccl ? make_nccl_fabric : make_copy_fabric)(
        team, {layouts::RingGroup{.ring = team.size()}, options.timeout}, programs);
    MapOptions memory{.round_results = true,
                      .output_arrives = output_arrives(programs_.front()),
                      .arrival_flags = arrival_flags(programs_),
                      .lent = messages_carry_rows(programs_) ? Lent::rounded : Lent::rounded_and_rows};
    meeting_flags_ = memory.arrival_flags * sizeof(std::uint32_t);
    memory.arrival_flags += static_cast<std::size_t>(team.size());
    const layouts::RingGroup group{.ring = team.size()};
    const auto start = launch_start(options.transport, group, team, rank_, options.device, options.timeout);
    together([&] { make_rank(memory, start); });
    together([&] { connect(); });
    if (schedule(Pass::forward).is_one_launch())
        connect_merging(*work_, *transport_, group, 0, team, rank_, options.timeout);
    agree_on_rehearsals();
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

ReadyRank::~ReadyRank() {
    watcher_.request_stop();
    stopped_.notify_all();
}

void ReadyRank::together(const std::function<void()>& body) {
    std::string complaint;
    try {
        body();
    } catch (const std::exception& error) {
        complaint = error.what();
    }
    Bytes own;
    append(own, std::vector<char>(complaint.begin(), complaint.end()));
    const auto all = team_.all_gather(rank_, std::move(own), options_.timeout);
    require(complaint.empty(), "{}", complaint);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::span<const std::byte> bytes(all[rank]);
        std::vector<char> text;
        take(bytes, text);
        require(text.empty(), "rank {} cannot: {}", rank, std::string(text.begin(), text.end()));
    }
}

void ReadyRank::make_rank(const MapOptions& memory, LaunchStart start) {
    PassPrograms programs;
    int lanes = 1;
    for (const auto& program : programs_) {
        programs.push_back(&program);
        lanes = std::max(lanes, program.lanes);
    }
    work_ = std::make_unique<Rank>(schedule(Pass::forward), &schedule(Pass::backward), rank_, programs, *fabric_,
                                   RankOptions{memory, options_.deterministic, false, nullptr, start.fused,
                                               options_.timeout, start.merging_ranks});
    for (int lane = 0; lane < lanes; ++lane) {
        const bool used = std::ranges::any_of(
            programs_, [&](const auto& program) { return program.ranks[static_cast<std::size_t>(rank_)].uses(lane); });
        const auto use = lane == layouts::compute_lane ? Stream::Use::computing : Stream::Use::transfers;
        lanes_.push_back(used || lane == layouts::compute_lane ? std::make_unique<Stream>(use) : nullptr);
        lane_streams_.push_back(lanes_.back() ? cudaStream_t(*lanes_.back()) : nullptr);
    }
    for (const auto& program : programs_)
        events_.emplace_back(program.ranks[static_cast<std::size_t>(rank_)].code.size(), false);
}

void ReadyRank::connect() {
    transport_ = fabric_->join({rank_, rank_, options_.device, work_->exchange_memory()});
    const IssuedRank issued{rank_, 0, rank_, options_.device, work_.get(), transport_.get(), lane_streams_};
    issuer_ =
        std::make_unique<Issuer>(std::vector{issued}, team_, Issuer::Options{{.ring = team_.size()}, options_.timeout});
}

void ReadyRank::meet() {
    if (team_.size() > 1) transport_->meet(meeting_flags_, ++meetings_, compute());
}

void ReadyRank::agree_on_rehearsals() {
    if (team_.size() == 1) return;
    Bytes known;
    for (const auto pass : {Pass::forward, Pass::backward}) {
        const auto& p = schedule(pass).problem();
        const auto& mask = schedule(pass).mask().name();
        kernels_[index(pass)] =
            fmt::format("{} {} {} {} {} {} {} {}:{} {}/{} {} {} {} {}", options_.device, to_string(pass),
                        schedule(pass).options().schedule, mask.substr(0, mask.find(':')), team_.size(), p.batch,
                        p.tokens, p.query_heads, p.kv_heads, p.head_dim, p.value_dim, to_string(p.dtype),
                        p.soft_cap > 0, p.dropout.drops(), p.sinks.size());
        known.push_back(std::byte{launched_kernels().contains(kernels_[index(pass)])});
    }
    for (const auto& of_rank : team_.all_gather(rank_, std::move(known), options_.timeout))
        for (std::size_t pass = 0; pass < rehearses_.size(); ++pass) rehearses_[pass] |= of_rank[pass] == std::byte{0};
}

void ReadyRank::rehearse(Pass pass, const CallerTensors& tensors) {
    const auto& code = work_->program(pass).code;
    const auto stream = compute();
    work_->take(pass, tensors, stream);
    work_->clear(pass, stream);
    work_->start(pass, stream);
    for (std::size_t i = 0; i < code.size(); ++i) {
        if (!code[i].op.transfers()) continue;
        if (work_->has_arrival_flag(pass, i) && code[i].receives())
            write_value(stream, work_->memory().arrival_flag(pass, i), work_->pass_number(pass));
        work_->arrived(pass, i, stream);
    }
    if (work_->is_one_launch(pass)) work_->launch_merging(stream);
    for (std::size_t i = 0; i < code.size() && !work_->is_one_launch(pass); ++i)
        if (!code[i].op.transfers()) work_->compute(pass, i, stream);
    work_->finish(pass, stream);
    work_->give_back(pass, tensors, stream);
    RINGLAB_CUDA(cudaStreamSynchronize(stream));
    launched_kernels().insert(kernels_[index(pass)]);
    rehearses_[index(pass)] = false;
}

void ReadyRank::run(Pass pass, const CallerTensors& tensors, std::uint64_t dropout_seed, cudaStream_t caller) {
    const DeviceScope scope(options_.device);
    const std::lock_guard lock(mutex_);
    land_flights();
    require(failure_.empty(), "{}", failure_);
    try {
        auto flight = take_flight(pass);
        flight.begun.record(caller);
        flight.begun.hold_back(compute());
        work_->set_dropout_seed(dropout_seed);
        if (fetches_) meet();  // peers may be reading what is overwritten
        if (rehearses_[index(pass)]) rehearse(pass, tensors);
        work_->take(pass, tensors, compute());
        meet();  // messages overwrite slots of peers' last passes, and peers' blocks must be in place to be fetched
        issuer_->prepare(pass, {&events_[index(pass)]});
        issuer_->enqueue();
        work_->give_back(pass, tensors, compute());
        flight.ended.record(compute());
        flight.ended.hold_back(caller);
        flights_.push_back(std::move(flight));
    } catch (const std::exception& error) {
        failure_ = error.what();
        release();
        throw;
    }
}

ReadyRank::Flight ReadyRank::take_flight(Pass pass) {
    if (landed_.empty()) landed_.emplace_back();
    auto flight = std::move(landed_.back());
    landed_.pop_back();
    flight.pass = pass;
    return flight;
}

void ReadyRank::land_flights() {
    while (!flights_.empty() && flights_.front().ended.done()) {
        try {
            work_->require_arrived(flights_.front().pass);
        } catch (const Error& error) {
            if (failure_.empty()) failure_ = error.what();
        }
        landed_.push_back(std::move(flights_.front()));
        flights_.pop_front();
    }
}

void ReadyRank::release() noexcept {
    transport_->abort();
    work_->give_up();
}

void ReadyRank::watch(const std::stop_token& stop) noexcept {
    constexpr auto interval = std::chrono::milliseconds(100);
    processes::Waiting waiting;
    std::unique_lock lock(mutex_);
    try {
        const DeviceScope scope(options_.device);
        while (!stopped_.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) {
            const auto before = flights_.size();
            land_flights();
            if (flights_.empty() || flights_.size() < before || !flights_.front().begun.done()) {
                waiting.restart();
                continue;
            }
            transport_->check();
            require(waiting.so_far() <= options_.timeout,
                    "a {} pass has not ended after {} s; a peer is dead or stuck, or the time-out is too short",
                    to_string(flights_.front().pass), std::chrono::duration<double>(options_.timeout).count());
        }
    } catch (const std::exception& error) {  // or the process ends, and CUDA with it
        if (failure_.empty()) failure_ = error.what();
        release();
    }
}

void ReadyRank::disconnect() {
    const DeviceScope scope(options_.device);
    // By polling, because watch() needs the mutex to end a pass that is stuck.
    for (bool under_way = true; under_way; std::this_thread::sleep_for(std::chrono::microseconds(20))) {
        const std::lock_guard lock(mutex_);
        land_flights();
        require(failure_.empty(), "{}", failure_);
        under_way = !flights_.empty();
    }
    team_.barrier(rank_, options_.timeout);
    transport_->disconnect();
    team_.barrier(rank_, options_.timeout);
}

}  // namespace ringlab::gpu
