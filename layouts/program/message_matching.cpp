#include "layouts/program/message_matching.hpp"

#include "layouts/program/operation_check.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace ringlab::layouts {

namespace {

std::size_t to_index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

void add_served_sends(Program& program) {
    struct ServedFetch {
        int fetcher;
        OpIndex fetch;
        int turn;  // index among the fetcher's fetches
        Op op;
    };
    std::vector<std::vector<ServedFetch>> by_owner(program.ranks.size());
    for (const auto& rank : program.ranks) {
        int turn = 0;
        for (std::size_t i = 0; i < rank.operations; ++i)
            if (const auto& op = rank.code[i].op; op.kind == OpKind::fetch)
                by_owner[to_index(op.peer)].push_back({rank.rank, static_cast<OpIndex>(i), turn++, op});
    }
    for (auto& rank : program.ranks) {
        auto& served = by_owner[to_index(rank.rank)];
        std::ranges::sort(served, {}, [](const ServedFetch& one) { return std::pair(one.turn, one.fetcher); });
        for (const auto& [fetcher, fetch, turn, op] : served) {
            auto& send = rank.code.emplace_back();
            send.op = op;
            send.op.kind = OpKind::send;
            send.op.peer = fetcher;
            send.op.slot(op.pool) = 0;
            send.op.after_count = 0;
            send.served = true;
            send.partner = fetch;
            program.ranks[to_index(fetcher)].code[to_index(fetch)].partner = static_cast<OpIndex>(rank.code.size() - 1);
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
            auto& receive = program.ranks[to_index(send.op.peer)].code[to_index(send.partner)];
            receive.partner = which;
            send.may_arrive_early = receive.may_arrive_early;
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
                          program.ranks[to_index(std::get<1>(route))].code[to_index(queue[count])].op));
}

namespace {

/// Whether the receiver's next attend waits for this transfer or a later one of its lane. An attend that continues a
/// launch does not count, because the attends before it in the launch hide the message.
bool next_attend_waits_for(const RankProgram& rank, OpIndex transfer) {
    const auto lane = rank.code[to_index(transfer)].op.lane();
    for (auto i = to_index(transfer) + 1; i < rank.operations; ++i) {
        const auto& attend = rank.code[i].op;
        if (attend.kind != OpKind::attend) continue;
        return !attend.fused && std::ranges::any_of(attend.after(), [&](OpIndex before) {
            return before >= transfer && rank.code[to_index(before)].op.lane() == lane;
        });
    }
    return false;
}

}  // namespace

void set_overlapped_flop(const Schedule& schedule, Program& program) {
    for (const auto& rank : program.ranks) {
        OpIndex attend = -1;  // the next one
        for (auto i = rank.operations; i-- > 0;) {
            const auto& instruction = rank.code[i];
            if (instruction.op.kind == OpKind::attend) attend = static_cast<OpIndex>(i);
            if (!instruction.sends()) continue;
            auto& receiver = program.ranks[to_index(instruction.op.peer)];
            const bool is_hidden = attend >= 0 && !next_attend_waits_for(receiver, instruction.partner);
            const auto flop = is_hidden ? schedule.flop(rank.code[to_index(attend)].op) : 0;
            receiver.code[to_index(instruction.partner)].overlapped_flop = flop;
            program.ranks[to_index(rank.rank)].code[i].overlapped_flop = flop;
        }
    }
}

}  // namespace ringlab::layouts
