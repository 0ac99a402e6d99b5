#include "layouts/schedules/schedule.hpp"

#include <algorithm>
#include <bit>

namespace ringlab::layouts {
namespace {

/// K and V stay where they are. Query rows go to every rank that has keys for them, and each rank's partial result
/// returns to the rows' owner, which merges them. This suits decoding over a sharded cache, where rows are few. Rows
/// and results travel directly from and to their owner, or along a binary tree (Shyam et al. 2024, arXiv 2408.04093),
/// in which a rank merges the results of its children before it passes them on: the number of hops is then the
/// logarithm of the number of ranks, with one message per hop.
///
/// Or all of a rank's operations are made to be one launch, see is_one_launch(). Then the attends to other ranks' rows
/// come first, because their owners wait for the results, and each arriving result has a slot of its own.
///
/// In the backward pass dO travels with the rows, and partial dQ return to the owner; dK and dV stay.
class MergeSchedule : public Schedule {
public:
    enum class Way { direct, tree, one_launch };

    MergeSchedule(const ScheduleInput& input, Way way) : Schedule(input), way_(way) {
        require(ranks() <= most_ranks,
                "{} ranks; schedule merge looks at all pairs of ranks and supports at most {} ranks", ranks(),
                most_ranks);
        set_channels(options().pass == Pass::forward ? std::vector<std::string>{"Q", "results"}
                                                     : std::vector<std::string>{"Q,dO", "dQ"});
        for (int owner = 0; owner < ranks(); ++owner) {
            auto& rows = rows_of_owners_.emplace_back();
            rows.members = {owner};
            for (int distance = 1; distance < ranks(); ++distance)
                if (const int rank = ahead(owner, distance); needs(owner, rank)) rows.members.push_back(rank);
            if (rows.members.size() > 1) rows.slot = 1 + travelling_++;
            levels_ = std::max(levels_, level(static_cast<int>(rows.members.size()) - 1) + 1);
        }
        if (way_ == Way::one_launch) coming_ = std::max(1, levels_);
        add_all_slots();
    }

    bool is_one_launch() const override { return way_ == Way::one_launch && !backward() && !partials(); }

    Ops ops(int rank) const override {
        std::vector<Progress> progress(rows_of_owners_.size());
        co_yield distribute_rows(rank, progress);
        co_yield attend_all(rank, progress);
        co_yield return_results(rank, progress);
    }

private:
    enum Channel : int { rows_channel, results_channel };
    static constexpr int most_ranks = 2048;

    /// The ranks that need the rows of one owner.
    struct RowsOfOwner {
        std::vector<int> members;  // the owner, then the others that have keys for them
        int slot = 0;              // of these rows at the other ranks
    };
    /// What a rank has done so far with the rows of one owner.
    struct Progress {
        OpIndex arrived = -1;   // the last message with these rows
        OpIndex complete = -1;  // the operation that completes their result so far; -1: there is none yet
    };

    const RowsOfOwner& rows_of_owner(int owner) const { return rows_of_owners_[index(owner)]; }
    bool tree() const { return way_ == Way::tree; }
    bool backward() const { return options().pass == Pass::backward; }
    Pool results() const { return backward() ? Pool::dq : Pool::output; }
    Part rows_of(int owner) const { return Schedule::rows_of(owner, query_heads()); }
    int slot_at(int rank, int owner) const { return rank == owner ? 0 : rows_of_owner(owner).slot; }
    // Result slots: those of other ranks' rows have the same slots as the rows. `coming_` more, in turn, receive
    // arriving results, and with partials one more holds the result of an attend.
    int coming_slot(int turn) const { return travelling_ + 1 + turn % coming_; }
    int partial_slot() const { return travelling_ > 0 ? travelling_ + coming_ + 1 : 1; }

    void add_all_slots() {
        const int heads = query_heads().count();
        const auto rows = largest_rows();
        if (travelling_ > 0) {
            add_slots(Pool::q, travelling_, heads, rows);
            add_slots(results(), travelling_ + coming_, heads, rows, accumulator());
        }
        if (partials()) add_slots(Pool::output, 1, heads, rows);
        if (!backward()) return;
        add_slots(Pool::dout, travelling_, heads, rows);
        add_slots(Pool::dkv, 1, kv_heads().count(), layout().largest_shard());
    }

    // The members for an owner's rows form a tree with member 0, the owner, as its root. At level L of a binary tree
    // each member below 2^L sends to the member 2^L further on; without a tree the owner sends to one member after
    // another.
    int level(int member) const {
        if (member == 0) return -1;
        return tree() ? std::bit_width(static_cast<unsigned>(member)) - 1 : member - 1;
    }
    int parent(int member) const {
        return tree() ? member - static_cast<int>(std::bit_floor(static_cast<unsigned>(member))) : 0;
    }
    /// The member to which `member` sends the rows at level `at`; -1 if there is none.
    int child(const RowsOfOwner& rows, int member, int at) const {
        const int next = tree() ? member + (1 << at) : at + 1;
        const bool passes = tree() ? level(member) < at : member == 0;
        return passes && next < static_cast<int>(rows.members.size()) ? next : -1;
    }
    /// The index of a rank among the members; -1 if it is not one of them.
    static int member_of(const RowsOfOwner& rows, int rank) {
        const auto found = std::find(rows.members.begin(), rows.members.end(), rank);
        return found == rows.members.end() ? -1 : static_cast<int>(found - rows.members.begin());
    }

    Ops distribute_rows(int rank, std::vector<Progress>& progress) const {
        const std::vector<Pool> pools = backward() ? std::vector{Pool::q, Pool::dout} : std::vector{Pool::q};
        for (int at = 0; at < levels_; ++at)
            for (int owner = 0; owner < ranks(); ++owner) {
                const auto& rows = rows_of_owner(owner);
                const int self = member_of(rows, rank), next = self < 0 ? -1 : child(rows, self, at);
                if (self < 0) continue;
                for (const auto pool : pools) {
                    if (level(self) == at)
                        progress[index(owner)].arrived =
                            co_yield transfer(OpKind::receive, rows_channel, pool, at,
                                              rows.members[index(parent(self))], rows_of(owner), rows.slot);
                    if (next < 0) continue;
                    auto op = transfer(OpKind::send, rows_channel, pool, at, rows.members[index(next)], rows_of(owner),
                                       slot_at(rank, owner));
                    op.run_after(progress[index(owner)].arrived);
                    co_yield op;
                }
            }
    }

    /// Attends of the rank's own rows first, which wait for nothing, then of the rows that have arrived. In one launch
    /// the own rows come last.
    Ops attend_all(int rank, std::vector<Progress>& progress) const {
        bool has_keys_gradient = false;
        const int first = way_ == Way::one_launch ? 1 : 0;
        for (int distance = first; distance < first + ranks(); ++distance) {
            const int owner = behind(rank, distance), slot = slot_at(rank, owner);
            if (!needs(owner, rank)) continue;
            auto& done = progress[index(owner)];
            auto op = attend(levels_, rows_of(owner), part(rank, kv_heads()), slot, 0);
            op.begins = true;
            op.ends = !backward();
            op.slot(Pool::output) = partials() ? partial_slot() : slot;
            op.slot(Pool::dkv) = has_keys_gradient ? 1 : 0;
            op.run_after(done.arrived);
            done.complete = co_yield op;
            if (partials()) {
                op = merge(levels_, rows_of(owner), slot, partial_slot());
                op.begins = true;
                done.complete = co_yield op;
            }
            if (has_keys_gradient) co_yield add(Pool::dkv, levels_, part(rank, kv_heads()), 0, 1);
            has_keys_gradient |= backward();
        }
    }

    Ops return_results(int rank, std::vector<Progress>& progress) const {
        // By slot of arriving results: the last operation that read it.
        std::vector<OpIndex> taken_in(index(coming_), -1);
        int turn = 0;
        for (int at = levels_ - 1; at >= 0; --at)
            for (int owner = 0; owner < ranks(); ++owner) {
                const auto& rows = rows_of_owner(owner);
                auto& done = progress[index(owner)];
                const int self = member_of(rows, rank), step = 2 * levels_ - at;
                if (self < 0) continue;
                if (const int from = child(rows, self, at); from >= 0) {
                    auto& read = taken_in[index(turn % coming_)];
                    auto op = transfer(OpKind::receive, results_channel, results(), step, rows.members[index(from)],
                                       rows_of(owner), coming_slot(turn));
                    op.run_after(read);
                    const auto arrival = co_yield op;
                    op = take_in(step, rows_of(owner), slot_at(rank, owner), coming_slot(turn), done.complete < 0);
                    op.run_after(arrival);
                    read = done.complete = co_yield op;
                    ++turn;
                }
                if (level(self) != at) continue;
                auto op = transfer(OpKind::send, results_channel, results(), step, rows.members[index(parent(self))],
                                   rows_of(owner), rows.slot);
                op.run_after(done.complete);
                co_yield op;
            }
    }

    Op take_in(int step, const Part& rows, int slot, int source, bool first) const {
        if (backward())
            return first ? copy(Pool::dq, step, rows, slot, rows, source) : add(Pool::dq, step, rows, slot, source);
        auto op = merge(step, rows, slot, source);
        op.begins = first;
        return op;
    }

    Way way_;
    int coming_ = 2;  // slots of arriving results
    int levels_ = 0;
    int travelling_ = 0;  // number of owners whose rows travel
    std::vector<RowsOfOwner> rows_of_owners_;
};

const ScheduleRegistration registered_merge(
    {"merge[:tree]",
     "K/V stay, query rows go to all ranks that have keys for them; partial results are merged at the owner, or along "
     "a tree",
     [](const std::string& arguments, const ScheduleInput& input) -> std::unique_ptr<Schedule> {
         require(arguments.empty() || arguments == "tree", "schedule merge takes no argument, or tree, got '{}'",
                 arguments);
         const auto way = arguments == "tree" ? MergeSchedule::Way::tree : MergeSchedule::Way::direct;
         return std::make_unique<MergeSchedule>(input, way);
     },
     {"merge", "merge:tree"}});

const ScheduleRegistration registered_joined_merge({"joined-merge",
                                                    "merge with all of a rank's forward pass in one launch, which "
                                                    "stores rows and partial results in the memory of its "
                                                    "peers: for a few query rows on GPUs of one host",
                                                    [](const std::string&,
                                                       const ScheduleInput& input) -> std::unique_ptr<Schedule> {
                                                        return std::make_unique<MergeSchedule>(
                                                            input, MergeSchedule::Way::one_launch);
                                                    },
                                                    {"joined-merge"}});

}  // namespace
}  // namespace ringlab::layouts
