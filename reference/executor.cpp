#include "reference/executor.hpp"

#include <time.h>

#include <array>
#include <deque>

namespace ringlab::reference {
namespace {

using layouts::Lane;
using layouts::Op;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::Picoseconds;

Picoseconds picoseconds(Clock::duration duration) {
    return std::chrono::duration_cast<std::chrono::duration<Picoseconds, std::pico>>(duration).count();
}

/// CPU time of the calling thread: what counts on a machine with fewer processors than ranks.
Picoseconds thread_cpu_time() {
    timespec time{};
    require(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0, "this system does not tell the CPU time of a thread");
    return static_cast<Picoseconds>(time.tv_sec) * 1'000'000'000'000 + static_cast<Picoseconds>(time.tv_nsec) * 1000;
}

class Execution {
public:
    Execution(layouts::Ops stream, const RankIdentity& identity, RankWork& work, Transport& transport,
              Clock::time_point start, Clock::duration timeout)
        : identity_(identity), work_(work), transport_(transport), start_(start), timeout_(timeout) {
        // The timeline keeps a span of every operation, so to hold the operations themselves costs no more.
        while (const auto* op = stream.next()) {
            lanes_[static_cast<std::size_t>(op->lane)].waiting.push_back(static_cast<OpIndex>(ops_.size()));
            ops_.push_back(*op);
        }
        spans_.resize(ops_.size());
        ended_.resize(ops_.size(), false);
    }

    std::vector<layouts::Span> run() {
        auto last_progress = Clock::now();
        while (remaining() > 0) {
            bool progress = finish_transfers();
            progress |= start_transfers();
            progress |= compute();
            if (progress) {
                last_progress = Clock::now();
                continue;
            }
            if (!any_transfer()) fail("{} can never begin: {}", describe(first_waiting()), obstacle(first_waiting()));
            const auto waited = Clock::now() - last_progress;
            if (waited >= timeout_)
                fail("{} has not ended after {} s without progress; its peer is stuck, dead, or was never asked to {}",
                     describe(first_transfer()), std::chrono::duration<double>(timeout_).count(),
                     counterpart(ops_[index(first_transfer())].kind));
            transport_.wait(timeout_ - waited);
        }
        return std::move(spans_);
    }

private:
    struct Queue {
        std::deque<OpIndex> waiting;  // the front may be under way
        std::unique_ptr<Transfer> transfer;
    };

    static std::size_t index(OpIndex op) { return static_cast<std::size_t>(op); }

    std::size_t remaining() const {
        std::size_t count = 0;
        for (const auto& lane : lanes_) count += lane.waiting.size();
        return count;
    }

    bool may_begin(const Op& op) const {
        for (const auto before : op.after())
            if (!ended_.at(index(before))) return false;
        return true;
    }

    Picoseconds now() const { return since_start(Clock::now()); }

    // Aligned clocks may disagree by their uncertainty; nothing begins before the start.
    Picoseconds since_start(Clock::time_point time) const {
        return std::max<Picoseconds>(0, picoseconds(time - start_));
    }

    void begin(OpIndex which) {
        const auto& op = ops_[index(which)];
        const auto time = now();
        spans_[index(which)] = {identity_.rank, which, op.step, op.kind, op.lane,  op.peer,
                                op.owner,       time,  time,    0,       op.cells, op.bytes};
    }

    void end(Queue& lane, Picoseconds time) {
        const auto which = lane.waiting.front();
        auto& span = spans_[index(which)];
        span.end = std::max(span.begin, time);
        ended_[index(which)] = true;
        lane.waiting.pop_front();
    }

    bool finish_transfers() {
        bool progress = false;
        for (auto& lane : lanes_) {
            if (!lane.transfer) continue;
            const auto time = lane.transfer->ended();
            if (!time) continue;
            lane.transfer.reset();
            const auto which = lane.waiting.front();
            work_.transfer_ended(ops_[index(which)]);
            end(lane, since_start(*time));
            spans_[index(which)].busy = spans_[index(which)].end - spans_[index(which)].begin;
            progress = true;
        }
        return progress;
    }

    bool start_transfers() {
        bool progress = false;
        for (auto& lane : lanes_) {
            if (&lane == &compute_lane() || lane.transfer || lane.waiting.empty()) continue;
            const auto which = lane.waiting.front();
            const auto& op = ops_[index(which)];
            if (!may_begin(op)) continue;
            begin(which);
            lane.transfer = start(which, op);
            progress = true;
        }
        return progress;
    }

    std::unique_ptr<Transfer> start(OpIndex which, const Op& op) {
        const int peer = identity_.group.global_rank(identity_.replica, op.peer);
        const auto check_size = [&](std::size_t bytes) {
            if (static_cast<std::int64_t>(bytes) != op.bytes)
                fail("{} is to move {} bytes, but the slot holds {} for these heads", describe(which), op.bytes, bytes);
        };
        if (op.kind == OpKind::send) {
            const auto bytes = work_.outgoing(op);
            check_size(bytes.size());
            return transport_.send(bytes, peer, op.payload);
        }
        const auto bytes = work_.incoming(op);
        check_size(bytes.size());
        return op.kind == OpKind::receive ? transport_.receive(bytes, peer, op.payload)
                                          : transport_.fetch(bytes, peer, work_.exposed_offset(op));
    }

    bool compute() {
        auto& lane = compute_lane();
        if (lane.waiting.empty() || !may_begin(ops_[index(lane.waiting.front())])) return false;
        const auto which = lane.waiting.front();
        begin(which);
        const auto cpu_begin = thread_cpu_time();
        work_.compute(ops_[index(which)]);
        spans_[index(which)].busy = thread_cpu_time() - cpu_begin;
        end(lane, now());
        return true;
    }

    Queue& compute_lane() { return lanes_[static_cast<std::size_t>(Lane::compute)]; }

    bool any_transfer() const {
        for (const auto& lane : lanes_)
            if (lane.transfer) return true;
        return false;
    }

    OpIndex first_waiting() const {
        auto first = static_cast<OpIndex>(ops_.size());
        for (const auto& lane : lanes_)
            if (!lane.waiting.empty()) first = std::min(first, lane.waiting.front());
        return first;
    }

    OpIndex first_transfer() const {
        auto first = static_cast<OpIndex>(ops_.size());
        for (const auto& lane : lanes_)
            if (lane.transfer) first = std::min(first, lane.waiting.front());
        return first;
    }

    std::string describe(OpIndex which) const {
        const auto& op = ops_[index(which)];
        std::string who = fmt::format("rank {}", identity_.rank);
        if (identity_.group.replicas > 1)
            who += fmt::format(" of replica {} (global rank {})", identity_.replica,
                               identity_.group.global_rank(identity_.replica, identity_.rank));
        auto text = fmt::format("{}: operation {}, {} {} of rank {}'s block, step {}", who, which, to_string(op.kind),
                                to_string(op.payload), op.owner, op.step);
        if (op.peer >= 0) text += fmt::format(", {} rank {}", op.kind == OpKind::send ? "to" : "from", op.peer);
        return text;
    }

    std::string obstacle(OpIndex which) const {
        for (const auto before : ops_[index(which)].after())
            if (!ended_.at(index(before))) return fmt::format("it waits for operation {}, which waits for it", before);
        return "it waits for itself";
    }

    static const char* counterpart(OpKind kind) { return kind == OpKind::send ? "receive" : "send"; }

    const RankIdentity& identity_;
    RankWork& work_;
    Transport& transport_;
    Clock::time_point start_;
    Clock::duration timeout_;
    std::vector<Op> ops_;
    std::vector<layouts::Span> spans_;
    std::vector<bool> ended_;
    std::array<Queue, layouts::lane_count> lanes_;
};

}  // namespace

std::vector<layouts::Span> execute(layouts::Ops stream, const RankIdentity& identity, RankWork& work,
                                   Transport& transport, Clock::time_point start, Clock::duration timeout) {
    return Execution(std::move(stream), identity, work, transport, start, timeout).run();
}

}  // namespace ringlab::reference
