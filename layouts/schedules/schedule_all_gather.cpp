#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <optional>

namespace ringlab::layouts {
namespace {

/// A rank receives all the blocks that it needs directly from their owners, one group of kv heads at a time, then
/// attends to them one after another, its own first. In the backward pass it sends each block's gradient directly to
/// the owner, which sums the parts in a fixed order.
class AllGatherSchedule : public Schedule {
public:
    AllGatherSchedule(const ScheduleInput& input, int groups) : Schedule(input), groups_(std::max(1, groups)) {
        set_channels({"K,V"}, {"dK,dV"});
        const auto tokens = layout().largest_shard();
        find_rank_symmetry();
        const auto heads = heads_of_group(0, groups_);
        if (partials()) add_slots(Pool::output, 1, query_heads(heads).count(), largest_rows());
        if (ranks() == 1) return;
        // Two head groups are in memory at a time: one is attended to, the next is on its way.
        add_slots(Pool::kv, (ranks() - 1) * std::min(2, groups_), heads.count(), tokens);
        if (options().pass == Pass::backward) add_slots(Pool::dkv, 4, heads.count(), tokens, options().gradient_dtype);
    }

    Ops ops(int rank) const override {
        const bool backward = options().pass == Pass::backward;
        const int last = farthest_needed(rank);
        // Gradient slots 1 and 2 hold outgoing parts in turn, 3 and 4 incoming ones.
        std::array<OpIndex, 5> gradient_read{-1, -1, -1, -1, -1};  // by slot: the operation that last read it
        std::array<OpIndex, 2> group_attended{-1, -1};             // by parity of the group: its last attend
        std::optional<Op> pending_add;  // of an incoming part, delayed by one attend, which hides its transfer

        for (int group = 0; group < groups_; ++group) {
            const auto heads = heads_of_group(group, groups_);
            const auto rows = rows_of(rank, query_heads(heads)), own = part(rank, heads);
            auto& attended = group_attended[index(group % 2)];
            const OpIndex slots_free = attended;  // the last attend of the group before the previous one
            const auto block_slot = [&](int distance) {
                return distance == 0 ? 0 : group % 2 * (ranks() - 1) + distance;
            };

            OpIndex arrival = -1;
            for (int distance = 1; distance < ranks(); ++distance) {
                const int to = ahead(rank, distance), from = behind(rank, distance);
                if (needs(to, rank)) co_yield transfer(OpKind::send, kv_channel, Pool::kv, distance, to, own, 0);
                if (needs(rank, from)) {
                    auto op = transfer(OpKind::receive, kv_channel, Pool::kv, distance, from, part(from, heads),
                                       block_slot(distance));
                    op.run_after(slots_free);
                    arrival = co_yield op;
                }
            }

            bool begun = false;
            bool continues = false;  // whether the compute lane's last operation is an attend of this group
            for (int distance = 0; distance < ranks(); ++distance) {
                const int to = ahead(rank, distance), from = behind(rank, distance);
                if (needs(rank, from)) {
                    const auto keys = part(from, heads);
                    const int outgoing = distance == 0 ? 0 : 1 + distance % 2;
                    auto& outgoing_read = gradient_read[index(outgoing)];
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
                        op = merge(distance, rows, 0, 1);
                        op.begins = !begun;
                        co_yield op;
                    }
                    begun = true;
                    if (backward && distance > 0) {
                        op = transfer(OpKind::send, dkv_channel, Pool::dkv, distance, from, keys, outgoing);
                        op.run_after(attended);
                        outgoing_read = co_yield op;
                    }
                }
                if (pending_add) {
                    gradient_read[index(pending_add->source)] = co_yield *pending_add;
                    pending_add.reset();
                    continues = false;
                }
                if (backward && distance > 0 && needs(to, rank)) {
                    const int incoming = 3 + distance % 2;
                    auto op = transfer(OpKind::receive, dkv_channel, Pool::dkv, distance, to, own, incoming);
                    op.run_after(gradient_read[index(incoming)]);
                    pending_add = add(Pool::dkv, distance, own, 0, incoming);
                    pending_add->run_after(co_yield op);
                }
            }
        }
        if (pending_add) co_yield *pending_add;
    }

private:
    enum Channel : int { kv_channel, dkv_channel };

    int groups_;  // the number of equal groups of kv heads
};

const ScheduleRegistration registered_all_gather(
    {"all-gather[:GROUPS]",
     "K/V of all ranks are gathered, one of GROUPS kv-head groups (1) at a time, while the previous group is attended "
     "to",
     made_of_head_groups<AllGatherSchedule>,
     {"all-gather", "all-gather:2", "all-gather:4"}});

}  // namespace
}  // namespace ringlab::layouts
