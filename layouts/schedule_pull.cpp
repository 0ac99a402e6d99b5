#include "layouts/schedule.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// Every rank fetches the blocks that it needs straight from their owners, nearest first, and attends to them as they
/// come, its own first: all its attends are one launch, which waits for a part of a block before it reads it. So every
/// part has a slot of its own until the end of the pass, and memory grows with the number of ranks.
///
/// Forward: some kv heads of all blocks after some of all blocks, since a query row's state stays in registers from its
/// first to its last block.
///
/// Backward: block after block, half of the kv heads at a time, as a block's gradient needs nothing of another's. The
/// own block's second half comes last, while the last gradients are on their way home, where the owner sums the parts
/// in a fixed order.
class PullSchedule : public Schedule {
public:
    /// `parts` of the kv heads of a block come one by one in the forward pass; 0 leaves their number to the schedule.
    PullSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                 int parts)
        : Schedule(problem, mask, layout, options), groups_(parts) {
        const int heads = all_heads().count();
        if (options.pass == Pass::backward)
            groups_ = heads % 2 == 0 ? 2 : 1;
        else if (parts == 0)
            groups_ = default_parts();
        require(heads % groups_ == 0, "{} kv heads do not divide into {} parts; the parts must divide the kv heads",
                heads, groups_);
    }

    Ops ops(int rank) const override { return options().pass == Pass::forward ? forward(rank) : backward(rank); }

    SlotPlan slots() const override {
        const int parts = (ranks() - 1) * groups_, heads = all_heads().count() / groups_;
        if (parts == 0) return {};
        return options().pass == Pass::forward ? SlotPlan{parts, heads, 0, 0}
                                               : SlotPlan{parts, heads, 2 * parts, heads};
    }

private:
    /// As many as leave each large enough to be worth a message.
    int default_parts() const {
        constexpr std::int64_t worth_a_message = std::int64_t{4} << 20;  // bytes
        std::int64_t head_bytes = 0;
        for (int owner = 0; owner < ranks(); ++owner)
            head_bytes = std::max(head_bytes, block_bytes(Payload::kv, owner, 1));
        const int heads = all_heads().count();
        int parts = heads;
        while (parts > 1 && (heads % parts != 0 || heads / parts * head_bytes < worth_a_message)) --parts;
        return parts;
    }

    HeadRange heads_of(int group) const {
        const int size = all_heads().count() / groups_;
        return {group * size, (group + 1) * size};
    }
    int behind(int rank, int distance) const { return (rank - distance + ranks()) % ranks(); }

    /// Of a part of the block `distance` ranks behind; of the gradient that goes there, and of the one that comes from
    /// as far ahead.
    int block_slot(int distance, int group) const { return distance == 0 ? 0 : 1 + (distance - 1) * groups_ + group; }
    int outgoing_slot(int distance, int group) const { return block_slot(distance, group); }
    int incoming_slot(int distance, int group) const { return (ranks() - 1) * groups_ + block_slot(distance, group); }

    Op fetch(int rank, int distance, int group) const {
        const int owner = behind(rank, distance);
        return transfer(OpKind::fetch, Payload::kv, distance, owner, owner, heads_of(group),
                        block_slot(distance, group));
    }

    // As in the ring, one Op throughout.

    Ops forward(int rank) const {
        const bool merges = options().accumulation == Accumulation::partials;
        Op op;
        bool continues = false;
        for (int group = 0; group < groups_; ++group)
            for (int distance = 0; distance < ranks(); ++distance) {
                const int owner = behind(rank, distance);
                if (!needs(rank, owner)) continue;
                OpIndex arrival = -1;
                if (distance > 0) {
                    op = fetch(rank, distance, group);
                    arrival = co_yield op;
                }
                op = attend(rank, distance, owner, heads_of(group), block_slot(distance, group), -1);
                op.fused = continues;
                op.run_after(arrival);
                co_yield op;
                continues = !merges;
                if (merges) {
                    op = merge(rank, distance, owner, heads_of(group));
                    co_yield op;
                }
            }
    }

    Ops backward(int rank) const {
        Op op;
        bool continues = false;
        // Distance 0 twice: the own block's first part, and after all others what is left of it.
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
                op = attend(rank, distance, owner, heads_of(group), block_slot(distance, group),
                            distance == 0 ? 0 : outgoing_slot(distance, group));
                op.fused = continues;
                op.run_after(arrival);
                continues = true;
                const OpIndex attended = co_yield op;
                if (distance > 0) {
                    op = transfer(OpKind::send, Payload::dkv, distance, owner, owner, heads_of(group),
                                  outgoing_slot(distance, group));
                    op.run_after(attended);
                    co_yield op;
                }
            }
        }
        for (int distance = 1; distance < ranks(); ++distance) {
            const int ahead = (rank + distance) % ranks();
            if (!needs(ahead, rank)) continue;
            for (int group = 0; group < groups_; ++group) {
                op = transfer(OpKind::receive, Payload::dkv, distance, ahead, rank, heads_of(group),
                              incoming_slot(distance, group));
                const OpIndex arrival = co_yield op;
                op = add(distance, rank, heads_of(group), 0, incoming_slot(distance, group));
                op.run_after(arrival);
                co_yield op;
            }
        }
    }

    int groups_;  // equal parts of the kv heads
};

const ScheduleRegistration registration(
    "pull", "pull[:PARTS]",
    "every rank fetches the K/V blocks that it needs from their owners, forward in PARTS of the kv heads, and attends "
    "to "
    "all in one launch",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        const auto parts = arguments.empty() ? 0 : parse_count(arguments, "the number of parts", 1);
        require(parts <= problem.kv_heads, "{} parts of {} kv heads; at most one part per kv head", parts,
                problem.kv_heads);
        return std::make_unique<PullSchedule>(problem, mask, layout, options, static_cast<int>(parts));
    });

}  // namespace
}  // namespace ringlab::layouts
