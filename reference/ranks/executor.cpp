#include "reference/ranks/executor.hpp"

#include <time.h>

#include <deque>

namespace ringlab::reference {
namespace {

using layouts::Instruction;
using layouts::Op;
using layouts::OpIndex;
using layouts::OpKind;
using layouts::Picoseconds;

/// Longest single wait; much shorter than any time-out that users would choose.
constexpr Clock::duration longest_wait = std::chrono::milliseconds(50);

Picoseconds picoseconds(Clock::duration duration) {
    return std::chrono::duration_cast<std::chrono::duration<Picoseconds, std::pico>>(duration).count();
}

class Execution {
public:
    Execution(const layouts::RankProgram& program, int lanes, const RankIdentity& identity, CpuRank& work,
              Transport& transport, Clock::time_point start, Clock::duration timeout)
        : program_(program),
          identity_(identity),
          work_(work),
          transport_(transport),
          start_(start),
          timeout_(timeout),
          spans_(program.code.size()),
          ended_(program.code.size(), false),
          lanes_(static_cast<std::size_t>(lanes)) {
        for (std::size_t i = 0; i < program.code.size(); ++i)
            lanes_[static_cast<std::size_t>(program.code[i].op.lane())].waiting.push_back(static_cast<OpIndex>(i));
    }

    std::vector<layouts::Span> run() {
        Clock::duration waited{};
        while (remaining() > 0) {
            bool progress = finish_transfers();
            progress |= start_transfers();
            progress |= compute();
            if (progress)
                waited = {};
            else if (waited < timeout_)
                waited += wait(std::min(longest_wait, timeout_ - waited));
            else
                fail(
                    "{} has not ended after {} s without progress; its peer is stuck or dead, computes for longer than "
                    "that, or has no matching {}",
                    describe(first_transfer()), std::chrono::duration<double>(timeout_).count(),
                    counterpart(op(first_transfer()).kind));
        }
        return std::move(spans_);
    }

private:
    struct Queue {
        std::deque<OpIndex> waiting;  // the first one may be under way
        std::unique_ptr<Transfer> transfer;
    };

    /// Waits and returns the time that counts towards the time-out: none while another rank computes, and at most
    /// `limit`. When the whole process was stopped (Ctrl-Z, a suspended machine), hours may have passed in which no
    /// peer could make progress.
    Clock::duration wait(Clock::duration limit) {
        const auto begin = Clock::now();
        transport_.wait(limit);
        return transport_.others_compute() ? Clock::duration{} : std::min(limit, Clock::now() - begin);
    }

    static std::size_t index(OpIndex op) { return static_cast<std::size_t>(op); }

    const Op& op(OpIndex at) const { return program_.code[index(at)].op; }

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

    // Aligned clocks may differ by their uncertainty; a time before the start becomes 0.
    Picoseconds since_start(Clock::time_point time) const {
        return std::max<Picoseconds>(0, picoseconds(time - start_));
    }

    void begin(OpIndex at) {
        const auto& op = this->op(at);
        auto& span = spans_[index(at)];
        span = layouts::span_of(identity_.rank, at, op, program_.query_heads);
        span.posted = span.begin = span.end = now();
    }

    void end(Queue& lane, Picoseconds time) {
        const auto at = lane.waiting.front();
        auto& span = spans_[index(at)];
        span.end = std::max(span.begin, time);
        ended_[index(at)] = true;
        lane.waiting.pop_front();
    }

    bool finish_transfers() {
        bool progress = false;
        for (auto& lane : lanes_) {
            if (!lane.transfer) continue;
            const auto time = lane.transfer->ended();
            if (!time) continue;
            lane.transfer.reset();
            const auto at = lane.waiting.front();
            work_.transfer_ended(program_.code[index(at)]);
            end(lane, since_start(*time));
            progress = true;
        }
        return progress;
    }

    bool start_transfers() {
        bool progress = false;
        for (auto& lane : lanes_) {
            if (&lane == &compute_lane() || lane.transfer || lane.waiting.empty()) continue;
            const auto at = lane.waiting.front();
            if (!may_begin(op(at))) continue;
            begin(at);
            lane.transfer = start(program_.code[index(at)]);
            progress = true;
        }
        return progress;
    }

    std::unique_ptr<Transfer> start(const Instruction& instruction) {
        const auto& op = instruction.op;
        const int peer = identity_.group.global_rank(identity_.replica, op.peer);
        if (op.kind == OpKind::send) return transport_.send(work_.outgoing(instruction), peer, op.channel);
        const auto bytes = work_.incoming(instruction);
        return instruction.receives() ? transport_.receive(bytes, peer, op.channel)
                                      : transport_.fetch(bytes, peer, work_.exposed_offset(instruction));
    }

    bool compute() {
        auto& lane = compute_lane();
        if (lane.waiting.empty() || !may_begin(op(lane.waiting.front()))) return false;
        const auto at = lane.waiting.front();
        begin(at);
        const auto cpu_begin = thread_cpu_time();
        transport_.set_computing(true);
        work_.compute(program_.code[index(at)]);
        if (identity_.is_slow)
            for (const auto slow_end = cpu_begin + 4 * (thread_cpu_time() - cpu_begin); thread_cpu_time() < slow_end;) {
            }
        transport_.set_computing(false);
        spans_[index(at)].busy = thread_cpu_time() - cpu_begin;
        end(lane, now());
        return true;
    }

    Queue& compute_lane() { return lanes_[layouts::compute_lane]; }

    /// The first transfer that is under way. When there is no other progress, a resolved program always has one.
    OpIndex first_transfer() const {
        auto first = static_cast<OpIndex>(program_.code.size());
        for (const auto& lane : lanes_)
            if (lane.transfer) first = std::min(first, lane.waiting.front());
        return first;
    }

    std::string describe(OpIndex at) const {
        auto text = layouts::describe(identity_.rank, at, op(at));
        if (identity_.group.replicas > 1)
            text += fmt::format(" (of replica {}, global rank {})", identity_.replica,
                                identity_.group.global_rank(identity_.replica, identity_.rank));
        return text;
    }

    static const char* counterpart(OpKind kind) { return kind == OpKind::send ? "receive" : "send"; }

    const layouts::RankProgram& program_;
    const RankIdentity& identity_;
    CpuRank& work_;
    Transport& transport_;
    Clock::time_point start_;
    Clock::duration timeout_;
    std::vector<layouts::Span> spans_;
    std::vector<bool> ended_;
    std::vector<Queue> lanes_;
};

}  // namespace

Picoseconds thread_cpu_time() {
    timespec time{};
    require(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0, "this system does not report the CPU time of a thread");
    return static_cast<Picoseconds>(time.tv_sec) * 1'000'000'000'000 + static_cast<Picoseconds>(time.tv_nsec) * 1000;
}

std::vector<layouts::Span> execute(const layouts::RankProgram& program, int lanes, const RankIdentity& identity,
                                   CpuRank& work, Transport& transport, Clock::time_point start,
                                   Clock::duration timeout) {
    return Execution(program, lanes, identity, work, transport, start, timeout).run();
}

}  // namespace ringlab::reference
