#include "layouts/program/operation_check.hpp"

namespace ringlab::layouts {

bool same_tokens(const Schedule& schedule, const Part& a, const Part& b) {
    return (a.block == b.block && a.tokens == b.tokens) || schedule.runs(a) == schedule.runs(b);
}

template <class Expect>
void OperationCheck::check_bytes(const Expect& expect, const Op& op) const {
    const auto bytes = op.transfers() ? schedule_.bytes(op.pool, op.slot(), op.part)
                                      : schedule_.bytes(op.source_pool(), op.source, op.read());
    expect(op.bytes == bytes, "it has {} bytes; its part has {}", op.bytes, bytes);
    const bool same_heads = op.source_pool() != op.pool || op.read().heads == op.part.heads;
    const bool same = op.transfers() || (same_heads && same_tokens(schedule_, op.read(), op.part));
    expect(same, "it reads other tokens or heads than it writes");
}

template <class Expect>
void OperationCheck::check_heads(const Expect& expect, const Op& op) const {
    const auto group = static_cast<int>(schedule_.problem().query_heads_per_kv_head());
    const auto rows = op.rows().heads, keys = op.part.heads;
    const bool all = rows.begin == keys.begin * group && rows.end == keys.end * group;
    const bool some_of_one = keys.count() == 1 && keys.begin * group <= rows.begin && rows.end <= keys.end * group;
    expect(all || some_of_one, "query heads {}..{} do not read K,V heads {}..{} as one block", rows.begin, rows.end - 1,
           keys.begin, keys.end - 1);
}

template <class Expect>
void OperationCheck::check_operand(const Expect& expect, const Operand& operand) const {
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
                   "{} slot {} has room for {} heads of {} tokens, not {} of {}", to_string(pool), slot, group.heads,
                   group.tokens, part.heads.count(), schedule_.block_tokens(part.block));
            return;
        }
        first += group.count;
    }
    expect(false, "it uses {} slot {}, but the schedule asks for scratch slots 1..{}", to_string(pool), slot,
           first - 1);
}

void OperationCheck::operator()(OpIndex which, const Op& op) const {
    const auto expect = [&](bool right, std::string_view format, const auto&... values) {
        if (!right) fail("{}: {}", describe(rank_, which, op), fmt::vformat(format, fmt::make_format_args(values...)));
    };
    for (const auto before : op.after()) expect(before < which, "it waits for operation {}, a later one", before);
    if (op.transfers()) {
        expect(0 <= op.peer && op.peer < schedule_.ranks() && op.peer != rank_, "there is no such peer");
        expect(0 <= op.channel && op.lane() < schedule_.lanes(), "channel {} of {} channels", op.channel,
               schedule_.channels().size());
    }
    const bool backward = schedule_.options().pass == Pass::backward;
    const bool may_add = (op.kind == OpKind::attend && backward) || op.kind == OpKind::compress;
    expect(!op.adds || may_add, "only attends of the backward pass and compress operations may add to a gradient");
    const bool latent = schedule_.problem().latent.is_given();
    expect(op.kind != OpKind::expand || latent, "the problem has no latent");
    expect(op.kind != OpKind::compress || (latent && backward), "this pass has no gradient of a latent");
    if (op.kind != OpKind::attend) check_bytes(expect, op);
    if (op.kind == OpKind::fetch)
        expect((op.pool == Pool::kv || op.pool == Pool::latent) && op.part.block == op.peer,
               "it must fetch the peer's own K,V or latent");
    if (op.kind == OpKind::receive || op.kind == OpKind::fetch || op.kind == OpKind::copy)
        expect(op.slot() > 0 || !is_input(op.pool), "it would overwrite the rank's own {}", to_string(op.pool));
    if (op.kind == OpKind::attend) check_heads(expect, op);
    for (const auto& operand : Operands(op, schedule_.options().pass)) check_operand(expect, operand);
}

}  // namespace ringlab::layouts
