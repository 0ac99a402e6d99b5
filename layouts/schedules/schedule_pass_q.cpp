#include "layouts/schedules/schedule.hpp"

namespace ringlab::layouts {
namespace {

/// Query rows hop from rank r to r - 1 and attend to the keys that stay there (Yang et al. 2024, arXiv 2411.01783).
/// Their running softmax travels one step behind them, and the last rank that they need sends the result to their
/// owner. In the backward pass dO travels with the rows, and dQ one step behind; dK and dV stay.
///
/// With Accumulation::partials every rank sends its partial result directly to the owner, which merges them.
class PassQSchedule : public Schedule {
public:
    explicit PassQSchedule(const ScheduleInput& input) : Schedule(input) {
        find_rank_symmetry();
        set_channels(options().pass == Pass::forward ? std::vector<std::string>{"Q", "results"}
                                                     : std::vector<std::string>{"Q,dO", "dQ"});
        for (int owner = 0; owner < ranks(); ++owner)
            hops_.push_back(hops_of(ranks() - 1, [&](int step) { return needs(owner, rank_at(owner, step)); }));
        add_all_slots(largest_rows(), layout().largest_shard());
    }

    Ops ops(int rank) const override {
        if (options().pass == Pass::backward) return backward(rank);
        return partials() ? forward_in_partials(rank) : forward(rank);
    }

private:
    enum Channel : int { rows_channel, results_channel };

    // Travelling rows alternate between two slots of every pool. A third dQ slot holds a rank's own part until it is
    // added. Partial results have two slots for those that leave and two for those that arrive at the owner.
    static int slot_of_step(int step) { return step == 0 ? 0 : 1 + step % 2; }
    static constexpr int partial_slot = 3;
    static int leaving_slot(int step) { return 1 + step % 2; }
    static int coming_slot(int step) { return 3 + step % 2; }

    int next(int rank) const { return behind(rank, 1); }
    int previous(int rank) const { return ahead(rank, 1); }
    // Whose rows a rank has at a step, and which rank has its own rows then.
    int owner_at(int rank, int step) const { return ahead(rank, step); }
    int rank_at(int owner, int step) const { return behind(owner, step); }
    const Hops& hops(int owner) const { return hops_[index(owner)]; }
    Part rows_of(int owner) const { return Schedule::rows_of(owner, query_heads()); }

    void add_all_slots(std::int64_t rows, std::int64_t keys) {
        const int heads = query_heads().count();
        if (partials()) add_slots(Pool::output, ranks() == 1 ? 1 : 4, heads, rows);
        if (ranks() == 1) return;
        add_slots(Pool::q, 2, heads, rows);
        if (options().pass == Pass::backward) {
            add_slots(Pool::dout, 2, heads, rows);
            add_slots(Pool::dq, 3, heads, rows);
            add_slots(Pool::dkv, 1, kv_heads().count(), keys);
        } else if (!partials()) {
            add_slots(Pool::state, 2, heads, rows);
            add_slots(Pool::output, 1, heads, rows);
        }
    }

    /// Sends on the rows that are here at `step`, and receives those for the next step; in the backward pass Q and dO.
    /// `arrival`: of the rows that are here; `next_arrival`: set to that of the rows for the next step. `readers`: by
    /// slot.
    Ops travel(int rank, int step, OpIndex arrival, OpIndex& next_arrival, std::array<Readers, 3>& readers) const {
        next_arrival = -1;
        const auto pools =
            options().pass == Pass::forward ? std::array{Pool::q, Pool::q} : std::array{Pool::q, Pool::dout};
        const std::size_t pools_used = options().pass == Pass::forward ? 1 : 2;
        const int owner = owner_at(rank, step);
        if (step < hops(owner).last)
            for (std::size_t i = 0; i < pools_used; ++i) {
                auto op = transfer(OpKind::send, rows_channel, pools[i], step, next(rank), rows_of(owner),
                                   slot_of_step(step));
                op.run_after(arrival);
                readers[index(slot_of_step(step))].send = co_yield op;
            }
        const int coming_owner = owner_at(rank, step + 1);
        if (step + 1 >= ranks() || step + 1 > hops(coming_owner).last) co_return;
        auto& coming = readers[index(slot_of_step(step + 1))];
        for (std::size_t i = 0; i < pools_used; ++i) {
            auto op = transfer(OpKind::receive, rows_channel, pools[i], step + 1, previous(rank), rows_of(coming_owner),
                               slot_of_step(step + 1));
            coming.let_go(op);
            next_arrival = co_yield op;
        }
        coming = {};
    }

    /// The running softmax travels with the rows, and the result goes to their owner.
    Ops forward(int rank) const {
        OpIndex arrival = -1;
        std::array<Readers, 3> readers;                 // by slot of rows
        std::array<OpIndex, 3> state_done{-1, -1, -1};  // by slot: the last operation that used it
        OpIndex output_sent = -1;
        for (int step = 0; step < ranks(); ++step) {
            OpIndex next_arrival = -1;
            co_yield travel(rank, step, arrival, next_arrival, readers);

            const int owner = owner_at(rank, step);
            const auto [first, last] = hops(owner);
            const int slot = slot_of_step(step);
            OpIndex state_arrival = -1, complete = -1;
            if (first < step && step <= last) {
                auto op =
                    transfer(OpKind::receive, results_channel, Pool::state, step, previous(rank), rows_of(owner), slot);
                op.run_after(state_done[index(slot)]);
                complete = state_arrival = co_yield op;
            }
            auto op = attend(step, rows_of(owner), part(rank, kv_heads()), slot, 0);
            if (op.pair_count > 0) {
                op.begins = step == first;
                op.ends = step == last;
                op.slot(Pool::output) = step == 0 ? 0 : 1;
                if (op.begins) op.run_after(state_done[index(slot)]);
                if (op.ends) op.run_after(output_sent);
                op.run_after(arrival);
                op.run_after(state_arrival);
                complete = co_yield op;
                readers[index(slot)].attend = state_done[index(slot)] = complete;
            }
            if (first <= step && step < last) {
                op = transfer(OpKind::send, results_channel, Pool::state, step, next(rank), rows_of(owner), slot);
                op.run_after(complete);
                state_done[index(slot)] = co_yield op;
            }
            if (step > 0 && step == last) {
                op = transfer(OpKind::send, results_channel, Pool::output, step, owner, rows_of(owner), 1);
                op.run_after(complete);
                output_sent = co_yield op;
            }
            // The result for the rank's own rows.
            if (step > 0 && step == hops(rank).last)
                co_yield transfer(OpKind::receive, results_channel, Pool::output, step, rank_at(rank, step),
                                  rows_of(rank), 0);
            arrival = next_arrival;
        }
    }

    /// Each rank sends its partial result to the owner of the rows, which merges them.
    Ops forward_in_partials(int rank) const {
        OpIndex arrival = -1;
        std::array<Readers, 3> readers;                               // by slot of rows
        std::array<OpIndex, 2> leaving_read{-1, -1}, merged{-1, -1};  // by slot of partial results
        bool merges_begun = false;
        for (int step = 0; step < ranks(); ++step) {
            OpIndex next_arrival = -1;
            co_yield travel(rank, step, arrival, next_arrival, readers);

            const int owner = owner_at(rank, step), slot = slot_of_step(step);
            auto op = attend(step, rows_of(owner), part(rank, kv_heads()), slot, 0);
            if (op.pair_count > 0) {
                op.slot(Pool::output) = leaving_slot(step);
                op.run_after(leaving_read[index(step % 2)]);
                op.run_after(arrival);
                const auto complete = co_yield op;
                readers[index(slot)].attend = complete;
                if (step == 0) {
                    op = merge(step, rows_of(rank), 0, leaving_slot(step));
                    op.begins = true;
                    merges_begun = true;
                } else {
                    op = transfer(OpKind::send, results_channel, Pool::output, step, owner, rows_of(owner),
                                  leaving_slot(step));
                    op.run_after(complete);
                }
                leaving_read[index(step % 2)] = co_yield op;
            }
            // A partial result for the rank's own rows.
            if (const int from = rank_at(rank, step); step > 0 && needs(rank, from)) {
                op = transfer(OpKind::receive, results_channel, Pool::output, step, from, rows_of(rank),
                              coming_slot(step));
                op.run_after(merged[index(step % 2)]);
                const auto own_arrival = co_yield op;
                op = merge(step, rows_of(rank), 0, coming_slot(step));
                op.begins = !merges_begun;
                op.run_after(own_arrival);
                merges_begun = true;
                merged[index(step % 2)] = co_yield op;
            }
            arrival = next_arrival;
        }
    }

    Ops backward(int rank) const {
        OpIndex arrival = -1;
        std::array<Readers, 3> readers;
        std::array<OpIndex, 3> sent{-1, -1, -1};  // by dq slot: the last send that read it
        bool has_keys_gradient = false;
        for (int step = 0; step < ranks(); ++step) {
            OpIndex next_arrival = -1;
            co_yield travel(rank, step, arrival, next_arrival, readers);

            const int owner = owner_at(rank, step);
            const auto [first, last] = hops(owner);
            if (first <= step && step <= last) {
                const bool starts = step == first;
                const int travelling = last == 0 ? 0 : 1 + step % 2;
                auto& travelling_sent = sent[index(travelling)];
                OpIndex complete = -1, gradient_arrival = -1;
                if (!starts) {
                    auto op = transfer(OpKind::receive, results_channel, Pool::dq, step, previous(rank), rows_of(owner),
                                       travelling);
                    op.run_after(travelling_sent);
                    complete = gradient_arrival = co_yield op;
                }
                auto op = attend(step, rows_of(owner), part(rank, kv_heads()), slot_of_step(step), 0);
                if (op.pair_count > 0) {
                    op.begins = true;
                    op.slot(Pool::dq) = starts ? travelling : partial_slot;
                    op.slot(Pool::dkv) = has_keys_gradient ? 1 : 0;
                    op.run_after(arrival);
                    if (starts) op.run_after(travelling_sent);
                    complete = readers[index(slot_of_step(step))].attend = co_yield op;
                    if (has_keys_gradient) {
                        co_yield add(Pool::dkv, step, part(rank, kv_heads()), 0, 1);
                    }
                    has_keys_gradient = true;
                    if (!starts) {
                        op = add(Pool::dq, step, rows_of(owner), travelling, partial_slot);
                        op.run_after(gradient_arrival);
                        complete = co_yield op;
                    }
                }
                if (last > 0) {
                    op = transfer(OpKind::send, results_channel, Pool::dq, step, step == last ? owner : next(rank),
                                  rows_of(owner), travelling);
                    op.run_after(complete);
                    travelling_sent = co_yield op;
                }
            }
            if (const int last_own_step = hops(rank).last; last_own_step > 0 && step == last_own_step)
                co_yield transfer(OpKind::receive, results_channel, Pool::dq, step + 1, rank_at(rank, step),
                                  rows_of(rank), 0);
            arrival = next_arrival;
        }
    }

    std::vector<Hops> hops_;  // by owner of rows: of the ranks whose keys they see
};

const ScheduleRegistration registered_pass_q(
    {"pass-q",
     "query rows and their results hop from rank to rank, K/V stay where they are",
     made<PassQSchedule>,
     {"pass-q"}});

}  // namespace
}  // namespace ringlab::layouts
