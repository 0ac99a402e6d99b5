#include "layouts/schedule.hpp"

#include <algorithm>
#include <optional>

namespace ringlab::layouts {
namespace {

/// A rank brings in all the blocks that it needs straight from their owners, a group of kv heads at a time, then
/// attends to them one after another, its own first; in the backward pass it sends each block's gradient straight home,
/// where the owner sums the parts in a fixed order.
class AllGatherSchedule : public Schedule {
public:
    AllGatherSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options,
                      int groups)
        : Schedule(problem, mask, layout, options), groups_(groups) {
        require(groups >= 1 && problem.kv_heads % groups == 0,
                "{} kv heads do not divide into {} head groups; the groups must divide the kv heads", problem.kv_heads,
                groups);
    }

    SlotPlan slots() const override {
        if (ranks() == 1) return {};
        const int heads = group_heads(0).count();
        // Two head groups are in memory at a time: one attended to, the next on its way.
        const int kv_slots = (ranks() - 1) * std::min(2, groups_);
        return options().pass == Pass::forward ? SlotPlan{kv_slots, heads, 0, 0} : SlotPlan{kv_slots, heads, 4, heads};
    }

    Ops ops(int rank) const override {
        const bool backward = options().pass == Pass::backward;
        const bool merges = !backward && options().accumulation == Accumulation::partials;
        // Gradient slots 1 and 2 hold outgoing parts, 3 and 4 incoming ones, in turn.
        std::array<OpIndex, 5> gradient_read{-1, -1, -1, -1, -1};  // by slot: the operation that last read it
        std::array<OpIndex, 2> group_attended{-1, -1};             // by parity of the group: its last attend
        std::optional<Op>
            pending_add;  // of an incoming part, kept back for one attend so that it need not wait for the wire

        for (int group = 0; group < groups_; ++group) {
            const auto heads = group_heads(group);
            auto& attended = group_attended[static_cast<std::size_t>(group % 2)];
            const OpIndex slots_free = attended;  // by the group before the previous one
            const auto block_slot = [&](int distance) {
                return distance == 0 ? 0 : group % 2 * (ranks() - 1) + distance;
            };

            OpIndex arrival = -1;
            for (int distance = 1; distance < ranks(); ++distance) {
                const int ahead = (rank + distance) % ranks(), behind = (rank - distance + ranks()) % ranks();
                if (needs(ahead, rank)) co_yield transfer(OpKind::send, Payload::kv, distance, ahead, rank, heads, 0);
                if (needs(rank, behind)) {
                    auto op =
                        transfer(OpKind::receive, Payload::kv, distance, behind, behind, heads, block_slot(distance));
                    op.run_after(slots_free);
                    arrival = co_yield op;
                }
            }

            bool continues = false;  // whether the compute lane's last operation is an attend of this group
            for (int distance = 0; distance < ranks(); ++distance) {
                const int ahead = (rank + distance) % ranks(), behind = (rank - distance + ranks()) % ranks();
                if (needs(rank, behind)) {
                    const int outgoing = distance == 0 ? 0 : 1 + distance % 2;
                    auto& outgoing_read = gradient_read[static_cast<std::size_t>(outgoing)];
                    auto op = attend(rank, distance, behind, heads, block_slot(distance), backward ? outgoing : -1);
                    op.fused = continues;
                    op.run_after(arrival);
                    if (backward) op.run_after(outgoing_read);
                    attended = co_yield op;
                    continues = !merges;
                    if (merges) co_yield merge(rank, distance, behind, heads);
                    if (backward && distance > 0) {
                        auto part = transfer(OpKind::send, Payload::dkv, distance, behind, behind, heads, outgoing);
                        part.run_after(attended);
                        outgoing_read = co_yield part;
                    }
                }
                if (pending_add) {
                    gradient_read[static_cast<std::size_t>(pending_add->gradient_slot)] = co_yield *pending_add;
                    pending_add.reset();
                    continues = false;
                }
                if (backward && distance > 0 && needs(ahead, rank)) {
                    const int incoming = 3 + distance % 2;
                    auto part = transfer(OpKind::receive, Payload::dkv, distance, ahead, rank, heads, incoming);
                    part.run_after(gradient_read[static_cast<std::size_t>(incoming)]);
                    pending_add = add(distance, rank, heads, 0, incoming);
                    pending_add->run_after(co_yield part);
                }
            }
        }
        if (pending_add) co_yield *pending_add;
    }

private:
    HeadRange group_heads(int group) const {
        const int size = all_heads().count() / groups_;
        return {group * size, (group + 1) * size};
    }

    int groups_;  // kv heads are brought in this many equal parts
};

const ScheduleRegistration registration(
    "all-gather", "all-gather[:GROUPS]",
    "K/V of all ranks are gathered, one of GROUPS kv-head groups at a time (1), while the last one is attended to",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        const auto groups = arguments.empty() ? 1 : parse_count(arguments, "the number of head groups", 1);
        require(groups <= problem.kv_heads, "{} head groups of {} kv heads; at most one group per kv head", groups,
                problem.kv_heads);
        return std::make_unique<AllGatherSchedule>(problem, mask, layout, options, static_cast<int>(groups));
    });

}  // namespace
}  // namespace ringlab::layouts
