#include "layouts/schedules/schedule.hpp"

namespace ringlab::layouts {
namespace {

/// A ring inside each host and a ring between hosts at once (LoongTrain's double ring, Gu et al. 2024, arXiv
/// 2406.18485). In round i the ranks of a host pass the blocks of the host i places before it around among themselves,
/// while each rank sends the block with which it began the round to its counterpart in the next host, for which there
/// is time until the round ends. Gradients go around inside the host to the rank that began the round with the block,
/// which completes the host's sum. This sum follows the block from host to host, and ends at the owner.
class DoubleRingSchedule : public Schedule {
public:
    DoubleRingSchedule(const ScheduleInput& input, int size) : Schedule(input), size_(size), hosts_(ranks() / size) {
        require(ranks() <= most_ranks,
                "schedule double-ring stores where each of {} blocks travels; at most {} ranks are supported", ranks(),
                most_ranks);
        require(ranks() % size == 0,
                "inner rings of {} ranks do not divide {} ranks; give double-ring:RANKS a divisor of the ranks", size,
                ranks());
        set_channels({"K,V inside", "K,V between"}, {"dK,dV inside", "dK,dV between"});
        for (int block = 0; block < ranks(); ++block) {
            auto& outer = outer_.emplace_back();
            for (int round = 0; round < hosts_; ++round) {
                auto& inner = inner_.emplace_back(Hops{0, -1});
                for (int step = 0; step < size_; ++step) {
                    if (!needs(holder(block, round, step), block)) continue;
                    if (inner.last < 0) inner.first = step;
                    inner.last = step;
                }
                if (round == 0 || inner.last < 0) continue;
                if (outer.last == 0) outer.first = round;
                outer.last = round;
            }
        }
        const auto tokens = layout().largest_shard();
        const int heads = kv_heads().count();
        if (partials()) add_slots(Pool::output, 1, query_heads().count(), largest_rows());
        if (ranks() == 1) return;
        add_slots(Pool::kv, 4, heads, tokens);
        if (options().pass == Pass::backward) add_slots(Pool::dkv, 9, heads, tokens, options().gradient_dtype);
    }

    Ops ops(int rank) const override { return options().pass == Pass::forward ? forward(rank) : backward(rank); }

private:
    static constexpr int most_ranks = 8192;
    enum Channel : int { kv_inside, kv_between, dkv_inside, dkv_between };

    // K/V slots: 1 and 2 in turn for blocks that begin a round, 3 and 4 for blocks that go around inside a host. dK/dV
    // slots: 1 and 2 for gradients that go around inside, 3 for the rank's own part until it is added, 4 and 5 for a
    // host's sum, 6 and 7 for the sum over hosts, 8 and 9 for gradients of the own block that arrive from inside and
    // from another host.
    static int base_slot(int round) { return round == 0 ? 0 : 1 + round % 2; }
    static int kv_slot(int round, int step) { return step == 0 ? base_slot(round) : 3 + step % 2; }
    static int travelling_slot(int step) { return 1 + step % 2; }
    static constexpr int partial_slot = 3;
    static int host_slot(int round) { return round == 0 ? 0 : 4 + round % 2; }
    static int outer_slot(int round) { return 6 + round % 2; }
    static constexpr int own_from_inside = 8, own_from_host = 9;

    int host(int rank) const { return rank / size_; }
    int place(int rank) const { return rank % size_; }
    int at(int host, int place) const {
        return (host % hosts_ + hosts_) % hosts_ * size_ + (place % size_ + size_) % size_;
    }
    int holder(int block, int round, int step) const { return at(host(block) + round, place(block) + step); }
    int block_at(int rank, int round, int step) const { return at(host(rank) - round, place(rank) - step); }
    int next_inside(int rank) const { return at(host(rank), place(rank) + 1); }
    int previous_inside(int rank) const { return at(host(rank), place(rank) - 1); }
    int next_host(int rank) const { return at(host(rank) + 1, place(rank)); }
    int previous_host(int rank) const { return at(host(rank) - 1, place(rank)); }
    const Hops& inner(int block, int round) const { return inner_[index(block * hosts_ + round)]; }
    const Hops& outer(int block) const { return outer_[index(block)]; }
    Part keys(int block) const { return part(block, kv_heads()); }

    struct Readers {
        OpIndex attend = -1, inside = -1, between = -1;
    };
    struct Travel {
        std::array<Readers, 5> readers;  // by K/V slot
        OpIndex base = -1,
                next_base = -1;  // arrival of the block that begins this round, the next
        OpIndex arrival = -1,
                next_arrival = -1;  // of the block held at this step, at the next
    };

    Op receive_block(Channel channel, int step, int peer, int block, int slot, const Readers& readers) const {
        auto op = transfer(OpKind::receive, channel, Pool::kv, step, peer, keys(block), slot);
        op.run_after(readers.attend);
        op.run_after(readers.inside);
        op.run_after(readers.between);
        return op;
    }

    /// Sends on the block held at a step of a round, and receives those for the next step and for the next round.
    Ops travel(int rank, int round, int step, Travel& state) const {
        const int number = round * size_ + step, block = block_at(rank, round, step), slot = kv_slot(round, step);
        if (step == 0) {
            state.arrival = state.base;
            state.next_base = -1;
            if (round < outer(block).last) {
                auto op = transfer(OpKind::send, kv_between, Pool::kv, number, next_host(rank), keys(block), slot);
                op.run_after(state.base);
                state.readers[index(slot)].between = co_yield op;
            }
            const int coming = block_at(rank, round + 1, 0);
            if (round + 1 < hosts_ && round + 1 <= outer(coming).last) {
                auto& readers = state.readers[index(base_slot(round + 1))];
                state.next_base = co_yield receive_block(kv_between, number + size_, previous_host(rank), coming,
                                                         base_slot(round + 1), readers);
                readers = {};
            }
        }
        state.next_arrival = -1;
        if (step < inner(block, round).last) {
            auto op = transfer(OpKind::send, kv_inside, Pool::kv, number, next_inside(rank), keys(block), slot);
            op.run_after(state.arrival);
            state.readers[index(slot)].inside = co_yield op;
        }
        const int coming = block_at(rank, round, step + 1);
        if (step + 1 < size_ && step + 1 <= inner(coming, round).last) {
            auto& readers = state.readers[index(kv_slot(round, step + 1))];
            state.next_arrival = co_yield receive_block(kv_inside, number + 1, previous_inside(rank), coming,
                                                        kv_slot(round, step + 1), readers);
            readers = {};
        }
    }

    static void step_on(Travel& state, bool round_ends) {
        state.arrival = state.next_arrival;
        if (round_ends) state.base = state.next_base;
    }

    Ops forward(int rank) const {
        Travel state;
        bool begun = false;
        int last = ranks() - 1;
        while (last >= 0 && !needs(rank, block_at(rank, last / size_, last % size_))) --last;
        const auto rows = rows_of(rank, query_heads());
        for (int number = 0; number < ranks(); ++number) {
            const int round = number / size_, step = number % size_, block = block_at(rank, round, step);
            co_yield travel(rank, round, step, state);
            if (needs(rank, block)) {
                auto op = attend(number, rows, keys(block), 0, kv_slot(round, step));
                op.begins |= !begun;
                op.ends |= number == last;
                op.run_after(state.arrival);
                state.readers[index(kv_slot(round, step))].attend = co_yield op;
                if (partials()) {
                    op = merge(number, rows, 0, 1);
                    op.begins = !begun;
                    co_yield op;
                }
                begun = true;
            }
            step_on(state, step + 1 == size_);
        }
    }

    struct Gradients {
        std::array<OpIndex, 10> read;  // by gradient slot: the last operation that read it
        OpIndex host_sum = -1;         // completes the host's sum for the block that began the round

        Gradients() { read.fill(-1); }
    };

    Ops backward(int rank) const {
        Travel state;
        Gradients gradients;
        bool begun = false;
        for (int number = 0; number < ranks(); ++number) {
            const int round = number / size_, step = number % size_;
            const bool round_ends = step + 1 == size_;
            co_yield travel(rank, round, step, state);
            co_yield add_part(rank, round, step, state, gradients, begun);
            co_yield receive_host_sum(rank, round, step, gradients);
            step_on(state, round_ends);
            if (!round_ends) continue;
            co_yield add_host_sum(rank, round, gradients);
            gradients.host_sum = -1;
        }
    }

    /// Attends to the block held at a step of a round, adds to the gradient that goes around with it inside the host,
    /// and sends that on. `begun`: whether the rank has attended to any block.
    Ops add_part(int rank, int round, int step, Travel& state, Gradients& gradients, bool& begun) const {
        const int number = round * size_ + step, block = block_at(rank, round, step);
        const auto [first, last] = inner(block, round);
        if (step < first || step > last) co_return;
        const bool starts = step == first;
        const int travelling = last == 0 ? host_slot(round) : travelling_slot(step);
        auto& travelling_read = gradients.read[index(travelling)];
        OpIndex complete = -1, gradient_arrival = -1;
        if (!starts) {
            auto op = transfer(OpKind::receive, dkv_inside, Pool::dkv, number, previous_inside(rank), keys(block),
                               travelling);
            op.run_after(travelling_read);
            complete = gradient_arrival = co_yield op;
        }
        if (needs(rank, block)) {
            auto op = attend(number, rows_of(rank, query_heads()), keys(block), 0, kv_slot(round, step));
            op.begins = !begun;
            op.slot(Pool::dkv) = starts ? travelling : partial_slot;
            op.run_after(state.arrival);
            if (starts) op.run_after(travelling_read);
            complete = state.readers[index(kv_slot(round, step))].attend = co_yield op;
            begun = true;
            if (!starts) {
                op = add(Pool::dkv, number, keys(block), travelling, partial_slot);
                op.run_after(gradient_arrival);
                complete = co_yield op;
            }
        }
        if (last > 0) {
            auto op = transfer(OpKind::send, dkv_inside, Pool::dkv, number,
                               step == last ? holder(block, round, 0) : next_inside(rank), keys(block), travelling);
            op.run_after(complete);
            travelling_read = co_yield op;
        } else {
            gradients.host_sum = complete;
        }
    }

    /// The sum over this host arrives at the rank that began the round with the block.
    Ops receive_host_sum(int rank, int round, int step, Gradients& gradients) const {
        const int number = round * size_ + step, base = block_at(rank, round, 0), from = inner(base, round).last;
        if (from <= 0 || step != from) co_return;
        const int slot = round == 0 ? own_from_inside : host_slot(round);
        auto op = transfer(OpKind::receive, dkv_inside, Pool::dkv, number, holder(base, round, step), keys(base), slot);
        op.run_after(gradients.read[index(slot)]);
        gradients.host_sum = co_yield op;
        if (round > 0) co_return;
        op = add(Pool::dkv, number, keys(base), 0, slot);
        op.run_after(gradients.host_sum);
        co_yield op;
    }

    /// At the end of a round, adds the host's sum to the sum over hosts, which follows the block, and sends that on.
    /// The sum of the own block arrives in the last round in which another host needs it.
    Ops add_host_sum(int rank, int round, Gradients& gradients) const {
        const int number = round * size_ + size_ - 1, base = block_at(rank, round, 0);
        const auto [first, last] = outer(base);
        if (round > 0 && first <= round && round <= last) {
            int slot = host_slot(round);
            OpIndex complete = gradients.host_sum;
            if (round > first) {
                slot = outer_slot(round);
                auto op =
                    transfer(OpKind::receive, dkv_between, Pool::dkv, number, previous_host(rank), keys(base), slot);
                op.run_after(gradients.read[index(slot)]);
                complete = co_yield op;
                if (inner(base, round).last >= 0) {
                    op = add(Pool::dkv, number, keys(base), slot, host_slot(round));
                    op.run_after(complete);
                    op.run_after(gradients.host_sum);
                    complete = gradients.read[index(host_slot(round))] = co_yield op;
                }
            }
            auto op = transfer(OpKind::send, dkv_between, Pool::dkv, number, round == last ? base : next_host(rank),
                               keys(base), slot);
            op.run_after(complete);
            gradients.read[index(slot)] = co_yield op;
        }
        if (const int last_own_round = outer(rank).last; last_own_round > 0 && round == last_own_round) {
            auto op = transfer(OpKind::receive, dkv_between, Pool::dkv, number + 1, holder(rank, round, 0), keys(rank),
                               own_from_host);
            const auto own_arrival = co_yield op;
            op = add(Pool::dkv, number + 1, keys(rank), 0, own_from_host);
            op.run_after(own_arrival);
            co_yield op;
        }
    }

    int size_, hosts_;
    /// By block, then round: which ranks of the host need the block, in steps from the rank that begins the round with
    /// it; `last` is -1 if none does.
    std::vector<Hops> inner_;
    /// By block: rounds, other than the one in the owner's host, in which a rank needs it.
    std::vector<Hops> outer_;
};

const ScheduleRegistration registered_double_ring(
    {"double-ring:RANKS",
     "a ring inside each host of RANKS ranks and one between hosts, both at once; gradients follow",
     [](const std::string& arguments, const ScheduleInput& input) -> std::unique_ptr<Schedule> {
         require(!arguments.empty(), "schedule double-ring needs the number of ranks of a host, as in double-ring:8");
         const auto size = parse_count(arguments, "the ranks of an inner ring", 1);
         require(size <= input.layout.ranks(), "inner rings of {} ranks, but there are only {} ranks", size,
                 input.layout.ranks());
         return std::make_unique<DoubleRingSchedule>(input, static_cast<int>(size));
     },
     {"double-ring:1", "double-ring:2", "double-ring:4"}});

}  // namespace
}  // namespace ringlab::layouts
