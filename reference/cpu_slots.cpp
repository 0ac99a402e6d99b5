#include "reference/cpu_slots.hpp"

namespace ringlab::reference {

using layouts::HeadRange;

SlotSet::SlotSet(Shape shape, const layouts::Layout& layout, int rank, int all_heads)
    : shape_(std::move(shape)), rank_(rank) {
    for (int owner = 0; owner < layout.ranks(); ++owner) shard_tokens_.push_back(layout.shard_tokens(owner));
    slots_.resize(static_cast<std::size_t>(shape_.slots) + 1);
    slots_[0].owner = rank;
    slots_[0].heads = {0, all_heads};
    slots_[0].memory.resize(static_cast<std::size_t>(head_bytes(0, rank) * all_heads));
    const auto scratch = shape_.slot_heads * shape_.scratch_bytes_per_head_token * layout.largest_shard();
    for (std::size_t slot = 1; slot < slots_.size(); ++slot)
        slots_[slot].memory.resize(static_cast<std::size_t>(scratch));
}

SlotSet::Slot& SlotSet::at(int slot) {
    require(0 <= slot && slot < static_cast<int>(slots_.size()),
            "rank {}: the schedule uses {} slot {}, but asked for scratch slots 1..{}", rank_, shape_.name, slot,
            slots_.size() - 1);
    return slots_[static_cast<std::size_t>(slot)];
}

std::int64_t SlotSet::head_bytes(int slot, int owner) const {
    return shard_tokens_.at(static_cast<std::size_t>(owner)) *
           (slot == 0 ? shape_.own_bytes_per_head_token : shape_.scratch_bytes_per_head_token);
}

std::span<std::byte> SlotSet::piece(int slot, int owner, HeadRange heads) {
    auto& held = at(slot);
    const auto size = head_bytes(slot, owner);
    const auto offset = static_cast<std::size_t>(size * (heads.begin - held.heads.begin));
    return std::span(held.memory).subspan(offset, static_cast<std::size_t>(size * heads.count()));
}

std::span<std::byte> SlotSet::read(int slot, int owner, HeadRange heads) {
    const auto& held = at(slot);
    require(!held.writing, "rank {}: {} slot {} is read while a transfer writes it", rank_, shape_.name, slot);
    require(held.owner >= 0, "rank {}: {} slot {} is read for heads {}..{} of rank {}'s block, but nothing is in it",
            rank_, shape_.name, slot, heads.begin, heads.end - 1, owner);
    require(held.owner == owner && held.heads.begin <= heads.begin && heads.end <= held.heads.end,
            "rank {}: {} slot {} is read for heads {}..{} of rank {}'s block, but holds heads {}..{} of rank {}'s",
            rank_, shape_.name, slot, heads.begin, heads.end - 1, owner, held.heads.begin, held.heads.end - 1,
            held.owner);
    return piece(slot, owner, heads);
}

std::span<std::byte> SlotSet::change(int slot, int owner, HeadRange heads) {
    const auto& held = at(slot);
    require(!held.writing && held.readers == 0, "rank {}: {} slot {} is written while a transfer works on it", rank_,
            shape_.name, slot);
    return read(slot, owner, heads);
}

std::span<std::byte> SlotSet::write(int slot, int owner, HeadRange heads) {
    if (slot == 0) return change(slot, owner, heads);
    auto& held = at(slot);
    require(!held.writing && held.readers == 0, "rank {}: {} slot {} is written while a transfer works on it", rank_,
            shape_.name, slot);
    require(heads.count() <= shape_.slot_heads, "rank {}: {} slot {} is to hold {} heads, but has room for {}", rank_,
            shape_.name, slot, heads.count(), shape_.slot_heads);
    held.owner = owner;
    held.heads = heads;
    return piece(slot, owner, heads);
}

std::size_t SlotSet::own_offset(int owner, HeadRange heads) const {
    return static_cast<std::size_t>(head_bytes(0, owner) * heads.begin);
}

std::int64_t SlotSet::scratch_bytes() const {
    std::int64_t bytes = 0;
    for (std::size_t slot = 1; slot < slots_.size(); ++slot)
        bytes += static_cast<std::int64_t>(slots_[slot].memory.size());
    return bytes;
}

}  // namespace ringlab::reference
