#include "layouts/gathered.hpp"

#include <algorithm>
#include <optional>

namespace ringlab::layouts {

GatheredSchedule::GatheredSchedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                   const ScheduleOptions& options, Style style)
    : Schedule(problem, mask, layout, options), style_(style) {
    require(style.groups >= 1 && problem.kv_heads % style.groups == 0,
            "{} kv heads do not divide into {} head groups; the groups must divide the kv heads", problem.kv_heads,
            style.groups);
    set_channels({"K,V", "dK,dV"});
    const auto tokens = layout.largest_shard();
    const auto heads = group_heads(0);
    if (partials()) add_slots(Pool::output, 1, query_heads(heads).count(), tokens);
    if (ranks() == 1) return;
    // Two head groups are in memory at a time: one attended to, the next on its way.
    add_slots(Pool::kv, (ranks() - 1) * std::min(2, style_.groups), heads.count(), tokens);
    if (options.pass == Pass::backward) add_slots(Pool::dkv, 4, heads.count(), tokens, options.gradient_dtype);
}

HeadRange GatheredSchedule::group_heads(int group) const {
    const int size = kv_heads().count() / style_.groups;
    return {group * size, (group + 1) * size};
}

/// How far behind the last owner is of which the rank sees anything; -1 if there is none.
int GatheredSchedule::last_needed(int rank) const {
    int distance = ranks() - 1;
    while (distance >= 0 && !needs(rank, (rank - distance + ranks()) % ranks())) --distance;
    return distance;
}

Ops GatheredSchedule::ops(int rank) const {
    const bool backward = options().pass == Pass::backward;
    const int last = last_needed(rank);
    // Gradient slots 1 and 2 hold outgoing parts, 3 and 4 incoming ones, in turn.
    std::array<OpIndex, 5> gradient_read{-1, -1, -1, -1, -1};  // by slot: the operation that last read it
    std::array<OpIndex, 2> group_attended{-1, -1};             // by parity of the group: its last attend
    std::optional<Op>
        pending_add;  // of an incoming part, kept back for one attend so that it need not wait for the wire

    bool continues = false;  // whether the compute lane's last operation is an attend of the launch that is still open
    for (int group = 0; group < style_.groups; ++group) {
        const auto heads = group_heads(group);
        const auto rows = part(rank, query_heads(heads)), own = part(rank, heads);
        auto& attended = group_attended[static_cast<std::size_t>(group % 2)];
        const OpIndex slots_free = attended;  // by the group before the previous one
        const auto block_slot = [&](int distance) { return distance == 0 ? 0 : group % 2 * (ranks() - 1) + distance; };
        bool begun = false;

        OpIndex arrival = -1;
        for (int distance = 1; distance < ranks() && !style_.one_sided; ++distance) {
            const int ahead = (rank + distance) % ranks(), behind = (rank - distance + ranks()) % ranks();
            if (needs(ahead, rank)) co_yield transfer(OpKind::send, kv_channel, Pool::kv, distance, ahead, own, 0);
            if (needs(rank, behind)) {
                auto op = transfer(OpKind::receive, kv_channel, Pool::kv, distance, behind, part(behind, heads),
                                   block_slot(distance));
                op.run_after(slots_free);
                arrival = co_yield op;
            }
        }

        if (!style_.one_sided) continues = false;  // a collective ends before its group's launch begins
        for (int distance = 0; distance < ranks(); ++distance) {
            const int ahead = (rank + distance) % ranks(), behind = (rank - distance + ranks()) % ranks();
            if (needs(rank, behind)) {
                const auto keys = part(behind, heads);
                if (style_.one_sided && distance > 0) {
                    auto op =
                        transfer(OpKind::fetch, kv_channel, Pool::kv, distance, behind, keys, block_slot(distance));
                    op.run_after(slots_free);
                    arrival = co_yield op;
                }
                const int outgoing = distance == 0 ? 0 : 1 + distance % 2;
                auto& outgoing_read = gradient_read[static_cast<std::size_t>(outgoing)];
                auto op = attend(distance, rows, keys, 0, block_slot(distance));
                op.slot(Pool::dkv) = outgoing;
                op.begins |= !begun;
                op.ends |= distance == last;
                op.fused = continues;
                op.run_after(arrival);
                if (backward) op.run_after(outgoing_read);
                attended = co_yield op;
                continues = !partials();
                if (partials()) {
                    auto taken = merge(distance, rows, 0, 1);
                    taken.begins = !begun;
                    co_yield taken;
                }
                begun = true;
                if (backward && distance > 0) {
                    auto sent = transfer(OpKind::send, dkv_channel, Pool::dkv, distance, behind, keys, outgoing);
                    sent.run_after(attended);
                    outgoing_read = co_yield sent;
                }
            }
            if (pending_add) {
                gradient_read[static_cast<std::size_t>(pending_add->source)] = co_yield *pending_add;
                pending_add.reset();
                continues = false;
            }
            if (backward && distance > 0 && needs(ahead, rank)) {
                const int incoming = 3 + distance % 2;
                auto received = transfer(OpKind::receive, dkv_channel, Pool::dkv, distance, ahead, own, incoming);
                received.run_after(gradient_read[static_cast<std::size_t>(incoming)]);
                pending_add = add(Pool::dkv, distance, own, 0, incoming);
                pending_add->run_after(co_yield received);
            }
        }
    }
    if (pending_add) co_yield *pending_add;
}

}  // namespace ringlab::layouts
