#include "layouts/program/slot_contents.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

constexpr std::size_t index(Pool pool) { return static_cast<std::size_t>(pool); }

bool overlap(HeadRange a, HeadRange b) { return a.begin < b.end && b.begin < a.end; }
bool overlap(Interval a, Interval b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace

SlotContents::SlotContents(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {
    std::array<int, pool_count> scratch{};
    for (const auto& group : schedule.slots()) scratch[index(group.pool)] += group.count;
    for (std::size_t pool = 0; pool < slots_.size(); ++pool) {
        slots_[pool].resize(static_cast<std::size_t>(scratch[pool]) + 1);
        auto& own = slots_[pool].front();
        own.block = schedule.own_block(static_cast<Pool>(pool), rank);
        own.heads = {0, heads_of(schedule.problem(), static_cast<Pool>(pool))};
    }
}

bool SlotContents::covered(Rectangle wanted, std::span<const Rectangle> by) {
    const auto& [heads, tokens] = wanted;
    if (heads.count() <= 0 || tokens.size() == 0) return true;
    for (std::size_t i = 0; i < by.size(); ++i) {
        const auto& piece = by[i];
        if (!overlap(heads, piece.heads) || !overlap(tokens, piece.tokens)) continue;
        const auto rest = by.subspan(i + 1);
        const Interval middle{std::max(tokens.begin, piece.tokens.begin), std::min(tokens.end, piece.tokens.end)};
        const HeadRange shared{std::max(heads.begin, piece.heads.begin), std::min(heads.end, piece.heads.end)};
        return covered({heads, {tokens.begin, middle.begin}}, rest) &&
               covered({heads, {middle.end, tokens.end}}, rest) &&
               covered({{heads.begin, shared.begin}, middle}, rest) && covered({{shared.end, heads.end}, middle}, rest);
    }
    return false;
}

/// With a latent, K and V are no inputs, because they are expanded from it.
bool SlotContents::is_input(Pool pool) const {
    return layouts::is_input(pool) && (pool != Pool::kv || !schedule_.problem().latent.is_given());
}

/// Whether an operand may be read before it was written: the rank's own inputs, and its sums of gradients, which start
/// from 0.
bool SlotContents::is_given(const Operand& operand) const {
    return operand.slot == 0 && (is_input(operand.pool) || operand.pool == Pool::dkv || operand.pool == Pool::dlatent);
}

bool SlotContents::covers_own(Pool pool) const {
    const auto& own = slots_[index(pool)].front();
    return covered({own.heads, {0, schedule_.block_tokens(own.block)}}, own.written);
}

/// A write to a scratch slot that is of another block, or of heads that the slot does not hold, discards its contents.
void SlotContents::replace_contents(Slot& slot, const Operand& operand) const {
    const auto& part = operand.part;
    const bool fits = slot.block == part.block && slot.heads.contains(part.heads);
    if (operand.slot == 0 || fits) return;
    ++slot.generation;
    slot.block = part.block;
    slot.heads = part.heads;
    slot.written.clear();
}

void SlotContents::check_order(OpIndex which, const Operand& operand, const Slot& slot, const Before& before) const {
    const bool writes = operand.access != Access::read;
    for (const auto& visit : slot.visits) {
        if (visit.op == which || (!writes && !visit.writes) || before(visit.op, which)) continue;
        const bool apart = visit.generation == slot.generation && (!overlap(visit.where.heads, operand.part.heads) ||
                                                                   !overlap(visit.where.tokens, operand.part.tokens));
        require(apart, "nothing makes it wait for operation {}, which also accesses {} slot {}", visit.op,
                to_string(operand.pool), operand.slot);
    }
}

void SlotContents::require_finished() const {
    for (const auto& slot : slots_[index(Pool::state)])
        require(slot.written.empty(), "rank {}: attends of rows of block {} begin and never end", rank_, slot.block);
}

int SlotContents::use(OpIndex which, const Operand& operand, const Before& before) {
    const auto& [pool, number, part, access, last] = operand;
    auto& slot = slots_[index(pool)][static_cast<std::size_t>(number)];
    const bool reads = access != Access::write, writes = access != Access::read;
    if (!reads) replace_contents(slot, operand);
    const Rectangle where{part.heads, part.tokens};
    if (reads) {
        require(slot.block == part.block && slot.heads.contains(part.heads),
                "{} slot {} is read for heads {}..{} of block {}, but {}", to_string(pool), number, part.heads.begin,
                part.heads.end - 1, part.block,
                slot.block < 0
                    ? "nothing is in it"
                    : fmt::format("holds heads {}..{} of block {}", slot.heads.begin, slot.heads.end - 1, slot.block));
        const bool there = covered(where, slot.written);
        require(there || is_given(operand), "{} slot {} is read before all of it was written", to_string(pool), number);
        if (number == 0 && !there) read_before_write_[index(pool)] = true;
    }
    check_order(which, operand, slot, before);
    if (writes) {
        std::erase_if(slot.visits, [&](const SlotAccess& visit) {
            return before(visit.op, which) &&
                   (visit.generation != slot.generation ||
                    (part.heads.contains(visit.where.heads) && part.tokens.begin <= visit.where.tokens.begin &&
                     visit.where.tokens.end <= part.tokens.end));
        });
    }
    if (writes || last)
        std::erase_if(slot.written, [&](const Rectangle& old) {
            return part.heads.contains(old.heads) && part.tokens.begin <= old.tokens.begin &&
                   old.tokens.end <= part.tokens.end;
        });
    if (writes && !last) slot.written.push_back(where);
    const bool never_written = number == 0 && is_input(pool);
    if (!never_written) slot.visits.push_back({which, slot.generation, where, writes});
    return slot.heads.begin;
}

}  // namespace ringlab::layouts
