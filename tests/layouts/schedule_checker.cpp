#include "tests/layouts/schedule_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <map>

namespace ringlab::layouts::testing {
namespace {

constexpr std::size_t most_tokens = 128, most_heads_per_kv_head = 8;
using Tokens = std::bitset<most_tokens>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// What a slot holds for one token and head.
struct Cell {
    std::int64_t token = -1;  // global; -1: nothing
    // Of rows: the keys that were taken in. Of the gradient of a key: the rows whose part is in it, by query head of
    // its kv head; of that of a latent by query head.
    std::array<Tokens, most_heads_per_kv_head> taken;
};

/// Runs a resolved program on such cells.
class Execution {
public:
    Execution(const Schedule& schedule, const Program& program)
        : schedule_(schedule), program_(program), ranks_(program.ranks.size()) {
        const auto& mask = schedule.mask();
        seen_.resize(index(mask.tokens()));
        seers_.resize(seen_.size());
        attended_.resize(index(schedule.problem().query_heads) * seen_.size());
        for (const auto row : schedule.problem().row_positions())
            for (std::int64_t key = 0; key < mask.tokens(); ++key)
                if (mask.visible(row, key)) {
                    seen_[index(row)].set(index(key));
                    seers_[index(key)].set(index(row));
                }
        for (int rank = 0; rank < schedule.ranks(); ++rank) start(rank);
    }

    std::vector<std::string> run() {
        for (bool progress = true; progress && found_.empty();) {
            progress = false;
            for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
                for (std::size_t lane = 0; lane < ranks_[rank].queue.size(); ++lane)
                    while (found_.empty() && advance(rank, lane)) progress = true;
        }
        if (found_.empty()) check_results();
        return found_;
    }

private:
    struct RankState {
        std::map<std::pair<Pool, int>, std::vector<Cell>> slots;
        std::vector<std::vector<std::size_t>> queue;  // by lane
        std::vector<std::size_t> front;
        std::vector<char> ended;
    };

    int heads(Pool pool) const { return heads_of(schedule_.problem(), pool); }
    int group() const { return static_cast<int>(schedule_.problem().query_heads_per_kv_head()); }
    bool backward() const { return program_.pass == Pass::backward; }

    void start(int rank) {
        auto& state = ranks_[index(rank)];
        const auto& code = program_.ranks[index(rank)].code;
        state.queue.resize(index(program_.lanes));
        state.front.resize(state.queue.size());
        state.ended.resize(code.size());
        for (std::size_t i = 0; i < code.size(); ++i) state.queue[index(code[i].op.lane())].push_back(i);
        for (const auto pool :
             {Pool::q, Pool::kv, Pool::latent, Pool::output, Pool::dout, Pool::dq, Pool::dkv, Pool::dlatent}) {
            const bool made_at_home = pool == Pool::kv && schedule_.problem().latent.is_given();
            if (!schedule_.keeps(pool) || made_at_home) continue;
            const auto all = HeadRange{0, heads(pool)};
            const int block = schedule_.own_block(pool, rank);
            const auto tokens = positions(schedule_.part(block, all));
            for (int head = 0; head < all.count(); ++head)
                for (std::size_t t = 0; t < tokens.size(); ++t)
                    cell(rank, pool, 0, 0, block, head, static_cast<std::int64_t>(t)).token = tokens[t];
        }
    }

    std::vector<std::int64_t> positions(const Part& part) const { return positions_of(schedule_.runs(part)); }

    Cell& cell(int rank, Pool pool, int slot, int first_head, int block, int head, std::int64_t token) {
        auto& cells = ranks_[index(rank)].slots[{pool, slot}];
        const auto at = index((head - first_head) * schedule_.block_tokens(block) + token);
        if (cells.size() <= at) cells.resize(at + 1);
        return cells[at];
    }

    /// Calls visit(cell, head, global token) for an operand of an instruction.
    template <class Visit>
    void for_each(int rank, const Instruction& instruction, Pool pool, bool source, const Part& part, Visit visit) {
        const auto& op = instruction.op;
        const int slot = source ? op.source : op.slot(pool);
        const int first =
            source ? instruction.source_first_head : instruction.first_head[index(static_cast<int>(pool))];
        const auto tokens = positions(part);
        if (tokens.empty() || part.heads.count() == 0) return;
        cell(rank, pool, slot, first, part.block, part.heads.end - 1, part.tokens.end - 1);  // makes room
        for (int head = part.heads.begin; head < part.heads.end; ++head) {
            Cell* next = &cell(rank, pool, slot, first, part.block, head, part.tokens.begin);
            for (const auto token : tokens) visit(*next++, head, token);
        }
    }

    /// Checks that an operand's cells hold its tokens.
    void check_tokens(int rank, const Instruction& instruction, Pool pool, bool source, const Part& part) {
        for_each(rank, instruction, pool, source, part, [&](const Cell& cell, int head, std::int64_t token) {
            if (cell.token != token)
                complain(rank, instruction, "{} of head {} holds token {} where token {} is read", to_string(pool),
                         head, cell.token, token);
        });
    }

    /// The cells of an operand, in order.
    std::vector<Cell> read(int rank, const Instruction& instruction, Pool pool, bool source, const Part& part) {
        check_tokens(rank, instruction, pool, source, part);
        std::vector<Cell> cells;
        cells.reserve(index(part.heads.count() * part.tokens.size()));
        for_each(rank, instruction, pool, source, part,
                 [&](const Cell& cell, int, std::int64_t) { cells.push_back(cell); });
        return cells;
    }

    void write(int rank, const Instruction& instruction, Pool pool, const Part& part, const std::vector<Cell>& cells) {
        auto next = cells.begin();
        for_each(rank, instruction, pool, false, part, [&](Cell& cell, int, std::int64_t) { cell = *next++; });
    }

    template <class... Values>
    void complain(int rank, const Instruction& instruction, fmt::format_string<Values...> format, Values&&... values) {
        const auto& code = program_.ranks[index(rank)].code;
        found_.push_back(describe(rank, static_cast<OpIndex>(&instruction - code.data()), instruction.op) + ": " +
                         fmt::format(format, std::forward<Values>(values)...));
    }

    bool may_begin(std::size_t rank, std::size_t op_index) const {
        const auto& state = ranks_[rank];
        const auto& op = program_.ranks[rank].code[op_index].op;
        const auto lane = index(op.lane());
        const auto after = op.after();
        return state.front[lane] < state.queue[lane].size() && state.queue[lane][state.front[lane]] == op_index &&
               std::all_of(after.begin(), after.end(), [&](OpIndex before) { return state.ended[index(before)]; });
    }

    void end(std::size_t rank, std::size_t op_index) {
        ranks_[rank].ended[op_index] = true;
        ++ranks_[rank].front[index(program_.ranks[rank].code[op_index].op.lane())];
    }

    bool advance(std::size_t rank, std::size_t lane) {
        auto& state = ranks_[rank];
        if (state.front[lane] == state.queue[lane].size()) return false;
        const auto op_index = state.queue[lane][state.front[lane]];
        const auto& instruction = program_.ranks[rank].code[op_index];
        const auto& op = instruction.op;
        if (op.kind == OpKind::receive || !may_begin(rank, op_index)) return false;
        const int self = static_cast<int>(rank);
        if (op.kind == OpKind::send) {
            const auto peer = index(op.peer), partner = index(instruction.partner);
            if (!may_begin(peer, partner)) return false;
            const auto& receive = program_.ranks[peer].code[partner];
            const auto cells = read(self, instruction, op.pool, false, op.part);
            write(op.peer, receive, op.pool, receive.op.part, cells);
            end(peer, partner);
        } else {
            compute(self, instruction);
        }
        end(rank, op_index);
        return true;
    }

    void compute(int rank, const Instruction& instruction) {
        const auto& op = instruction.op;
        switch (op.kind) {
            case OpKind::fetch: {
                std::vector<Cell> cells;
                for (int head = op.part.heads.begin; head < op.part.heads.end; ++head)
                    for (auto t = op.part.tokens.begin; t < op.part.tokens.end; ++t)
                        cells.push_back(cell(op.peer, op.pool, 0, 0, op.part.block, head, t));
                return write(rank, instruction, op.pool, op.part, cells);
            }
            case OpKind::copy:
                return write(rank, instruction, op.pool, op.part, read(rank, instruction, op.pool, true, op.read()));
            case OpKind::add: return take_in(rank, instruction, false);
            case OpKind::merge: return take_in(rank, instruction, op.begins);
            case OpKind::attend: return attend(rank, instruction);
            case OpKind::expand: return expand(rank, instruction);
            case OpKind::compress: return compress(rank, instruction);
            case OpKind::send:
            case OpKind::receive: return;
        }
    }

    void expand(int rank, const Instruction& instruction) {
        const auto& op = instruction.op;
        check_tokens(rank, instruction, Pool::latent, true, op.read());
        for_each(rank, instruction, Pool::kv, false, op.part, [](Cell& cell, int, std::int64_t token) {
            cell = {token, {}};
        });
    }

    void compress(int rank, const Instruction& instruction) {
        const auto& op = instruction.op;
        const auto from = read(rank, instruction, Pool::dkv, true, op.read());
        check_tokens(rank, instruction, Pool::latent, false, op.part);
        if (op.adds) check_tokens(rank, instruction, Pool::dlatent, false, op.part);
        std::size_t token_index = 0;
        const auto tokens = index(op.part.tokens.size());
        for_each(rank, instruction, Pool::dlatent, false, op.part, [&](Cell& cell, int, std::int64_t token) {
            if (!op.adds) cell = {token, {}};
            Cell part{token, {}};
            for (int h = 0; h < op.read().heads.count(); ++h)
                part.taken[index(op.read().heads.begin + h)] = from[index(h) * tokens + token_index].taken[0];
            unite(rank, instruction, cell, part, 0);
            ++token_index;
        });
    }

    void take_in(int rank, const Instruction& instruction, bool overwrites) {
        const auto& op = instruction.op;
        const auto from = read(rank, instruction, op.pool, true, op.read());
        if (!overwrites) check_tokens(rank, instruction, op.pool, false, op.part);
        auto next = from.begin();
        for_each(rank, instruction, op.pool, false, op.part, [&](Cell& cell, int head, std::int64_t token) {
            if (overwrites) cell = {token, {}};
            unite(rank, instruction, cell, *next++, head);
        });
    }

    void unite(int rank, const Instruction& instruction, Cell& to, const Cell& from, int head) {
        for (std::size_t i = 0; i < to.taken.size(); ++i) {
            if ((to.taken[i] & from.taken[i]).any())
                complain(rank, instruction, "head {} of token {} takes in something twice", head, to.token);
            to.taken[i] |= from.taken[i];
        }
    }

    void attend(int rank, const Instruction& instruction) {
        const auto& op = instruction.op;
        Tokens rows, keys;
        for (const auto position : positions(op.rows())) rows.set(index(position));
        for (const auto position : positions(op.part)) keys.set(index(position));
        std::int64_t pair_count = 0;
        for (std::size_t row = 0; row < seen_.size(); ++row)
            if (rows[row]) pair_count += static_cast<std::int64_t>((seen_[row] & keys).count());
        if (pair_count != op.pair_count)
            complain(rank, instruction, "it says {} visible pairs, these are {}", op.pair_count, pair_count);

        check_tokens(rank, instruction, Pool::q, false, op.rows());
        check_tokens(rank, instruction, Pool::kv, false, op.part);
        if (backward()) check_tokens(rank, instruction, Pool::dout, false, op.rows());
        const auto sums = backward() ? Pool::dq : op.begins && op.ends ? Pool::output : Pool::state;
        for_each(rank, instruction, sums, false, op.rows(), [&](Cell& cell, int head, std::int64_t row) {
            if (op.begins) cell = {row, {}};
            if (cell.token != row)
                complain(rank, instruction, "{} holds row {}, not {}", to_string(sums), cell.token, row);
            Cell part;
            part.taken[0] = seen_[index(row)] & keys;
            auto& attended = attended_[index(head) * seen_.size() + index(row)];
            if ((attended & part.taken[0]).any())
                complain(rank, instruction, "row {} of head {} has attended to some of these keys", row, head);
            attended |= part.taken[0];
            unite(rank, instruction, cell, part, head);
        });
        if (!backward() && op.ends && !op.begins)
            write(rank, instruction, Pool::output, op.rows(), read(rank, instruction, Pool::state, false, op.rows()));
        if (!backward()) return;
        for_each(rank, instruction, Pool::dkv, false, op.part, [&](Cell& cell, int head, std::int64_t key) {
            Cell part{key, {}};
            for (int g = 0; g < group(); ++g)
                if (const int query_head = head * group() + g;
                    op.rows().heads.begin <= query_head && query_head < op.rows().heads.end)
                    part.taken[index(g)] = seers_[index(key)] & rows;
            if (!op.adds) return void(cell = part);
            if (cell.token != key) complain(rank, instruction, "dkv holds key {}, not {}", cell.token, key);
            unite(rank, instruction, cell, part, head);
        });
    }

    void check_results() {
        for (int rank = 0; rank < schedule_.ranks(); ++rank) {
            const auto check = [&](Pool pool, int parts, const std::vector<Tokens>& expected) {
                const int block = schedule_.own_block(pool, rank);
                for (int head = 0; head < heads(pool); ++head)
                    for (std::int64_t t = 0; t < schedule_.block_tokens(block); ++t) {
                        const auto& it = cell(rank, pool, 0, 0, block, head, t);
                        for (int i = 0; i < parts; ++i)
                            if (it.taken[index(i)] != expected[index(it.token)])
                                found_.push_back(fmt::format(
                                    "{} of head {}, token {} on rank {} has taken in {} of {}", to_string(pool), head,
                                    it.token, rank, it.taken[index(i)].count(), expected[index(it.token)].count()));
                    }
            };
            if (!backward()) {
                check(Pool::output, 1, seen_);
                continue;
            }
            check(Pool::dq, 1, seen_);
            if (schedule_.keeps(Pool::dlatent))
                check(Pool::dlatent, heads(Pool::kv), seers_);
            else
                check(Pool::dkv, group(), seers_);
        }
    }

    const Schedule& schedule_;
    const Program& program_;
    std::vector<Tokens> seen_, seers_;  // by row: the keys that it sees; by key: the rows that see it
    std::vector<Tokens> attended_;      // by query head and row, on all ranks
    std::vector<RankState> ranks_;
    std::vector<std::string> found_;
};

}  // namespace

Problem problem_of(const Mask& mask) {
    auto problem = eight_heads;
    problem.tokens = mask.tokens();
    return problem;
}

std::unique_ptr<Schedule> schedule_of(const Case& c, const ScheduleOptions& options) {
    return make_schedule(problem_of(c.mask), c.mask, c.layout, options);
}

Case exact_case(const std::string& mask, const std::string& layout, std::int64_t tokens, int ranks) {
    auto made = make_mask(mask, tokens);
    auto laid_out = make_layout(layout, made, ranks);
    return {std::move(made), std::move(laid_out)};
}

std::ostream& operator<<(std::ostream& out, const Traffic& t) {
    return out << t.messages << " messages, " << t.bytes << " bytes";
}

Traffic traffic_of(const Schedule& schedule, Pool pool) {
    Traffic traffic;
    for (const auto& ops : written(schedule))
        for (const auto& op : ops)
            if ((op.kind == OpKind::send || op.kind == OpKind::fetch) && op.pool == pool) {
                ++traffic.messages;
                traffic.bytes += op.bytes;
            }
    return traffic;
}

Written written(const Schedule& schedule) {
    Written all;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        all.emplace_back();
        auto stream = schedule.ops(rank);
        while (const Op* op = stream.next()) all.back().push_back(*op);
    }
    return all;
}

WrittenSchedule::WrittenSchedule(const Schedule& like, Written ops)
    : Schedule(like.problem(), like.mask(), like.layout(), like.options()), ops_(std::move(ops)) {
    if (like.problem().latent.is_given() && like.keeps(Pool::kv)) expand_at_owner();
    set_channels(like.channels());
    for (const auto& group : like.slots()) add_slots(group.pool, group.count, group.heads, group.tokens, group.dtype);
    take_blocks(like);
}

Ops WrittenSchedule::ops(int rank) const {
    for (const auto& op : ops_[index(rank)]) co_yield op;
}

std::vector<std::string> violations(const Schedule& schedule, const Written& ops) {
    const WrittenSchedule made(schedule, ops);
    try {
        const auto program = resolve(made);
        return Execution(made, program).run();
    } catch (const Error& error) {
        return {error.what()};
    }
}

bool happens_before(const std::vector<Op>& ops, OpIndex first, OpIndex second) {
    std::vector<std::vector<bool>> before(ops.size(), std::vector<bool>(ops.size()));
    std::map<Lane, OpIndex> last;
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const auto follow = [&](OpIndex op_index) {
            before[i][index(op_index)] = true;
            for (std::size_t q = 0; q < index(op_index); ++q)
                if (before[index(op_index)][q]) before[i][q] = true;
        };
        if (const auto it = last.find(ops[i].lane()); it != last.end()) follow(it->second);
        for (const auto op_index : ops[i].after()) follow(op_index);
        last[ops[i].lane()] = static_cast<OpIndex>(i);
    }
    return before[index(second)][index(first)];
}

}  // namespace ringlab::layouts::testing
