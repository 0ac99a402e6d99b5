#include "layouts/schedules/ring.hpp"

#include <new>

namespace ringlab::layouts {
namespace {

/// Constructs an operation in its final place, because copying an object that was just written is slow.
template <class Make>
void construct_in(Op& op, Make make) {
    new (&op) Op(make());
}

}  // namespace

void RingSchedule::find_hops(int first_block, int first_rows, int size) {
    hops_.resize(std::max(hops_.size(), index(first_block + size)));
    for (int owner = 0; owner < size; ++owner) {
        const auto needed = [&](int step) { return sees(first_rows + (owner + step) % size, first_block + owner); };
        hops_[index(first_block + owner)] = hops_of(size - 1, needed);
    }
}

void RingSchedule::add_ring_slots(int size, int query_heads, int kv_heads, std::int64_t rows, std::int64_t tokens) {
    if (partials()) add_slots(Pool::output, 1, query_heads, rows);
    if (size == 1) return;
    add_slots(Pool::kv, 2, kv_heads, tokens);
    if (options().pass == Pass::backward)
        add_slots(Pool::dkv, gradient_types_differ() ? 4 : 3, kv_heads, tokens, options().gradient_dtype);
}

Op RingSchedule::send_block(const Member& self, int step, OpIndex arrival) const {
    auto op =
        transfer(OpKind::send, kv_channel, Pool::kv, step, self.next(), keys_at(self, step), slot_of_step(self, step));
    op.run_after(arrival);
    if (step == 0) op.run_after(self.copied);
    return op;
}

Op RingSchedule::receive_block(const Member& self, int step, const Readers& readers) const {
    auto op = transfer(OpKind::receive, kv_channel, Pool::kv, step, self.previous(), keys_at(self, step),
                       slot_of_step(self, step));
    readers.let_go(op);
    return op;
}

Op RingSchedule::gradient(OpKind kind, const Member& self, int step, int peer, int position, int slot) const {
    return transfer(kind, dkv_channel_, Pool::dkv, step, peer, part(self.first_block + position, self.heads), slot);
}

/// The last step at which the member sees anything; -1 if it never does.
int RingSchedule::last_needed(const Member& self) const {
    int step = self.size - 1;
    while (step >= 0 && !sees(self.rows.block, self.first_block + self.at(step))) --step;
    return step;
}

// Both coroutines build all operations in the same Op, to keep their frames small: thousands of ranks have a frame
// each, and every further Op, even a temporary, would take space in it. So each Op is built right before it is yielded
// and not read afterwards.

Ops RingSchedule::forward(Member self) const {
    Op& op = co_await Ops::op_storage;
    OpIndex arrival = self.ready;  // of the block held at this step
    std::array<Readers, 3> readers;
    bool begun = false;
    const int last = last_needed(self);
    for (int step = 0; step < self.size; ++step) {
        if (passes_on(self, step)) {
            construct_in(op, [&] { return send_block(self, step, arrival); });
            readers[turn(step)].send = co_yield op;
        }
        OpIndex next_arrival = -1;
        if (receives(self, step + 1)) {
            construct_in(op, [&] { return receive_block(self, step + 1, readers[turn(step + 1)]); });
            next_arrival = co_yield op;
            readers[turn(step + 1)] = {};
        }
        construct_in(op,
                     [&] { return attend(step, self.rows, keys_at(self, step), self.slot, slot_of_step(self, step)); });
        if (op.pair_count > 0) {
            op.begins |= !begun;
            op.ends |= step == last;
            op.run_after(arrival);
            if (!begun && arrival != self.ready) op.run_after(self.ready);
            readers[turn(step)].attend = co_yield op;
            if (partials()) {
                construct_in(op, [&] { return merge(step, self.rows, self.slot, self.slot + 1); });
                op.begins = !begun;
                co_yield op;
            }
            begun = true;
        }
        arrival = next_arrival;
    }
}

Ops RingSchedule::backward(Member self) const {
    Op& op = co_await Ops::op_storage;
    OpIndex arrival = self.ready;
    std::array<Readers, 3> readers;
    std::array<OpIndex, 3> sent{-1, -1, -1};  // by gradient slot: the last send that read it
    bool begun = false;
    for (int step = 0; step < self.size; ++step) {
        if (passes_on(self, step)) {
            construct_in(op, [&] { return send_block(self, step, arrival); });
            readers[turn(step)].send = co_yield op;
        }
        OpIndex next_arrival = -1;
        if (receives(self, step + 1)) {
            construct_in(op, [&] { return receive_block(self, step + 1, readers[turn(step + 1)]); });
            next_arrival = co_yield op;
            readers[turn(step + 1)] = {};
        }

        const int owner = self.at(step);
        const auto [first, last] = hops(self, owner);
        if (first <= step && step <= last) {
            const bool starts = step == first;
            // If only the owner contributes to a gradient, it is written to the owner's slot.
            const int travelling = last == 0 ? self.slot : self.slot + 1 + step % 2;
            auto& travelling_sent = sent[index(travelling - self.slot)];
            OpIndex complete = -1;  // when the travelling gradient holds all contributions so far
            OpIndex gradient_arrival = -1;
            if (!starts) {
                construct_in(op,
                             [&] { return gradient(OpKind::receive, self, step, self.previous(), owner, travelling); });
                op.run_after(travelling_sent);
                complete = gradient_arrival = co_yield op;
            }
            construct_in(
                op, [&] { return attend(step, self.rows, keys_at(self, step), self.slot, slot_of_step(self, step)); });
            if (op.pair_count > 0) {
                op.slot(Pool::dkv) = starts ? travelling : partial_slot(self);
                op.begins = !begun;
                op.run_after(arrival);
                if (!begun && arrival != self.ready) op.run_after(self.ready);
                if (starts) op.run_after(travelling_sent);
                complete = readers[turn(step)].attend = co_yield op;
                begun = true;
                if (!starts) {
                    construct_in(
                        op, [&] { return add(Pool::dkv, step, keys_at(self, step), travelling, partial_slot(self)); });
                    op.run_after(gradient_arrival);
                    complete = co_yield op;
                }
            }
            if (last > 0) {
                const int receiver = step == last ? self.rank(owner) : self.next();
                construct_in(op, [&] { return gradient(OpKind::send, self, step, receiver, owner, travelling); });
                op.run_after(complete);
                travelling_sent = co_yield op;
            }
        }
        // The gradient of the own block arrives from its last contributor, which sends it at the end of this step.
        if (const int last_step = hops(self, self.position).last; last_step > 0 && step == last_step) {
            construct_in(op, [&] {
                return gradient(OpKind::receive, self, step + 1, self.rank(self.at(-step)), self.position,
                                gradient_types_differ() ? arrival_slot(self) : self.slot);
            });
            const auto own_arrival = co_yield op;
            if (gradient_types_differ()) {
                const auto own = keys_at(self, 0);
                construct_in(op, [&] { return copy(Pool::dkv, step + 1, own, self.slot, own, arrival_slot(self)); });
                op.run_after(own_arrival);
                co_yield op;
            }
        }
        arrival = next_arrival;
    }
}

namespace {

/// One ring of all ranks.
class PlainRing : public RingSchedule {
public:
    explicit PlainRing(const ScheduleInput& input) : RingSchedule(input) {
        find_rank_symmetry();
        set_channels({"K,V"}, {"dK,dV"});
        find_hops(0, row_block(0), ranks());
        add_ring_slots(ranks(), query_heads().count(), kv_heads().count(), largest_rows(), layout().largest_shard());
    }

    Ops ops(int rank) const override {
        return options().pass == Pass::forward ? forward(member_of_all(rank)) : backward(member_of_all(rank));
    }
};

const ScheduleRegistration registered_ring(
    {"ring",
     "K/V blocks hop from rank to rank, one step at a time; their gradients follow and end at the owner",
     made<PlainRing>,
     {"ring"}});

}  // namespace
}  // namespace ringlab::layouts
