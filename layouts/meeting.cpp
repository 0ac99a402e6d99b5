#include "layouts/meeting.hpp"

#include "layouts/form_check.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace ringlab::layouts {

namespace {

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

void serve(Program& program) {
    struct Served {
        int fetcher;
        OpIndex fetch;
        int turn;  // index among the fetcher's fetches
        Op op;
    };
    std::vector<std::vector<Served>> by_owner(program.ranks.size());
    for (const auto& rank : program.ranks) {
        int turn = 0;
        for (std::size_t i = 0; i < rank.operations; ++i)
            if (const auto& op = rank.code[i].op; op.kind == OpKind::fetch)
                by_owner[at_index(op.peer)].push_back({rank.rank, static_cast<OpIndex>(i), turn++, op});
    }
    for (auto& rank : program.ranks) {
        auto& served = by_owner[at_index(rank.rank)];
        std::ranges::sort(served, {}, [](const Served& one) { return std::pair(one.turn, one.fetcher); });
        for (const auto& [fetcher, fetch, turn, op] : served) {
            auto& send = rank.code.emplace_back();
            send.op = op;
            send.op.kind = OpKind::send;
            send.op.peer = fetcher;
            send.op.slot(op.pool) = 0;
            send.op.after_count = 0;
            send.served = true;
            send.partner = fetch;
            program.ranks[at_index(fetcher)].code[at_index(fetch)].partner = static_cast<OpIndex>(rank.code.size() - 1);
        }
    }
}

void match_messages(const Schedule& schedule, Program& program) {
    using Route = std::tuple<int, int, int>;  // from, to, channel
    std::map<Route, std::vector<OpIndex>> receives;
    for (const auto& rank : program.ranks)
        for (std::size_t i = 0; i < rank.operations; ++i)
            if (const auto& op = rank.code[i].op; op.kind == OpKind::receive)
                receives[{op.peer, rank.rank, op.channel}].push_back(static_cast<OpIndex>(i));
    std::map<Route, std::size_t> matched;
    for (auto& rank : program.ranks) {
        for (std::size_t i = 0; i < rank.operations; ++i) {
            auto& send = rank.code[i];
            if (!send.sends()) continue;
            const auto which = static_cast<OpIndex>(i);
            const Route route{rank.rank, send.op.peer, send.op.channel};
            const auto& queue = receives[route];
            auto& count = matched[route];
            if (count == queue.size()) fail("{} has no receive there", describe(rank.rank, which, send.op));
            send.partner = queue[count++];
            auto& receive = program.ranks[at_index(send.op.peer)].code[at_index(send.partner)];
            receive.partner = which;
            send.may_come_early = receive.may_come_early;
            const bool same = receive.op.bytes == send.op.bytes && receive.op.pool == send.op.pool &&
                              receive.op.part.heads == send.op.part.heads &&
                              same_tokens(schedule, receive.op.part, send.op.part);
            if (!same)
                fail("{}, {} bytes, is matched with {}, {} bytes; they must be of the same tokens and heads",
                     describe(rank.rank, which, send.op), send.op.bytes,
                     describe(send.op.peer, send.partner, receive.op), receive.op.bytes);
        }
    }
    for (const auto& [route, queue] : receives)
        if (const auto count = matched[route]; count < queue.size())
            fail("{} has no send there",
                 describe(std::get<1>(route), queue[count],
                          program.ranks[at_index(std::get<1>(route))].code[at_index(queue[count])].op));
}

namespace {

/// Whether the receiver's next attend waits for this transfer or a later one of its lane. An attend that continues a
/// launch does not count, because the attends before it in the launch hide the message.
bool next_attend_waits_for(const RankProgram& rank, OpIndex transfer) {
    const auto lane = rank.code[at_index(transfer)].op.lane();
    for (auto i = at_index(transfer) + 1; i < rank.operations; ++i) {
        const auto& attend = rank.code[i].op;
        if (attend.kind != OpKind::attend) continue;
        return !attend.fused && std::ranges::any_of(attend.after(), [&](OpIndex before) {
            return before >= transfer && rank.code[at_index(before)].op.lane() == lane;
        });
    }
    return false;
}

}  // namespace

void note_computing_beside(const Schedule& schedule, Program& program) {
    for (const auto& rank : program.ranks) {
        OpIndex attend = -1;  // the next one
        for (auto i = rank.operations; i-- > 0;) {
            const auto& instruction = rank.code[i];
            if (instruction.op.kind == OpKind::attend) attend = static_cast<OpIndex>(i);
            if (!instruction.sends()) continue;
            auto& receiver = program.ranks[at_index(instruction.op.peer)];
            const bool is_hidden = attend >= 0 && !next_attend_waits_for(receiver, instruction.partner);
            const auto flop = is_hidden ? schedule.flop(rank.code[at_index(attend)].op) : 0;
            receiver.code[at_index(instruction.partner)].flop_beside = flop;
            program.ranks[at_index(rank.rank)].code[i].flop_beside = flop;
        }
    }
}

}  // namespace ringlab::layouts
