#include "layouts/schedules/schedule.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// Every rank fetches the blocks that it needs directly from their owners, nearest first, and attends to them as they
/// arrive, its own first. All its attends are fused into one launch, which waits for each group of kv heads of a block
/// before reading it. So each group has a slot of its own until the end of the pass, and memory grows with the number
/// of ranks.
///
/// Forward: all blocks for one group of kv heads, then all blocks for the next group, because the running softmax of a
/// query row stays in registers from its first to its last block.
///
/// Backward: block after block, half of the kv heads at a time, because the gradient of a block does not depend on
/// other blocks. The second half of the own block comes last, while the last gradients are on their way to their
/// owners, which sum the parts in a fixed order.
class PullSchedule : public Schedule {
public:
    /// `groups`: the number of groups of kv heads that are fetched one by one in the forward pass; 0: the schedule
    /// chooses.
    PullSchedule(const ScheduleInput& input, int groups)
        : Schedule(input), groups_(head_groups_of_fused_launch(groups)) {
        find_rank_symmetry();
        const int heads = kv_heads().count();
        set_channels({"K,V"}, {"dK,dV"});
        const auto tokens = layout().largest_shard();
        if (partials()) add_slots(Pool::output, 1, query_heads(heads_of(0)).count(), largest_rows());
        const int count = (ranks() - 1) * groups_;
        add_slots(Pool::kv, count, heads / groups_, tokens);
        if (options().pass == Pass::backward)
            add_slots(Pool::dkv, 2 * count, heads / groups_, tokens, options().gradient_dtype);
    }

    Ops ops(int rank) const override { return options().pass == Pass::forward ? forward(rank) : backward(rank); }

    bool fetches() const override { return true; }

private:
    HeadRange heads_of(int group) const { return heads_of_group(group, groups_); }

    /// Slots of a head group of the block `distance` ranks behind, of the gradient that is sent there, and of the
    /// gradient that arrives from the rank `distance` ahead.
    int block_slot(int distance, int group) const { return distance == 0 ? 0 : 1 + (distance - 1) * groups_ + group; }
    int outgoing_slot(int distance, int group) const { return block_slot(distance, group); }
    int incoming_slot(int distance, int group) const { return (ranks() - 1) * groups_ + block_slot(distance, group); }

    Op fetch(int rank, int distance, int group) const {
        const int owner = behind(rank, distance);
        return transfer(OpKind::fetch, kv_channel, Pool::kv, distance, owner, part(owner, heads_of(group)),
                        block_slot(distance, group));
    }

    Op attend_to(int rank, int distance, int group) const {
        return attend(distance, rows_of(rank, query_heads(heads_of(group))),
                      part(behind(rank, distance), heads_of(group)), 0, block_slot(distance, group));
    }

    // As in RingSchedule, the coroutines build all operations in the same Op.

    Ops forward(int rank) const {
        Op& op = co_await Ops::op_storage;
        bool continues = false;
        const int last = farthest_needed(rank);
        for (int group = 0; group < groups_; ++group) {
            bool begun = false;
            for (int distance = 0; distance <= last; ++distance) {
                if (!needs(rank, behind(rank, distance))) continue;
                OpIndex arrival = -1;
                if (distance > 0) {
                    op = fetch(rank, distance, group);
                    arrival = co_yield op;
                }
                op = attend_to(rank, distance, group);
                op.begins |= !begun;
                op.ends |= distance == last;
                op.fused = continues;
                op.run_after(arrival);
                co_yield op;
                continues = !partials();
                if (partials()) {
                    op = merge(distance, rows_of(rank, query_heads(heads_of(group))), 0, 1);
                    op.begins = !begun;
                    co_yield op;
                }
                begun = true;
            }
        }
    }

    Ops backward(int rank) const {
        Op& op = co_await Ops::op_storage;
        bool continues = false;
        std::array<bool, 2> begun{};  // by group
        // Distance 0 comes twice: the first head group of the own block, and after all other blocks the rest of it.
        for (int place = 0; place <= ranks(); ++place) {
            const int distance = place % ranks(), owner = behind(rank, distance);
            if (!needs(rank, owner)) continue;
            const int first = place == ranks() ? 1 : 0, end = place == 0 ? 1 : groups_;
            for (int group = first; group < end; ++group) {
                OpIndex arrival = -1;
                if (distance > 0) {
                    op = fetch(rank, distance, group);
                    arrival = co_yield op;
                }
                op = attend_to(rank, distance, group);
                op.slot(Pool::dkv) = distance == 0 ? 0 : outgoing_slot(distance, group);
                op.begins = !std::exchange(begun[index(group)], true);
                op.fused = continues;
                op.run_after(arrival);
                continues = true;
                const OpIndex attended = co_yield op;
                if (distance > 0) {
                    op = transfer(OpKind::send, dkv_channel, Pool::dkv, distance, owner, part(owner, heads_of(group)),
                                  outgoing_slot(distance, group));
                    op.run_after(attended);
                    co_yield op;
                }
            }
        }
        for (int distance = 1; distance < ranks(); ++distance) {
            const int reader = ahead(rank, distance);
            if (!needs(reader, rank)) continue;
            for (int group = 0; group < groups_; ++group) {
                const auto own = part(rank, heads_of(group));
                op = transfer(OpKind::receive, dkv_channel, Pool::dkv, distance, reader, own,
                              incoming_slot(distance, group));
                const OpIndex arrival = co_yield op;
                op = add(Pool::dkv, distance, own, 0, incoming_slot(distance, group));
                op.run_after(arrival);
                co_yield op;
            }
        }
    }

    enum Channel : int { kv_channel, dkv_channel };

    int groups_;  // number of equal groups of kv heads
};

const ScheduleRegistration registered_pull({"pull[:GROUPS]",
                                            "every rank fetches the K/V blocks that it needs from their owners, "
                                            "forward in GROUPS of the kv heads, and attends "
                                            "to all in one launch",
                                            made_of_head_groups<PullSchedule>,
                                            {"pull", "pull:2"}});

}  // namespace
}  // namespace ringlab::layouts
