#include "layouts/program.hpp"

#include "layouts/rehearsal.hpp"
#include "layouts/slot_contents.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace ringlab::layouts {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

bool same_tokens(const Schedule& schedule, const Part& a, const Part& b) {
    return (a.block == b.block && a.tokens == b.tokens) || schedule.runs(a) == schedule.runs(b);
}

/// Which operations of a rank have ended for sure before another begins: by lane, how many of them. Rendezvous with
/// peers only adds order.
class HappensBefore {
public:
    explicit HappensBefore(int lanes) : lanes_(index(lanes)), last_(lanes_, -1), length_(lanes_, 0) {}

    /// Operations come in schedule order.
    void add(const Op& op) {
        const auto lane = index(op.lane());
        const auto begin = clocks_.size();
        clocks_.resize(begin + lanes_, 0);
        const auto follow = [&](OpIndex before) {
            if (before < 0) return;
            for (std::size_t l = 0; l < lanes_; ++l)
                clocks_[begin + l] = std::max(clocks_[begin + l], clocks_[index(before) * lanes_ + l]);
            const auto [its_lane, place] = places_[index(before)];
            clocks_[begin + its_lane] = std::max(clocks_[begin + its_lane], place + 1);
        };
        follow(last_[lane]);
        for (const auto before : op.after()) follow(before);
        last_[lane] = static_cast<OpIndex>(places_.size());
        places_.emplace_back(lane, length_[lane]++);
    }

    bool operator()(OpIndex first, OpIndex second) const {
        const auto [lane, place] = places_[index(first)];
        return clocks_[index(second) * lanes_ + lane] > place;
    }

private:
    std::size_t lanes_;
    std::vector<OpIndex> last_;                                 // by lane
    std::vector<std::int32_t> length_;                          // by lane
    std::vector<std::pair<std::size_t, std::int32_t>> places_;  // by operation: its lane and place in it
    std::vector<std::int32_t> clocks_;                          // by operation and lane
};

/// Checks what one rank's operations say of themselves.
class FormCheck {
public:
    FormCheck(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

    void operator()(OpIndex which, const Op& op) const {
        const auto expect = [&](bool right, std::string_view format, const auto&... values) {
            if (!right)
                fail("{}: {}", describe(rank_, which, op), fmt::vformat(format, fmt::make_format_args(values...)));
        };
        for (const auto before : op.after()) expect(before < which, "it waits for operation {}, a later one", before);
        if (op.transfers()) {
            expect(0 <= op.peer && op.peer < schedule_.ranks() && op.peer != rank_, "there is no such peer");
            expect(0 <= op.channel && op.lane() < schedule_.lanes(), "channel {} of {}", op.channel,
                   schedule_.channels().size());
        }
        const bool backward = schedule_.options().pass == Pass::backward;
        const bool may_add = (op.kind == OpKind::attend && backward) || op.kind == OpKind::compress;
        expect(!op.adds || may_add, "attends of the backward pass and compressing alone add to a gradient");
        const bool latent = schedule_.problem().latent.is_given();
        expect(op.kind != OpKind::expand || latent, "there is no latent");
        expect(op.kind != OpKind::compress || (latent && backward), "there is no gradient of a latent");
        if (op.kind != OpKind::attend) {
            const auto bytes = op.transfers() ? schedule_.bytes(op.pool, op.slot(), op.part)
                                              : schedule_.bytes(op.source_pool(), op.source, op.read());
            expect(op.bytes == bytes, "it says {} bytes; these are {}", op.bytes, bytes);
            const bool same_heads = op.source_pool() != op.pool || op.read().heads == op.part.heads;
            const bool same = op.transfers() || (same_heads && same_tokens(schedule_, op.read(), op.part));
            expect(same, "it reads other tokens or heads than it writes");
        }
        if (op.kind == OpKind::fetch)
            expect((op.pool == Pool::kv || op.pool == Pool::latent) && op.part.block == op.peer,
                   "fetches are of a peer's own K,V or latent");
        if (op.kind == OpKind::receive || op.kind == OpKind::fetch || op.kind == OpKind::copy)
            expect(op.slot() > 0 || !is_input(op.pool), "it would overwrite the rank's own {}", to_string(op.pool));
        if (op.kind == OpKind::attend) check_heads(expect, op);
        for (const auto& operand : Operands(op, schedule_.options().pass)) check_operand(expect, operand);
    }

private:
    template <class Expect>
    void check_heads(const Expect& expect, const Op& op) const {
        const auto group = static_cast<int>(schedule_.problem().query_heads_per_kv_head());
        const auto rows = op.rows().heads, keys = op.part.heads;
        const bool all = rows.begin == keys.begin * group && rows.end == keys.end * group;
        const bool some_of_one = keys.count() == 1 && keys.begin * group <= rows.begin && rows.end <= keys.end * group;
        expect(all || some_of_one, "query heads {}..{} do not read K,V heads {}..{} as one block", rows.begin,
               rows.end - 1, keys.begin, keys.end - 1);
    }

    template <class Expect>
    void check_operand(const Expect& expect, const Operand& operand) const {
        const auto& [pool, slot, part, access, last] = operand;
        const auto all = heads_of(schedule_.problem(), pool);
        expect(0 <= part.block && part.block < schedule_.blocks(), "there is no block {}", part.block);
        expect(0 <= part.heads.begin && part.heads.begin < part.heads.end && part.heads.end <= all,
               "there are no heads {}..{}", part.heads.begin, part.heads.end - 1);
        expect(0 <= part.tokens.begin && part.tokens.begin <= part.tokens.end &&
                   part.tokens.end <= schedule_.block_tokens(part.block),
               "block {} has no tokens {}..{}", part.block, part.tokens.begin, part.tokens.end - 1);
        if (slot == 0) {
            expect(schedule_.keeps(pool), "the rank has no {} of its own", to_string(pool));
            const int own = schedule_.own_block(pool, rank_);
            expect(part.block == own, "{} slot 0 is that of block {}, not {}", to_string(pool), own, part.block);
            return;
        }
        int first = 1;
        for (const auto& group : schedule_.slots()) {
            if (group.pool != pool) continue;
            if (slot < first + group.count) {
                expect(part.heads.count() <= group.heads && schedule_.block_tokens(part.block) <= group.tokens,
                       "{} slot {} has room for {} heads of {} tokens, not {} of {}", to_string(pool), slot,
                       group.heads, group.tokens, part.heads.count(), schedule_.block_tokens(part.block));
                return;
            }
            first += group.count;
        }
        expect(false, "it uses {} slot {}, but the schedule asks for scratch slots 1..{}", to_string(pool), slot,
               first - 1);
    }

    const Schedule& schedule_;
    int rank_;
};

std::vector<Join> find_joins(const RankProgram& program, int lanes) {
    JoinFinder finder(program.pass, lanes);
    for (std::size_t i = 0; i < program.operations; ++i) finder.add(program.code[i].op);
    return std::move(finder).found();
}

/// Goes through one rank's operations in their order, which stands for every order that lanes and dependencies allow,
/// as conflicting accesses are put in order by them.
class Resolver {
public:
    Resolver(const Schedule& schedule, int rank)
        : schedule_(schedule), form_(schedule, rank), before_(schedule.lanes()), slots_(schedule, rank) {
        program_.rank = rank;
        program_.pass = schedule.options().pass;
    }

    RankProgram run() {
        auto stream = schedule_.ops(program_.rank);
        while (const auto* op = stream.next()) add(*op);
        program_.operations = program_.code.size();
        for (auto& instruction : program_.code) {
            const auto& op = instruction.op;
            instruction.may_come_early &= op.kind != OpKind::receive || senders_[op.lane()].size() == 1;
        }
        slots_.require_finished();
        program_.joins = find_joins(program_, schedule_.lanes());
        if (schedule_.options().pass == Pass::backward)
            for (const auto pool : {Pool::dkv, Pool::dlatent})
                if (slots_.sums_from_zero(pool)) program_.sums_from_zero.push_back(pool);
        program_.leaves_output = schedule_.options().pass == Pass::forward && slots_.leaves_output();
        return std::move(program_);
    }

private:
    void add(const Op& op) {
        const auto which = static_cast<OpIndex>(program_.code.size());
        auto& instruction = program_.code.emplace_back();
        instruction.op = op;
        form_(which, op);
        before_.add(op);
        if (op.kind == OpKind::receive) senders_[op.lane()].insert(op.peer);
        const Operands operands(op, schedule_.options().pass);
        for (const auto& operand : operands) {
            const bool is_source = op.has_source() && &operand + 1 == operands.end();
            const bool is_first = used_.emplace(operand.pool, operand.slot).second;
            if (op.kind == OpKind::receive)
                instruction.may_come_early = is_first && operand.slot > 0 && !of_rows(operand.pool);
            try {
                const auto first = slots_.use(which, operand, before_);
                if (is_source)
                    instruction.source_first_head = first;
                else
                    instruction.first_head[static_cast<std::size_t>(operand.pool)] = first;
            } catch (const Error& error) {
                fail("{}: {}", describe(program_.rank, which, op), error.what());
            }
        }
    }

    const Schedule& schedule_;
    FormCheck form_;
    HappensBefore before_;
    SlotContents slots_;
    std::set<std::pair<Pool, int>> used_;  // slots so far
    std::map<Lane, std::set<int>> senders_;
    RankProgram program_;
};

/// The owner's halves of fetches. First all ranks' first fetches, then their second ones, and so on: an order of all
/// fetches that every rank's own agrees with, so none can wait for itself around other ranks.
void serve(Program& program) {
    struct Served {
        int fetcher;
        OpIndex fetch;
        int turn;  // among the fetcher's
        Op op;
    };
    std::vector<std::vector<Served>> by_owner(program.ranks.size());
    for (const auto& rank : program.ranks) {
        int turn = 0;
        for (std::size_t i = 0; i < rank.operations; ++i)
            if (const auto& op = rank.code[i].op; op.kind == OpKind::fetch)
                by_owner[index(op.peer)].push_back({rank.rank, static_cast<OpIndex>(i), turn++, op});
    }
    for (auto& rank : program.ranks) {
        auto& served = by_owner[index(rank.rank)];
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
            program.ranks[index(fetcher)].code[index(fetch)].partner = static_cast<OpIndex>(rank.code.size() - 1);
        }
    }
}

/// The k-th send on a channel from one rank to another meets the k-th receive.
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
            auto& receive = program.ranks[index(send.op.peer)].code[index(send.partner)];
            receive.partner = which;
            send.may_come_early = receive.may_come_early;
            const bool same = receive.op.bytes == send.op.bytes && receive.op.pool == send.op.pool &&
                              receive.op.part.heads == send.op.part.heads &&
                              same_tokens(schedule, receive.op.part, send.op.part);
            if (!same)
                fail("{}, {} bytes, meets {}, {} bytes", describe(rank.rank, which, send.op), send.op.bytes,
                     describe(send.op.peer, send.partner, receive.op), receive.op.bytes);
        }
    }
    for (const auto& [route, queue] : receives)
        if (const auto count = matched[route]; count < queue.size())
            fail("{} has no send there",
                 describe(std::get<1>(route), queue[count],
                          program.ranks[index(std::get<1>(route))].code[index(queue[count])].op));
}

void note_computing_beside(const Schedule& schedule, Program& program) {
    for (auto& rank : program.ranks) {
        double flop = 0;
        for (auto i = rank.operations; i-- > 0;) {
            auto& instruction = rank.code[i];
            if (instruction.op.kind == OpKind::attend) flop = schedule.flop(instruction.op);
            if (!instruction.sends()) continue;
            instruction.flop_beside = flop;
            program.ranks[index(instruction.op.peer)].code[index(instruction.partner)].flop_beside = flop;
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
        // A state goes on elsewhere.
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
    for (int rank = 0; rank < schedule.ranks(); ++rank) program.ranks.push_back(Resolver(schedule, rank).run());
    if (fetches == Fetches::served) serve(program);
    match_messages(schedule, program);
    note_computing_beside(schedule, program);
    if (const auto stuck = rehearse(program))
        fail("{} can never begin: what it waits for waits for it, or its peer never comes to it",
             describe(stuck->rank, stuck->operation,
                      program.ranks[index(stuck->rank)].code[index(stuck->operation)].op));
    schedule.amend(program);
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

std::string describe(int rank, OpIndex which, const Instruction& instruction) {
    const auto& op = instruction.op;
    if (!instruction.served) return describe(rank, which, op);
    return fmt::format("rank {}: half of a fetch by rank {}, step {}", rank, op.peer, op.step);
}

}  // namespace ringlab::layouts
