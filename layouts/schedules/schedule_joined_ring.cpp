#include "layouts/schedules/ring.hpp"

#include <algorithm>

namespace ringlab::layouts {
namespace {

/// The ring with all attends fused into one launch. Blocks hop from rank to rank as in the ring, but each group of kv
/// heads of a block keeps a slot of its own until the end of the pass, as in `pull`, and the launch waits for it before
/// reading it. So the running softmax of a query row is never stored, steps have no end of their own, and memory grows
/// with the number of ranks.
///
/// Forward: all blocks for one group of kv heads, then all blocks for the next group, because the running softmax of a
/// query row stays in registers from its first to its last block. Groups go round the ring one after another, in the
/// order in which the launch wants them.
///
/// Backward: block after block, half of the kv heads at a time. The gradient of a half travels one step behind it, and
/// the attend of each rank adds to the gradient that has arrived. The gradient of the first half starts with the
/// owner's own attend, that of the second half with the next rank's attend. The owner's own attend for the second half
/// comes last, while the last gradients are on their way to it, and adds to the gradient that arrives.
///
/// Backward, short blocks have a launch each, because their travelling gradients would wait for each other longer than
/// a launch takes. Each rank sends its part of the gradient of a block to the block's owner as soon as it has attended
/// to the block, so no step waits for a gradient of another rank. The rank's own block comes last and hides the last of
/// these messages. The owner adds up the parts at the end. `joined-ring:steps` has this backward pass for blocks of any
/// length.
class JoinedRing : public RingSchedule {
public:
    /// `groups`: the number of groups of kv heads that hop one by one in the forward pass; both passes are then one
    /// launch. 0: the schedule chooses. `by_steps`: every backward pass has a launch for each block.
    JoinedRing(const ScheduleInput& input, int groups, bool by_steps)
        : RingSchedule(input),
          by_steps_(options().pass == Pass::backward &&
                    (by_steps || (groups == 0 && layout().largest_shard() < long_enough))),
          groups_(by_steps_ ? 1 : head_groups_of_fused_launch(groups)) {
        const int heads = kv_heads().count();
        set_channels({"K,V"}, {"dK,dV"});
        find_hops(0, row_block(0), ranks());
        find_rank_symmetry();
        const auto tokens = layout().largest_shard();
        if (by_steps_) {
            if (partials()) add_slots(Pool::output, 1, query_heads().count(), largest_rows());
            if (ranks() == 1) return;
            add_slots(Pool::kv, ranks() - 1, heads, tokens);
            add_slots(Pool::dkv, outgoing_slots() + ranks() - 1, heads, tokens, options().gradient_dtype);
            return;
        }
        if (partials()) add_slots(Pool::output, 1, query_heads(heads_of(0)).count(), largest_rows());
        if (ranks() == 1) return;
        add_slots(Pool::kv, (ranks() - 1) * groups_, heads / groups_, tokens);
        if (options().pass == Pass::backward)
            add_slots(Pool::dkv, (gradient_types_differ() ? 3 : 2) * groups_, heads / groups_, tokens,
                      options().gradient_dtype);
    }

    Ops ops(int rank) const override {
        const auto self = member_of_all(rank);
        if (by_steps_) return backward_by_steps(self);
        return options().pass == Pass::forward ? fused_forward(self) : fused_backward(self);
    }

private:
    /// Tokens from which on one launch is faster backward. On four H200 it gains 2 % on `ring` at 8Ki and loses 12 % at
    /// 2Ki.
    static constexpr std::int64_t long_enough = 4096;

    HeadRange heads_of(int group) const { return heads_of_group(group, groups_); }
    int block_slot(int step, int group) const { return step == 0 ? 0 : 1 + (step - 1) * groups_ + group; }

    Op hop(OpKind kind, const Member& self, int step, int peer, int group) const {
        return transfer(kind, kv_channel, Pool::kv, step, peer, part(self.at(step), heads_of(group)),
                        block_slot(step, group));
    }

    // Travelling gradients alternate between two slots for each group. A third slot receives the final gradient of the
    // own block if that arrives in another type than it is stored in.
    int gradient_slot(int step, int group) const { return 1 + step % 2 * groups_ + group; }
    int arrival_slot(int group) const { return gradient_types_differ() ? 1 + 2 * groups_ + group : 0; }

    /// The step at which the gradient of a head group of the block from `position` starts.
    int gradient_begins(const Member& self, int position, int group) const {
        const auto [first, last] = hops(self, position);
        int step = first;
        if (group > 0 && first == 0 && last > 0) do
                ++step;
            while (!needs((position + step) % self.size, position));
        return step;
    }

    Op gradient(OpKind kind, int step, int peer, int owner, int group, int slot) const {
        return transfer(kind, dkv_channel_, Pool::dkv, step, peer, part(owner, heads_of(group)), slot);
    }

    // The same for gradients of all heads, of a backward pass by steps: two that leave in turns, and one that arrives
    // from each other rank.
    int outgoing_slots() const { return std::min(2, ranks() - 1); }
    int outgoing_slot(int step) const { return 1 + step % outgoing_slots(); }
    int incoming_slot(int step) const { return outgoing_slots() + step; }

    Op gradient(OpKind kind, int step, int peer, const Part& keys, int slot) const {
        return transfer(kind, dkv_channel_, Pool::dkv, step, peer, keys, slot);
    }

    // As in RingSchedule, the coroutines build all operations in the same Op.

    Ops backward_by_steps(Member self) const {
        Op& op = co_await Ops::op_storage;
        const auto steps = index(self.size);
        std::vector<OpIndex> arrivals(steps, -1), own_arrivals(steps, -1);  // by step
        std::array<OpIndex, 2> sent{-1, -1};                                // by outgoing slot, in turns
        bool begun = false;
        for (int step = 0; step < self.size; ++step) {
            const auto at = index(step);
            if (passes_on(self, step)) {
                op = hop(OpKind::send, self, step, self.next(), 0);
                op.run_after(arrivals[at]);
                co_yield op;
            }
            if (receives(self, step + 1)) {
                op = hop(OpKind::receive, self, step + 1, self.previous(), 0);
                arrivals[at + 1] = co_yield op;
            }
            const auto keys = keys_at(self, step);
            op = attend(step, self.rows, keys, 0, block_slot(step, 0));
            if (step > 0 && op.pair_count > 0) {
                auto& slot_sent = sent[at % 2];
                op.slot(Pool::dkv) = outgoing_slot(step);
                op.begins = !std::exchange(begun, true);
                op.run_after(arrivals[at]);
                op.run_after(slot_sent);
                const OpIndex attended = co_yield op;
                op = gradient(OpKind::send, step, self.rank(self.at(step)), keys, outgoing_slot(step));
                op.run_after(attended);
                slot_sent = co_yield op;
            }
            const int ahead = self.at(-step);
            if (step > 0 && needs(self.rank(ahead), self.position)) {
                op = gradient(OpKind::receive, step, self.rank(ahead), keys_at(self, 0), incoming_slot(step));
                own_arrivals[at] = co_yield op;
            }
        }
        const auto own = keys_at(self, 0);
        op = attend(0, self.rows, own, 0, 0);
        op.begins = !begun;
        bool written = op.pair_count > 0;
        if (written) co_yield op;
        for (int step = 1; step < self.size; ++step) {
            const auto arrival = own_arrivals[index(step)];
            if (arrival < 0) continue;
            op = std::exchange(written, true) ? add(Pool::dkv, step, own, 0, incoming_slot(step))
                                              : copy(Pool::dkv, step, own, 0, own, incoming_slot(step));
            op.run_after(arrival);
            co_yield op;
        }
    }

    Ops fused_forward(Member self) const {
        Op& op = co_await Ops::op_storage;
        const int last = last_needed(self);
        bool continues = false;
        std::vector<OpIndex> arrivals(index(self.size), -1);  // by step
        for (int group = 0; group < groups_; ++group) {
            for (int step = 0; step < self.size; ++step) {
                if (passes_on(self, step)) {
                    op = hop(OpKind::send, self, step, self.next(), group);
                    op.run_after(arrivals[index(step)]);
                    co_yield op;
                }
                if (receives(self, step + 1)) {
                    op = hop(OpKind::receive, self, step + 1, self.previous(), group);
                    arrivals[index(step) + 1] = co_yield op;
                }
            }
            bool begun = false;
            for (int step = 0; step <= last; ++step) {
                const auto rows = rows_of(self.position, query_heads(heads_of(group)));
                op = attend(step, rows, part(self.at(step), heads_of(group)), 0, block_slot(step, group));
                if (op.pair_count == 0) continue;
                op.begins |= !begun;
                op.ends |= step == last;
                op.fused = continues;
                op.run_after(arrivals[index(step)]);
                co_yield op;
                continues = !partials();
                if (partials()) {
                    op = merge(step, rows, 0, 1);
                    op.begins = !begun;
                    co_yield op;
                }
                begun = true;
            }
        }
    }

    Ops fused_backward(Member self) const {
        Op& op = co_await Ops::op_storage;
        using ByGroup = std::array<OpIndex, 2>;
        const ByGroup none{-1, -1};
        const int own_last = hops(self, self.position).last;
        ByGroup arrival = none, next_arrival = none, own_arrivals = none;
        std::array<ByGroup, 2> sent{none, none};  // by gradient slot
        std::array<bool, 2> begun{};
        bool continues = false;
        for (int step = 0; step < self.size; ++step) {
            const int owner = self.at(step);
            const int last = hops(self, owner).last;
            for (int group = 0; group < groups_; ++group) {
                const auto half = index(group);
                if (passes_on(self, step)) {
                    op = hop(OpKind::send, self, step, self.next(), group);
                    op.run_after(arrival[half]);
                    co_yield op;
                }
                if (receives(self, step + 1)) {
                    op = hop(OpKind::receive, self, step + 1, self.previous(), group);
                    next_arrival[half] = co_yield op;
                }
            }
            for (int group = 0; group < groups_; ++group) {
                const auto half = index(group);
                const int begin = gradient_begins(self, owner, group);
                if (step < begin || step > last) continue;
                auto& slot_sent = sent[index(step % 2)][half];
                OpIndex complete = -1;  // when the gradient holds all contributions so far
                if (step > begin) {
                    op = gradient(OpKind::receive, step, self.previous(), owner, group, gradient_slot(step, group));
                    op.run_after(slot_sent);
                    complete = co_yield op;
                }
                op = attend(step, rows_of(self.position, query_heads(heads_of(group))), part(owner, heads_of(group)), 0,
                            block_slot(step, group));
                if (op.pair_count > 0) {
                    // If only the owner contributes to a gradient, it is written to the owner's slot.
                    op.slot(Pool::dkv) = last == 0 ? 0 : gradient_slot(step, group);
                    op.adds = step > begin;
                    op.begins = !std::exchange(begun[half], true);
                    op.fused = std::exchange(continues, true);
                    op.run_after(arrival[half]);
                    op.run_after(step > begin ? complete : last > 0 ? slot_sent : -1);
                    complete = co_yield op;
                }
                if (last > 0) {
                    op = gradient(OpKind::send, step, step == last ? self.rank(owner) : self.next(), owner, group,
                                  gradient_slot(step, group));
                    op.run_after(complete);
                    slot_sent = co_yield op;
                }
            }
            if (own_last > 0 && step == own_last)
                for (int group = 0; group < groups_; ++group) {
                    op = gradient(OpKind::receive, step + 1, self.rank(self.at(-step)), self.position, group,
                                  arrival_slot(group));
                    own_arrivals[index(group)] = co_yield op;
                }
            arrival = next_arrival;
            next_arrival = none;
        }
        co_yield end_own_gradients(self, own_arrivals, !begun[1], continues);
    }

    /// The owner's attend for the second half of the kv heads, which comes last, and gradients that have arrived in
    /// another type than they are summed in. `own_arrivals`: by half, the arrival of the block's gradient, -1 if none
    /// comes. `begins`: whether it is the rank's first attend of the second half, `continues`: whether an attend came
    /// before.
    Ops end_own_gradients(Member self, std::array<OpIndex, 2> own_arrivals, bool begins, bool continues) const {
        Op& op = co_await Ops::op_storage;
        const bool travels = hops(self, self.position).last > 0;
        const bool own_comes_last = groups_ > 1 && travels && needs(self.position, self.position);
        if (own_comes_last) {
            op = attend(0, rows_of(self.position, query_heads(heads_of(1))), part(self.position, heads_of(1)), 0, 0);
            op.begins = begins;
            op.fused = continues;
            op.adds = !gradient_types_differ();
            if (op.adds) op.run_after(own_arrivals[1]);
            co_yield op;
        }
        if (!gradient_types_differ() || !travels) co_return;
        for (int group = 0; group < groups_; ++group) {
            const auto own = part(self.position, heads_of(group));
            op = own_comes_last && group == 1 ? add(Pool::dkv, self.size, own, 0, arrival_slot(group))
                                              : copy(Pool::dkv, self.size, own, 0, own, arrival_slot(group));
            op.run_after(own_arrivals[index(group)]);
            co_yield op;
        }
    }

    bool by_steps_;  // backward, a launch for each block, the own one last
    int groups_;     // number of equal groups of kv heads
};

const ScheduleRegistration registered_joined_ring(
    {"joined-ring[:GROUPS|:steps]",
     "a ring with all attends in one launch: K/V blocks hop in GROUPS of the kv heads and stay until the end of the "
     "pass; with steps, and without GROUPS where blocks are short, the backward pass has a launch for each block, the "
     "rank's own last",
     [](const std::string& arguments, const ScheduleInput& input) -> std::unique_ptr<Schedule> {
         const bool by_steps = arguments == "steps";
         const int groups = by_steps ? 0 : parse_head_groups(arguments, input.problem);
         return std::make_unique<JoinedRing>(input, groups, by_steps);
     },
     {"joined-ring", "joined-ring:1", "joined-ring:2", "joined-ring:4", "joined-ring:steps"}});

}  // namespace
}  // namespace ringlab::layouts
