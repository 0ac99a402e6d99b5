#include "gpu/execution/issuer.hpp"

#include "gpu/device/driver.hpp"

#include <algorithm>
#include <thread>

namespace ringlab::gpu {

using layouts::OpKind;

PassEvents::PassEvents(std::size_t instructions, Use use)
    : timed(use != Use::ordering),
      start(timed ? Event::Use::timing : Event::Use::ordering),
      finish(timed ? Event::Use::timing : Event::Use::ordering) {
    const bool timeline = use == Use::timeline;
    for (std::size_t i = 0; i < instructions; ++i) {
        if (timeline) begin.emplace_back(Event::Use::timing);
        end.emplace_back(timeline ? Event::Use::timing : Event::Use::ordering);
    }
}

void Issuer::prepare(layouts::Pass direction, const std::vector<PassEvents*>& events) {
    pass_ = direction;
    auto& passes = by_pass_[static_cast<std::size_t>(direction)];
    passes.resize(ranks_.size());
    passes_ = passes;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        auto& pass = passes_[rank];
        pass.events = events[rank];
        if (!pass.program || pass.timeline != pass.events->is_timeline()) plan(rank, pass);
        pass.issued.assign(pass.program->code.size(), false);
        pass.finished = false;
        for (auto& lane : pass.lanes) {
            lane.issued = lane.ended = 0;
            lane.begun = lane.posted = false;
        }
    }
}

/// Fills in all of `pass` that is the same in every pass.
void Issuer::plan(std::size_t rank, PassState& pass) const {
    pass.program = &ranks_[rank].work->program(pass_);
    pass.timeline = pass.events->is_timeline();
    pass.lanes.assign(ranks_[rank].lanes.size(), {});
    for (std::size_t i = 0; i < pass.program->code.size(); ++i)
        pass.lanes[static_cast<std::size_t>(pass.program->code[i].op.lane())].code.push_back(i);
    if (!ranks_[rank].work->is_one_launch(pass_)) mark(rank, pass);
}

namespace {

/// Calls visit(index) for each instruction that this one begins after, on other lanes of its rank too.
template <class Visit>
void for_each_before(const layouts::Instruction& instruction, Visit visit) {
    for (const auto before : instruction.op.after()) visit(static_cast<std::size_t>(before));
    if (instruction.paced_by >= 0) visit(static_cast<std::size_t>(instruction.paced_by));
}

}  // namespace

/// Chooses the operations that get a completion event. A CUDA call costs as much as a short message. So an operation
/// gets an event only if one on another lane waits for it, or if it is a message without an arrival flag
/// (Message::has_arrival_flag). In addition, each lane gets one now and then, so that the host sees how far the lane
/// has come. The compute lane ends with the pass. The last event of another lane stands for the whole lane: only
/// messages with arrival flags may come after it. Attends wait for these flags, so the messages have ended when the
/// attends have.
void Issuer::mark(std::size_t rank, PassState& pass) const {
    constexpr std::size_t now_and_then = most_ahead / 4;
    const auto& work = *ranks_[rank].work;
    const auto& code = pass.program->code;
    constexpr auto nobody = end_of_pass - 1;
    const auto computes = [&](std::size_t i) { return code[i].op.lane() == layouts::compute_lane; };
    const auto marked_as = [&](std::size_t i) {
        const auto* launch = work.launches(pass_).find(i);
        return launch ? launch->attends.front() : i;
    };
    std::vector<std::size_t> looks_at(code.size(), nobody);  // by message: the operation that computes with it
    pass.marked.assign(code.size(), pass.timeline);
    pass.shown_by.assign(code.size(), nobody);
    for (std::size_t i = 0; i < code.size(); ++i) {
        if (!computes(i) && !work.has_arrival_flag(pass_, i)) pass.marked[i] = true;
        for_each_before(code[i], [&](std::size_t before) {
            if (code[before].receives() && work.has_arrival_flag(pass_, before)) {
                if (computes(i)) looks_at[before] = marked_as(i);
            } else if (code[before].op.lane() != code[i].op.lane()) {
                pass.marked[before] = pass.marked[marked_as(before)] = true;
            }
        });
    }
    for (const auto& lane : pass.lanes) {
        for (std::size_t i = now_and_then - 1; i < lane.code.size(); i += now_and_then)
            pass.marked[lane.code[i]] = true;
        auto mark = &lane == &pass.lanes[layouts::compute_lane] ? end_of_pass : nobody;
        for (auto i = lane.code.size(); i-- > 0;) {
            const auto index = lane.code[i];
            if (pass.marked[index] || (mark == nobody && looks_at[index] == nobody)) {
                pass.marked[index] = true;
                mark = index;
            }
            pass.shown_by[index] = mark;
        }
    }
    for (std::size_t i = 0; i < code.size(); ++i)
        if (pass.shown_by[i] == nobody) pass.shown_by[i] = pass.shown_by[looks_at[i]];
}

void Issuer::enqueue() {
    const auto begin = last_look_ = Clock::now();
    since_progress_.restart();
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
        ranks_[rank].work->is_one_launch(pass_) ? issue_launch(rank) : start(rank);
    while (!all_issued()) {
        bool progress = false;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
            while (issue_next(rank)) progress = true;
        if (progress) {
            since_progress_.restart();
            continue;
        }
        // No lane can go on. Either lanes are as far ahead as is allowed, or they wait for another thread, or this is a
        // deadlock.
        const bool far_ahead = std::any_of(passes_.begin(), passes_.end(), [](const PassState& pass) {
            return std::any_of(pass.lanes.begin(), pass.lanes.end(),
                               [](const Lane& lane) { return lane.issued - lane.ended >= most_ahead; });
        });
        if (!far_ahead && team_.size() == 1) fail_unissuable();
        wait_a_little();
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
        if (!ranks_[rank].work->is_one_launch(pass_)) finish(rank);
    issue_time_ = Clock::now() - begin;
}

void Issuer::wait() {
    while (!all_ended()) {
        look();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    for (const auto& rank : ranks_) rank.work->require_arrived(pass_);
}

void Issuer::issue_launch(std::size_t rank) {
    const auto& self = ranks_[rank];
    auto& pass = passes_[rank];
    const DeviceScope scope(self.device);
    const auto compute = self.lanes[layouts::compute_lane];
    if (pass.events->timed) pass.events->start.record(compute);
    self.work->clear(pass_, compute);
    self.work->launch_merging(compute);
    self.work->finish(pass_, compute);
    pass.events->finish.record(compute);
    pass.finished = true;
    for (auto& lane : pass.lanes) lane.issued = lane.ended = lane.code.size();
}

void Issuer::start(std::size_t rank) {
    const auto& self = ranks_[rank];
    auto& pass = passes_[rank];
    const DeviceScope scope(self.device);
    const auto compute = self.lanes[layouts::compute_lane];
    if (pass.events->timed) pass.events->start.record(compute);
    self.work->clear(pass_, compute);
    if (self.work->moves_rows(pass_)) self.work->start(pass_, compute);
    // A lane that transfers waits for this point before its first operation.
    const bool transfers =
        std::any_of(pass.lanes.begin() + 1, pass.lanes.end(), [](const Lane& lane) { return !lane.code.empty(); });
    if (transfers) pass.events->transfers_begin.record(compute);
    if (!self.work->moves_rows(pass_)) self.work->start(pass_, compute);
}

void Issuer::finish(std::size_t rank) {
    const auto& self = ranks_[rank];
    auto& pass = passes_[rank];
    const DeviceScope scope(self.device);
    const auto compute = self.lanes[layouts::compute_lane];
    for (const auto& lane : pass.lanes) {
        const auto last = std::find_if(lane.code.rbegin(), lane.code.rend(), [&](auto i) { return pass.marked[i]; });
        if (&lane != &pass.lanes[layouts::compute_lane] && last != lane.code.rend())
            pass.events->end[*last].hold_back(compute);
    }
    self.work->finish(pass_, compute);
    pass.events->finish.record(compute);
    pass.finished = true;
}

bool Issuer::may_issue(std::size_t rank, const Lane& lane) const {
    if (lane.issued == lane.code.size() || lane.issued - lane.ended >= most_ahead) return false;
    const auto& pass = passes_[rank];
    const auto all_before_issued = [&](std::size_t index) {
        bool issued = true;
        for_each_before(pass.program->code[index], [&](std::size_t before) { issued &= pass.issued[before] != 0; });
        return issued;
    };
    const auto index = lane.code[lane.issued];
    const auto* launch = ranks_[rank].work->launches(pass_).find(index);
    if (!launch || launch->attends.front() != index) return all_before_issued(index);
    return launch->waits_for_blocks || std::all_of(launch->attends.begin(), launch->attends.end(), all_before_issued);
}

/// Enqueues the next operation of one lane, if one may be enqueued: the first one in schedule order. If transfers need
/// no SMs, an operation that computes and waits for nothing goes before them, so that a device has work as early as
/// possible. One that waits would only make the transfers late for which peers wait.
bool Issuer::issue_next(std::size_t rank) {
    auto& pass = passes_[rank];
    const bool compute_first = !ranks_[rank].transport->takes_multiprocessors();
    const auto order = [&](const Lane& lane) {
        const auto index = lane.code[lane.issued];
        const bool can_run =
            &lane == &pass.lanes[layouts::compute_lane] && pass.program->code[index].op.after().empty();
        return std::pair(compute_first && !can_run, index);
    };
    std::vector<bool> tried(pass.lanes.size());
    while (true) {
        Lane* first = nullptr;
        for (std::size_t i = 0; i < tried.size(); ++i)
            if (!tried[i] && may_issue(rank, pass.lanes[i]) && (!first || order(pass.lanes[i]) < order(*first)))
                first = &pass.lanes[i];
        if (!first) return false;
        if (issue(rank, *first)) return true;
        tried[static_cast<std::size_t>(first - pass.lanes.data())] = true;
    }
}

/// Issues the lane's next operation, or a part of it. Returns whether anything could be done.
bool Issuer::issue(std::size_t rank, Lane& lane) {
    const auto& self = ranks_[rank];
    const auto& program = *passes_[rank].program;
    const auto index = lane.code[lane.issued];
    const auto& instruction = program.code[index];
    const auto stream = self.lanes[static_cast<std::size_t>(instruction.op.lane())];
    const auto what = message(rank, index);
    const DeviceScope scope(self.device);
    try {
        if (instruction.receives()) {
            const bool posts = !lane.posted;
            if (posts) {
                if (!what.has_arrival_flag || passes_[rank].marked[index]) begin(rank, index);
                self.transport->post_receive(what, stream);
                lane.posted = true;
            }
            if (!self.transport->can_complete_receive(what)) return posts;
            if (passes_[rank].marked[index]) self.transport->complete_receive(what, stream);
            lane.posted = false;
        } else if (instruction.op.kind == OpKind::send) {
            if (!self.transport->can_send(what)) return false;
            begin(rank, index);
            self.transport->send(what, stream);
        } else {
            begin(rank, index);
            if (instruction.op.kind == OpKind::fetch)
                self.transport->fetch(what, stream);
            else
                self.work->compute(pass_, index, stream);
        }
        end(rank, lane);
        return true;
    } catch (const Cancelled&) {
        throw;
    } catch (const NoMemory&) {
        throw;  // keep the type, for callers that can go on with less memory
    } catch (const Error& error) {
        fail("{}: {}", describe(self.rank, static_cast<layouts::OpIndex>(index), instruction), error.what());
    }
}

void Issuer::begin(std::size_t rank, std::size_t index) {
    auto& pass = passes_[rank];
    const auto place = static_cast<std::size_t>(pass.program->code[index].op.lane());
    const auto stream = ranks_[rank].lanes[place];
    if (auto& lane = pass.lanes[place]; place != layouts::compute_lane && !lane.begun) {
        pass.events->transfers_begin.hold_back(stream);
        lane.begun = true;
    }
    if (const auto* launch = ranks_[rank].work->launches(pass_).find(index)) {
        if (launch->attends.front() != index) return;
        if (!launch->waits_for_blocks)
            for (const auto attend : launch->attends) hold_back(rank, attend);
    } else {
        hold_back(rank, index);
    }
    if (pass.timeline) pass.events->begin[index].record(stream);
}

/// Makes an instruction's lane wait for the operations on other lanes that the instruction depends on.
void Issuer::hold_back(std::size_t rank, std::size_t index) {
    auto& pass = passes_[rank];
    const auto& work = *ranks_[rank].work;
    const auto& instruction = pass.program->code[index];
    const auto lane = instruction.op.lane();
    const auto stream = ranks_[rank].lanes[static_cast<std::size_t>(lane)];
    for_each_before(instruction, [&](std::size_t op_index) {
        if (pass.program->code[op_index].op.lane() == lane) return;
        if (work.launches(pass_).wait_until_done(op_index, stream)) return;
        if (pass.program->code[op_index].receives() && work.has_arrival_flag(pass_, op_index))
            return wait_for_value(stream, work.memory().arrival_flag(pass_, op_index), work.pass_number());
        const auto* launch = work.launches(pass_).find(op_index);
        pass.events->end[launch ? launch->attends.front() : op_index].hold_back(stream);
    });
}

void Issuer::end(std::size_t rank, Lane& lane) {
    auto& pass = passes_[rank];
    const auto index = lane.code[lane.issued++];
    auto& work = *ranks_[rank].work;
    pass.issued[index] = true;
    const auto* launch = work.launches(pass_).find(index);
    if (launch && launch->attends.front() != index) return;  // its launch's first attend stands for it
    const auto stream = ranks_[rank].lanes[static_cast<std::size_t>(pass.program->code[index].op.lane())];
    if (!pass.marked[index]) return;
    work.arrived(pass_, index, stream);
    pass.events->end[index].record(stream);
}

Message Issuer::message(std::size_t rank, std::size_t index) const {
    const auto& self = ranks_[rank];
    const auto& op = passes_[rank].program->code[index].op;
    if (!op.transfers()) return {};
    const auto& instruction = passes_[rank].program->code[index];
    const auto receive = op.kind == OpKind::send ? static_cast<std::size_t>(instruction.partner) : index;
    return {self.work->memory().data(),
            self.work->pieces(pass_, index),
            options_.group.global_rank(self.replica, op.peer),
            op.channel,
            is_overlapped(instruction),
            self.work->has_arrival_flag(pass_, index),
            SlotMap::arrival_flag(pass_, receive),
            self.work->pass_number()};
}

bool Issuer::all_issued() const {
    return std::all_of(passes_.begin(), passes_.end(), [](const PassState& pass) {
        return std::all_of(pass.lanes.begin(), pass.lanes.end(),
                           [](const Lane& lane) { return lane.issued == lane.code.size(); });
    });
}

bool Issuer::all_ended() const {
    return std::all_of(passes_.begin(), passes_.end(),
                       [](const PassState& pass) { return pass.events->finish.done(); });
}

/// Calls look() at intervals, because asking the driver costs more than asking the other threads.
void Issuer::wait_a_little() {
    constexpr auto interval = std::chrono::microseconds(50);
    if (Clock::now() - last_look_ < interval) return;
    look();
    last_look_ = Clock::now();
}

/// Notes which operations have ended. Throws Error if something has failed, or if nothing has ended for too long.
void Issuer::look() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        auto& pass = passes_[rank];
        for (auto& lane : pass.lanes) {
            const auto has_ended = [&](std::size_t index) {
                const auto shown_by = pass.shown_by[index];
                if (shown_by == end_of_pass) return pass.finished && pass.events->finish.done();
                return pass.issued[shown_by] && pass.events->end[shown_by].done();
            };
            while (lane.ended < lane.issued && has_ended(lane.code[lane.ended])) {
                ++lane.ended;
                since_progress_.restart();
            }
        }
        ranks_[rank].transport->check();
        ranks_[rank].work->require_arrived(pass_);
    }
    if (team_.cancelled()) throw Cancelled();
    if (since_progress_.so_far() > options_.timeout) fail_stalled();
}

void Issuer::abort() noexcept {
    for (auto& rank : ranks_) {
        // Waits for arrival flags first: to abort a communicator of NCCL can take until the device's streams have gone
        // on.
        if (rank.work) rank.work->give_up();
        if (rank.transport) rank.transport->abort();
    }
    for (auto& rank : ranks_)
        for (const auto lane : rank.lanes)
            if (lane) cudaStreamSynchronize(lane);
}

std::string Issuer::describe_front(std::size_t rank, const Lane& lane, std::size_t position) const {
    const auto index = lane.code[position];
    auto text = describe(ranks_[rank].rank, static_cast<layouts::OpIndex>(index), passes_[rank].program->code[index]);
    if (options_.group.replicas > 1)
        text += fmt::format(" (replica {}, global rank {})", ranks_[rank].replica, ranks_[rank].global_rank);
    return text;
}

void Issuer::fail_unissuable() const {
    for (std::size_t rank = 0; rank < passes_.size(); ++rank)
        for (const auto& lane : passes_[rank].lanes)
            if (lane.issued < lane.code.size())
                fail("{} can never begin: what it waits for waits for it, or its peer never comes to it",
                     describe_front(rank, lane, lane.issued));
    fail("no operation is left to begin");
}

void Issuer::fail_stalled() const {
    const auto seconds = std::chrono::duration<double>(options_.timeout).count();
    // Names a transfer if there is one, rather than a compute operation that waits for it.
    for (const bool transfers : {true, false})
        for (std::size_t rank = 0; rank < passes_.size(); ++rank)
            for (const auto& lane : passes_[rank].lanes) {
                if (lane.ended == lane.code.size()) continue;
                const auto& op = passes_[rank].program->code[lane.code[lane.ended]].op;
                if (op.transfers() == transfers)
                    fail(
                        "{} has not ended after {} s without progress; its peer is dead or stuck, or the time-out is "
                        "too short",
                        describe_front(rank, lane, lane.ended), seconds);
            }
    fail("a pass has not ended after {} s without progress", seconds);
}

}  // namespace ringlab::gpu
