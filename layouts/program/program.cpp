#include "layouts/program/program.hpp"

#include "layouts/program/deadlock_check.hpp"
#include "layouts/program/rank_checks.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace ringlab::layouts {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Adds to each rank's program a send for every fetch from it. An owner serves the first fetch of every rank, then the
/// second of every rank, and so on. This is one order of all fetches that agrees with the order of each rank, so the
/// added sends cannot form a cycle of waiting ranks.
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
                by_owner[index(op.peer)].push_back({rank.rank, static_cast<OpIndex>(i), turn++, op});
    }
    for (auto& rank : program.ranks) {
        auto& served = by_owner[index(rank.rank)];
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
            program.ranks[index(fetcher)].code[index(fetch)].partner = static_cast<OpIndex>(rank.code.size() - 1);
        }
    }
}

/// Sets Instruction::partner of both halves of each message: the k-th send from one rank to another on a channel
/// belongs to the k-th receive. Throws Error that names both halves if they do not fit, or the half that has no
/// partner.
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
            const auto op_index = static_cast<OpIndex>(i);
            const Route route{rank.rank, send.op.peer, send.op.channel};
            const auto& queue = receives[route];
            auto& count = matched[route];
            if (count == queue.size()) fail("{} has no receive there", describe(rank.rank, op_index, send.op));
            send.partner = queue[count++];
            auto& receive = program.ranks[index(send.op.peer)].code[index(send.partner)];
            receive.partner = op_index;
            send.may_arrive_early = receive.may_arrive_early;
            const bool same = receive.op.bytes == send.op.bytes && receive.op.pool == send.op.pool &&
                              receive.op.part.heads == send.op.part.heads &&
                              same_tokens(schedule, receive.op.part, send.op.part);
            if (!same)
                fail("{}, {} bytes, is matched with {}, {} bytes; they must be of the same tokens and heads",
                     describe(rank.rank, op_index, send.op), send.op.bytes,
                     describe(send.op.peer, send.partner, receive.op), receive.op.bytes);
        }
    }
    for (const auto& [route, queue] : receives)
        if (const auto count = matched[route]; count < queue.size())
            fail("{} has no send there",
                 describe(std::get<1>(route), queue[count],
                          program.ranks[index(std::get<1>(route))].code[index(queue[count])].op));
}

/// Whether the receiver's next attend waits for this transfer or a later one of its lane. An attend that continues a
/// launch does not count, because the attends before it in the launch hide the message.
bool next_attend_waits_for(const RankProgram& rank, OpIndex transfer) {
    const auto lane = rank.code[index(transfer)].op.lane();
    for (auto i = index(transfer) + 1; i < rank.operations; ++i) {
        const auto& attend = rank.code[i].op;
        if (attend.kind != OpKind::attend) continue;
        return !attend.fused && std::ranges::any_of(attend.after(), [&](OpIndex before) {
            return before >= transfer && rank.code[index(before)].op.lane() == lane;
        });
    }
    return false;
}

/// Sets Instruction::overlapped_flop of both halves of each message.
void set_overlapped_flop(const Schedule& schedule, Program& program) {
    for (const auto& rank : program.ranks) {
        OpIndex attend = -1;  // the next one
        for (auto i = rank.operations; i-- > 0;) {
            const auto& instruction = rank.code[i];
            if (instruction.op.kind == OpKind::attend) attend = static_cast<OpIndex>(i);
            if (!instruction.sends()) continue;
            auto& receiver = program.ranks[index(instruction.op.peer)];
            const bool is_hidden = attend >= 0 && !next_attend_waits_for(receiver, instruction.partner);
            const auto flop = is_hidden ? schedule.flop(rank.code[index(attend)].op) : 0;
            receiver.code[index(instruction.partner)].overlapped_flop = flop;
            program.ranks[index(rank.rank)].code[i].overlapped_flop = flop;
        }
    }
}

}  // namespace

Operands::Operands(const Op& op, Pass pass) {
    switch (op.kind) {
        case OpKind::attend: {
            add(Pool::q, op.slot(Pool::q), op.rows(), Access::read);
            add(Pool::kv, op.slot(Pool::kv), op.part, Access::read);
            const auto access = op.begins ? Access::write : Access::update;
            if (pass == Pass::backward) {
                add(Pool::dout, op.slot(Pool::dout), op.rows(), Access::read);
                add(Pool::dq, op.slot(Pool::dq), op.rows(), access);
                add(Pool::dkv, op.slot(Pool::dkv), op.part, op.adds ? Access::update : Access::write);
                return;
            }
            if (!op.begins || !op.ends) add(Pool::state, op.slot(Pool::state), op.rows(), access, op.ends);
            if (op.ends) add(Pool::output, op.slot(Pool::output), op.rows(), Access::write);
            return;
        }
        case OpKind::merge:
        case OpKind::add:
        case OpKind::copy:
        case OpKind::expand:
        case OpKind::compress: {
            const bool overwrites = op.kind == OpKind::copy || op.kind == OpKind::expand ||
                                    (op.kind == OpKind::merge && op.begins) ||
                                    (op.kind == OpKind::compress && !op.adds);
            add(op.pool, op.slot(), op.part, overwrites ? Access::write : Access::update);
            if (op.kind == OpKind::compress) add(Pool::latent, op.slot(Pool::latent), op.part, Access::read);
            add(op.source_pool(), op.source, op.read(), Access::read);
            return;
        }
        // A running softmax that was sent continues at the peer and is undefined here.
        case OpKind::send: add(op.pool, op.slot(), op.part, Access::read, op.pool == Pool::state); return;
        case OpKind::receive:
        case OpKind::fetch: add(op.pool, op.slot(), op.part, Access::write); return;
    }
}

Place place_of(const Schedule& schedule, const Instruction& instruction, Pool pool) {
    const auto& op = instruction.op;
    const auto& part = op.kind == OpKind::attend && of_rows(pool) ? op.rows() : op.part;
    return {pool,
            op.slot(pool),
            instruction.first_head[static_cast<std::size_t>(pool)],
            schedule.block_tokens(part.block),
            part.heads,
            part.tokens};
}

Place source_of(const Schedule& schedule, const Instruction& instruction) {
    const auto& op = instruction.op;
    return {op.source_pool(), op.source,       instruction.source_first_head, schedule.block_tokens(op.read().block),
            op.read().heads,  op.read().tokens};
}

Place own_place(const Schedule& schedule, int rank, Pool pool) {
    const auto tokens = schedule.block_tokens(schedule.own_block(pool, rank));
    return {pool, 0, 0, tokens, {0, heads_of(schedule.problem(), pool)}, {0, tokens}};
}

bool RankProgram::uses(Lane lane) const {
    return std::any_of(code.begin(), code.end(), [&](const Instruction& i) { return i.op.lane() == lane; });
}

bool Program::fetches() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const RankProgram& rank) {
        return std::any_of(rank.code.begin(), rank.code.end(),
                           [](const Instruction& i) { return i.op.kind == OpKind::fetch; });
    });
}

Program resolve(const Schedule& schedule, Fetches fetches) {
    Program program;
    program.pass = schedule.options().pass;
    program.lanes = schedule.lanes();
    for (int rank = 0; rank < schedule.ranks(); ++rank) program.ranks.push_back(resolve_rank(schedule, rank));
    if (fetches == Fetches::served) add_served_sends(program);
    match_messages(schedule, program);
    set_overlapped_flop(schedule, program);
    if (const auto stuck = find_deadlock(program))
        fail("{} can never begin: what it waits for waits for it, or its peer never comes to it",
             describe(stuck->rank, stuck->operation,
                      program.ranks[index(stuck->rank)].code[index(stuck->operation)].op));
    schedule.modify_program(program);
    return program;
}

std::string describe(int rank, OpIndex index, const Op& op) {
    auto text = fmt::format("rank {}: operation {}, {} ", rank, index, to_string(op.kind));
    text += op.kind == OpKind::attend ? fmt::format("to block {}", op.part.block)
                                      : fmt::format("{} of block {}", to_string(op.pool), op.part.block);
    text += fmt::format(", step {}", op.step);
    if (op.peer >= 0) text += fmt::format(", {} rank {}", op.kind == OpKind::send ? "to" : "from", op.peer);
    return text;
}

std::string describe(int rank, OpIndex op_index, const Instruction& instruction) {
    const auto& op = instruction.op;
    if (!instruction.served) return describe(rank, op_index, op);
    return fmt::format("rank {}: half of a fetch by rank {}, step {}", rank, op.peer, op.step);
}

}  // namespace ringlab::layouts
