#include "gpu/ring/ready_ring.hpp"

#include "gpu/device/driver.hpp"
#include "processes/waiting.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace ringlab::gpu {

using layouts::Pass;

namespace {

/// Whether passes of this process have launched these kernels before; see ReadyRing::rehearse(). `now`: from now on
/// they have.
bool were_launched(const std::string& kernels, bool now = false) {
    static std::mutex mutex;
    static std::set<std::string> all;
    const std::lock_guard lock(mutex);
    return now ? !all.insert(kernels).second : all.contains(kernels);
}

/// The passes of all rings of this process on one device, see ReadyRing.
class DeviceOrder {
public:
    static DeviceOrder& of(int device) {
        static std::mutex mutex;
        static auto& all = *new std::map<int, DeviceOrder>;  // never destroyed: events cannot be once CUDA has ended
        const std::lock_guard lock(mutex);
        return all[device];
    }

    void add_ring() {
        const std::lock_guard lock(mutex_);
        // The other ring's passes so far were not noted, as it was alone.
        if (++rings_ == 2) cudaDeviceSynchronize();
    }
    void remove_ring() {
        const std::lock_guard lock(mutex_);
        --rings_;
    }
    void begin(cudaStream_t stream) {
        const std::lock_guard lock(mutex_);
        if (last_ && latest_ != stream) last_->hold_back(stream);
    }
    void end(cudaStream_t stream) {
        const std::lock_guard lock(mutex_);
        if (rings_ < 2) return;
        if (!last_) last_.emplace(Event::Use::ordering);
        last_->record(stream);
        latest_ = stream;
    }

private:
    std::mutex mutex_;
    int rings_ = 0;
    std::optional<Event> last_;  // pass
    cudaStream_t latest_ = nullptr;
};

constexpr std::size_t nan_bytes = std::size_t{1} << 20;

}  // namespace

ReadyRing::ReadyRing(Team& team, StreamMemory& memory, const Options& options)
    : team_(team),
      options_(options),
      rank_(team.first_local()),
      lanes_(1),
      tables_(memory, lanes_.front()),
      exchange_(team, options),
      of_plans_{team,
                exchange_,
                tables_,
                options.device,
                launch_start(options.transport, exchange_.hosts(), {.ring = team.size()}, team, rank_, options.device,
                             options.timeout)
                    .fused,
                options.timeout,
                give_up_stream_},
      nan_(nan_bytes) {
    require(options.transport != TransportKind::loopback, "a ring of processes has no loopback transport");
    std::memset(nan_.data(), 0xff, nan_.bytes());
    DeviceOrder::of(options.device).add_ring();
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

ReadyRing::~ReadyRing() {
    watcher_.request_stop();
    stopped_.notify_all();
    watcher_.join();
    DeviceOrder::of(options_.device).remove_ring();
}

std::shared_ptr<RingPlan> ReadyRing::make_plan(std::unique_ptr<const layouts::Schedule> forward,
                                               std::unique_ptr<const layouts::Schedule> backward, bool deterministic) {
    const DeviceScope scope(options_.device);
    const CaptureElsewhere capture;
    auto plan = std::make_shared<RingPlan>(of_plans_, std::move(forward), std::move(backward), deterministic);
    const auto needs = plan->needs();
    std::unique_lock lock(mutex_);
    begin_call();
    if (!exchange_.has(needs)) {
        wait_for_flights(lock);
        exchange_.grow(needs);
    }
    lock.unlock();  // watch() needs it if others do not come
    team_.together(rank_, options_.timeout, [&] {
        make_lanes_and_events(*plan);
        plan->place(lanes_of(*plan));
    });
    agree_on_rehearsals(*plan);
    return plan;
}

std::vector<cudaStream_t> ReadyRing::lanes_of(const RingPlan& plan) const {
    return {lanes_.begin(), lanes_.begin() + static_cast<std::ptrdiff_t>(plan.lanes())};
}

void ReadyRing::make_lanes_and_events(const RingPlan& plan) {
    while (lanes_.size() < plan.lanes()) lanes_.emplace_back(Stream::Use::transfers);
    while (events_.end.size() < plan.instructions()) events_.end.emplace_back(Event::Use::ordering);
}

void ReadyRing::agree_on_rehearsals(RingPlan& plan) {
    if (team_.size() == 1) return;
    Bytes known;
    for (const auto pass : {Pass::forward, Pass::backward})
        known.push_back(std::byte{were_launched(plan.kernels(pass))});
    const auto all = team_.all_gather(rank_, std::move(known), options_.timeout);
    for (const auto pass : {Pass::forward, Pass::backward})
        plan.must_rehearse[static_cast<std::size_t>(pass)] = !std::ranges::all_of(
            all, [&](const Bytes& of_rank) { return of_rank.at(static_cast<std::size_t>(pass)) != std::byte{0}; });
}

void ReadyRing::rehearse(RingPlan& plan, Pass pass, const CallerTensors& tensors) {
    auto& work = plan.work();
    const auto& code = work.program(pass).code;
    const auto stream = compute();
    work.take(pass, tensors, stream);
    work.clear(pass, stream);
    work.start(pass, stream);
    for (std::size_t i = 0; i < code.size(); ++i) {
        if (!code[i].op.transfers()) continue;
        if (work.has_arrival_flag(pass, i) && code[i].receives())
            write_value(stream, work.memory().arrival_flag(pass, i), work.pass_number());
        work.arrived(pass, i, stream);
    }
    for (std::size_t i = 0; i < code.size(); ++i)
        if (!code[i].op.transfers()) work.compute(pass, i, stream);
    work.finish(pass, stream);
    work.give_back(pass, tensors, stream);
    RINGLAB_CUDA(cudaStreamSynchronize(stream));
    were_launched(plan.kernels(pass), true);
}

void ReadyRing::run(const std::shared_ptr<RingPlan>& plan, Pass pass, const CallerTensors& tensors,
                    std::uint64_t dropout_seed, cudaStream_t caller) {
    const DeviceScope scope(options_.device);
    const CaptureElsewhere capture;
    if (!plan->is_placed()) plan->place(lanes_of(*plan));  // without the mutex, as it may wait for earlier copies
    std::unique_lock lock(mutex_);
    begin_call();
    auto& order = DeviceOrder::of(options_.device);
    auto flight = take_flight(plan, pass);
    const auto end = [&] {
        flight.ended.record(compute());
        order.end(compute());
        flight.ended.hold_back(caller);
        flights_.push_back(std::move(flight));
    };
    try {
        auto& work = plan->work();
        work.set_dropout_seed(dropout_seed);
        auto& rehearses = plan->must_rehearse[static_cast<std::size_t>(pass)];
        if (rehearses) {
            wait_for_flights(lock);
            team_.barrier(rank_, options_.timeout);
        }
        flight.begun.record(caller);
        flight.begun.hold_back(compute());
        order.begin(compute());
        if (rehearses) rehearse(*plan, pass, tensors);
        rehearses = false;
        if (peers_may_read_) exchange_.meet(compute());
        work.take(pass, tensors, compute());
        exchange_.meet(compute());
        plan->issuer().prepare(pass, {&events_});
        plan->issuer().enqueue();
        work.give_back(pass, tensors, compute());
        peers_may_read_ = plan->program(pass).fetches();
        end();
    } catch (const std::exception& error) {
        failure_ = error.what();
        plan->work().give_up();  // is in no flight yet
        release();
        try {
            end();  // what was enqueued may still use the caller's tensors
        } catch (const Error&) {
            // Then the device runs nothing more.
        }
        throw;
    }
}

ReadyRing::Flight ReadyRing::take_flight(const std::shared_ptr<RingPlan>& plan, Pass pass) {
    if (landed_.empty()) landed_.emplace_back();
    auto flight = std::move(landed_.back());
    landed_.pop_back();
    flight.pass = pass;
    flight.plan = plan;
    return flight;
}

void ReadyRing::land_flights() {
    while (!flights_.empty() && flights_.front().ended.done()) {
        auto& flight = flights_.front();
        try {
            flight.plan->work().launches(flight.pass).require_arrived();
        } catch (const Error& error) {
            if (failure_.empty()) failure_ = error.what();
        }
        landed_.push_back(std::move(flight));
        flights_.pop_front();
        ++landings_;
    }
}

void ReadyRing::begin_call() {
    land_flights();
    for (auto& flight : landed_) flight.plan.reset();
    require_intact();
}

void ReadyRing::wait_for_flights(std::unique_lock<std::mutex>& lock) {
    for (land_flights(); !flights_.empty() && failure_.empty(); land_flights()) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        lock.lock();
    }
    require_intact();
}

void ReadyRing::release() noexcept {
    fill_with_nan();
    // Waits for arrival flags first: to abort a communicator of NCCL can take until the device's streams have gone on.
    for (const auto& flight : flights_) flight.plan->work().give_up();
    exchange_.transport().abort();
}

/// All of exchange memory but its flags, before waits end. By a copy engine, because a kernel that waits may hold all
/// SMs.
void ReadyRing::fill_with_nan() noexcept {
    constexpr auto most = std::chrono::seconds(5);
    try {
        const auto first = exchange_.flags() * sizeof(std::uint32_t);
        for (auto at = first; at < exchange_.bytes(); at += nan_.bytes())
            RINGLAB_CUDA(cudaMemcpyAsync(static_cast<char*>(exchange_.memory().get()) + at, nan_.data(),
                                         std::min(nan_.bytes(), exchange_.bytes() - at), cudaMemcpyHostToDevice,
                                         give_up_stream_));
        const Event filled(Event::Use::ordering);
        filled.record(give_up_stream_);
        for (const auto begin = Clock::now(); !filled.done() && Clock::now() - begin < most;)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
        // The device runs nothing more.
    }
}

void ReadyRing::watch(const std::stop_token& stop) noexcept {
    constexpr auto interval = std::chrono::milliseconds(100);
    processes::Waiting waiting;
    std::unique_lock lock(mutex_);
    try {
        const DeviceScope scope(options_.device);
        const CaptureElsewhere capture;
        std::uint64_t landings = 0;  // when it last looked; calls land flights too
        while (!stopped_.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) {
            land_flights();
            if (std::exchange(landings, landings_) != landings_ || flights_.empty() || !flights_.front().begun.done()) {
                waiting.restart();
                continue;
            }
            exchange_.transport().check();
            require(waiting.so_far() <= options_.timeout,
                    "a {} pass has not ended after {} s; a peer is dead or stuck, or the time-out is too short",
                    to_string(flights_.front().pass), std::chrono::duration<double>(options_.timeout).count());
        }
    } catch (const std::exception& error) {  // or the process ends, and CUDA with it
        if (failure_.empty()) failure_ = error.what();
        release();
    }
}

bool ReadyRing::let_go() noexcept {
    try {
        const DeviceScope scope(options_.device);
        const CaptureElsewhere capture;
        const std::lock_guard lock(mutex_);
        land_flights();
        if (!flights_.empty()) return false;
        if (!failure_.empty()) give_up_stream_.synchronize();  // which writes flags, and waits for nothing
        landed_.clear();
        return exchange_.let_go();
    } catch (const std::exception&) {
        return false;  // the device has failed
    }
}

bool ReadyRing::is_broken() const {
    const std::lock_guard lock(mutex_);
    return !failure_.empty();
}

ReadyRing::Held ReadyRing::held() const { return {static_cast<std::int64_t>(exchange_.bytes()), tables_.host_bytes()}; }

}  // namespace ringlab::gpu
