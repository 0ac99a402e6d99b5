#include "layouts/schedules/schedule.hpp"

namespace ringlab::layouts {
namespace {

/// A ring in both directions at once: at step t rank r holds the blocks of ranks r - t and r + t, which arrive over
/// links of opposite directions. Compared with a ring, there are half as many steps, each with twice the traffic, and
/// both directions of every link are busy. Gradients follow in both directions and end at the owner.
class BidirectionalSchedule : public Schedule {
public:
    explicit BidirectionalSchedule(const ScheduleInput& input) : Schedule(input) {
        find_rank_symmetry();
        set_channels({"K,V up", "K,V down"}, {"dK,dV up", "dK,dV down"});
        for (int way : {up, down})
            for (int owner = 0; owner < ranks(); ++owner)
                hops_[index(way)].push_back(hops_of(
                    steps(way), [&](int step) { return needs(holder(owner, way, step), owner); }, 1));
        const auto tokens = layout().largest_shard();
        const int heads = kv_heads().count();
        if (partials()) add_slots(Pool::output, 1, query_heads().count(), largest_rows());
        if (ranks() == 1) return;
        add_slots(Pool::kv, 4, heads, tokens);
        if (options().pass == Pass::backward) add_slots(Pool::dkv, 7, heads, tokens, options().gradient_dtype);
    }

    Ops ops(int rank) const override { return options().pass == Pass::forward ? forward(rank) : backward(rank); }

private:
    enum Way : int { up, down };  // to rank r + 1, to rank r - 1

    // Each direction has two slots in turn for blocks and two for their gradients. A fifth gradient slot holds a rank's
    // own part until it is added, and two more receive the final gradients of its own block.
    static int kv_slot(int way, int step) { return step == 0 ? 0 : 1 + 2 * way + step % 2; }
    static int gradient_slot(int way, int step) { return 1 + 2 * way + step % 2; }
    static constexpr int partial_slot = 5;
    static int own_gradient_slot(int way) { return 6 + way; }
    static int kv_channel(int way) { return way; }
    static int dkv_channel(int way) { return 2 + way; }

    int steps(int way) const { return way == up ? ranks() / 2 : (ranks() - 1) / 2; }
    int holder(int owner, int way, int step) const { return way == up ? ahead(owner, step) : behind(owner, step); }
    int owner_at(int rank, int way, int step) const { return holder(rank, way, -step); }
    int next(int rank, int way) const { return holder(rank, way, 1); }
    int previous(int rank, int way) const { return holder(rank, way, -1); }
    const Hops& hops(int owner, int way) const { return hops_[index(way)][index(owner)]; }

    /// Whether the rank attends to the block that it holds. Each block is attended to once, its own with direction up.
    bool attends(int rank, int way, int step) const {
        return step <= steps(way) && (way == up || step > 0) && needs(rank, owner_at(rank, way, step));
    }

    struct Travel {
        std::array<Readers, 5> readers;          // by K/V slot
        std::array<OpIndex, 2> arrival{-1, -1};  // by direction, of the block held at this step
        std::array<OpIndex, 2> next_arrival{-1, -1};
    };

    /// In both directions: sends on the block held at `step` and receives the one for the next step.
    Ops travel(int rank, int step, Travel& state) const {
        for (const int way : {up, down}) {
            state.next_arrival[index(way)] = -1;
            const int owner = owner_at(rank, way, step), coming = owner_at(rank, way, step + 1);
            if (step < hops(owner, way).last) {
                auto op = transfer(OpKind::send, kv_channel(way), Pool::kv, step, next(rank, way),
                                   part(owner, kv_heads()), kv_slot(way, step));
                op.run_after(state.arrival[index(way)]);
                state.readers[index(kv_slot(way, step))].send = co_yield op;
            }
            if (step + 1 <= hops(coming, way).last) {
                auto& readers = state.readers[index(kv_slot(way, step + 1))];
                auto op = transfer(OpKind::receive, kv_channel(way), Pool::kv, step + 1, previous(rank, way),
                                   part(coming, kv_heads()), kv_slot(way, step + 1));
                readers.let_go(op);
                state.next_arrival[index(way)] = co_yield op;
                readers = {};
            }
        }
    }

    Ops forward(int rank) const {
        Travel state;
        int last_step = steps(up), last_way = down;
        while (last_step > 0 && !attends(rank, up, last_step) && !attends(rank, down, last_step)) --last_step;
        if (!attends(rank, down, last_step)) last_way = up;
        bool begun = false;
        for (int step = 0; step <= steps(up); ++step) {
            co_yield travel(rank, step, state);
            for (const int way : {up, down}) {
                if (!attends(rank, way, step)) continue;
                const auto rows = rows_of(rank, query_heads());
                auto op = attend(step, rows, part(owner_at(rank, way, step), kv_heads()), 0, kv_slot(way, step));
                op.begins |= !begun;
                op.ends |= step == last_step && way == last_way;
                op.run_after(state.arrival[index(way)]);
                state.readers[index(kv_slot(way, step))].attend = co_yield op;
                if (partials()) {
                    op = merge(step, rows, 0, 1);
                    op.begins = !begun;
                    co_yield op;
                }
                begun = true;
            }
            state.arrival = state.next_arrival;
        }
    }

    Ops backward(int rank) const {
        Travel state;
        std::array<OpIndex, 5> sent{-1, -1, -1, -1, -1};  // by gradient slot: the last send that read it
        bool begun = false;
        for (int step = 0; step <= steps(up); ++step) {
            co_yield travel(rank, step, state);
            for (const int way : {up, down}) {
                const int owner = owner_at(rank, way, step);
                const auto keys = part(owner, kv_heads());
                const auto [first, last] = hops(owner, way);
                const bool attending = attends(rank, way, step);
                const bool contributes = step > 0 && first <= step && step <= last;
                const int travelling = gradient_slot(way, step);
                OpIndex complete = -1, gradient_arrival = -1;
                if (contributes && step > first) {
                    auto op = transfer(OpKind::receive, dkv_channel(way), Pool::dkv, step, previous(rank, way), keys,
                                       travelling);
                    op.run_after(sent[index(travelling)]);
                    complete = gradient_arrival = co_yield op;
                }
                if (attending) {
                    const bool starts = step == first;
                    auto op = attend(step, rows_of(rank, query_heads()), keys, 0, kv_slot(way, step));
                    op.begins = !begun;
                    op.slot(Pool::dkv) = step == 0 ? 0 : starts ? travelling : partial_slot;
                    op.run_after(state.arrival[index(way)]);
                    if (step > 0 && starts) op.run_after(sent[index(travelling)]);
                    complete = state.readers[index(kv_slot(way, step))].attend = co_yield op;
                    begun = true;
                    if (step > 0 && !starts) {
                        op = add(Pool::dkv, step, keys, travelling, partial_slot);
                        op.run_after(gradient_arrival);
                        complete = co_yield op;
                    }
                }
                if (contributes) {
                    auto op = transfer(OpKind::send, dkv_channel(way), Pool::dkv, step,
                                       step == last ? owner : next(rank, way), keys, travelling);
                    op.run_after(complete);
                    sent[index(travelling)] = co_yield op;
                }
                if (const int last_own_step = hops(rank, way).last; last_own_step > 0 && step == last_own_step) {
                    const auto own = part(rank, kv_heads());
                    auto op = transfer(OpKind::receive, dkv_channel(way), Pool::dkv, step + 1, holder(rank, way, step),
                                       own, own_gradient_slot(way));
                    const auto own_arrival = co_yield op;
                    op = add(Pool::dkv, step + 1, own, 0, own_gradient_slot(way));
                    op.run_after(own_arrival);
                    co_yield op;
                }
            }
            state.arrival = state.next_arrival;
        }
    }

    /// By direction, then owner: hops to ranks other than the owner.
    std::array<std::vector<Hops>, 2> hops_;
};

const ScheduleRegistration registered_bidirectional(
    {"bidirectional",
     "a ring in both directions at once: K/V blocks hop up and down, in half as many steps, and their gradients follow",
     made<BidirectionalSchedule>,
     {"bidirectional"}});

}  // namespace
}  // namespace ringlab::layouts
