#include "layouts/schedule.hpp"

namespace ringlab::layouts {
namespace {

/// Ring attention (Liu et al. 2023, arXiv 2310.01889): at step t rank r holds the K/V block of rank (r - t) mod P, and
/// passes it on to rank r + 1 while it attends to it. In the backward pass the gradient of a block travels one step
/// behind the block, every rank adds its part, and the last contributor sends it home.
///
/// A block travels only as far as some rank still needs it, and a rank that sees nothing of it does not compute.
class RingSchedule : public Schedule {
public:
    RingSchedule(const Problem& problem, const Mask& mask, const Layout& layout, const ScheduleOptions& options)
        : Schedule(problem, mask, layout, options) {
        for (int owner = 0; owner < ranks(); ++owner) {
            int last = ranks() - 1, first = 0;
            while (last > 0 && !needs((owner + last) % ranks(), owner)) --last;
            while (first < last && !needs((owner + first) % ranks(), owner)) ++first;
            hops_.push_back({first, last});
        }
    }

    Ops ops(int rank) const override { return options().pass == Pass::forward ? forward(rank) : backward(rank); }

    SlotPlan slots() const override {
        const int heads = all_heads().count();
        if (ranks() == 1) return {};
        return options().pass == Pass::forward ? SlotPlan{2, heads, 0, 0} : SlotPlan{2, heads, partial_slot, heads};
    }

private:
    // Of the ranks that need a block, as steps away from its owner: the first (its gradient starts there) and the last
    // (the block's last stop; its gradient goes home from there). Both 0 if nobody or only the owner needs it.
    struct Hops {
        int first;
        int last;
    };

    // Blocks on the way alternate between slots 1 and 2, gradients likewise; the rank's own part to add waits in
    // slot 3.
    static int slot_of_step(int step) { return step == 0 ? 0 : 1 + step % 2; }
    static constexpr int partial_slot = 3;

    static constexpr std::size_t index(int slot) { return static_cast<std::size_t>(slot); }
    const Hops& hops(int owner) const { return hops_[index(owner)]; }

    int next(int rank) const { return (rank + 1) % ranks(); }
    int previous(int rank) const { return (rank - 1 + ranks()) % ranks(); }
    int owner_at(int rank, int step) const { return (rank - step + ranks()) % ranks(); }

    /// Whether the block that would be at `rank` at `step` comes there, and whether it goes further.
    bool receives(int rank, int step) const { return step < ranks() && step <= hops(owner_at(rank, step)).last; }
    bool passes_on(int rank, int step) const { return step < hops(owner_at(rank, step)).last; }

    /// Operations that read a K/V slot and must end before it is overwritten.
    struct Readers {
        OpIndex attend = -1;
        OpIndex send = -1;
    };

    Op pass_on(int rank, int step, OpIndex arrival) const {
        auto op = transfer(OpKind::send, Payload::kv, step, next(rank), owner_at(rank, step), all_heads(),
                           slot_of_step(step));
        op.run_after(arrival);
        return op;
    }

    Op take(int rank, int step, const Readers& readers) const {
        auto op = transfer(OpKind::receive, Payload::kv, step, previous(rank), owner_at(rank, step), all_heads(),
                           slot_of_step(step));
        op.run_after(readers.attend);
        op.run_after(readers.send);
        return op;
    }

    // Both coroutines use one Op throughout: each further one, temporaries included, would lie in the frame, and
    // thousands of ranks have a frame each.

    Ops forward(int rank) const {
        Op op;
        OpIndex arrival = -1;  // of the block held at this step; -1 for the rank's own
        std::array<Readers, 3> readers;
        for (int step = 0; step < ranks(); ++step) {
            auto& here = readers[index(slot_of_step(step))];
            auto& coming = readers[index(slot_of_step(step + 1))];
            if (passes_on(rank, step)) {
                op = pass_on(rank, step, arrival);
                here.send = co_yield op;
            }
            OpIndex next_arrival = -1;
            if (receives(rank, step + 1)) {
                op = take(rank, step + 1, coming);
                next_arrival = co_yield op;
                coming = {};
            }
            const int owner = owner_at(rank, step);
            op = attend(rank, step, owner, all_heads(), slot_of_step(step), -1);
            if (op.cells > 0) {
                op.run_after(arrival);
                here.attend = co_yield op;
                if (options().accumulation == Accumulation::partials) {
                    op = merge(rank, step, owner, all_heads());
                    co_yield op;
                }
            }
            arrival = next_arrival;
        }
    }

    Ops backward(int rank) const {
        Op op;
        OpIndex arrival = -1;
        std::array<Readers, 3> readers;
        std::array<OpIndex, 3> sent{-1, -1, -1};  // by gradient slot: the send that last read it
        for (int step = 0; step < ranks(); ++step) {
            auto& here = readers[index(slot_of_step(step))];
            auto& coming = readers[index(slot_of_step(step + 1))];
            if (passes_on(rank, step)) {
                op = pass_on(rank, step, arrival);
                here.send = co_yield op;
            }
            OpIndex next_arrival = -1;
            if (receives(rank, step + 1)) {
                op = take(rank, step + 1, coming);
                next_arrival = co_yield op;
                coming = {};
            }

            const int owner = owner_at(rank, step);
            const auto [first, last] = hops(owner);
            if (first <= step && step <= last) {
                const bool begins = step == first;
                const int travelling = last == 0 ? 0 : 1 + step % 2;  // a gradient nobody else adds to is made at home
                auto& travelling_sent = sent[index(travelling)];
                OpIndex complete = -1;  // when the travelling gradient holds all contributions so far
                OpIndex gradient_arrival = -1;
                if (!begins) {
                    op = transfer(OpKind::receive, Payload::dkv, step, previous(rank), owner, all_heads(), travelling);
                    op.run_after(travelling_sent);
                    complete = gradient_arrival = co_yield op;
                }
                op = attend(rank, step, owner, all_heads(), slot_of_step(step), begins ? travelling : partial_slot);
                if (op.cells > 0) {
                    op.run_after(arrival);
                    if (begins) op.run_after(travelling_sent);
                    complete = here.attend = co_yield op;
                    if (!begins) {
                        op = add(step, owner, all_heads(), travelling, partial_slot);
                        op.run_after(gradient_arrival);
                        complete = co_yield op;
                    }
                }
                if (last > 0) {
                    op = transfer(OpKind::send, Payload::dkv, step, step == last ? owner : next(rank), owner,
                                  all_heads(), travelling);
                    op.run_after(complete);
                    travelling_sent = co_yield op;
                }
            }
            // The own gradient comes home from its last contributor, which sends it at the end of this step.
            if (hops(rank).last > 0 && step == hops(rank).last) {
                op = transfer(OpKind::receive, Payload::dkv, step + 1, (rank + step) % ranks(), rank, all_heads(), 0);
                co_yield op;
            }
            arrival = next_arrival;
        }
    }

    std::vector<Hops> hops_;
};

const ScheduleRegistration registration(
    "ring", "ring", "K/V blocks hop from rank to rank, one step at a time; their gradients follow and end at home",
    [](const std::string& arguments, const Problem& problem, const Mask& mask, const Layout& layout,
       const ScheduleOptions& options) -> std::unique_ptr<Schedule> {
        require(arguments.empty(), "schedule ring takes no arguments, got '{}'", arguments);
        return std::make_unique<RingSchedule>(problem, mask, layout, options);
    });

}  // namespace
}  // namespace ringlab::layouts
