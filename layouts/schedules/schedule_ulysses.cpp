#include "layouts/schedules/ring.hpp"

namespace ringlab::layouts {
namespace {

/// All-to-all over heads (DeepSpeed Ulysses, Jacobs et al. 2023, arXiv 2309.14509): the ranks of a group exchange Q, K
/// and V, so that each has some heads of all tokens of the group, computes attention for them, and sends the results
/// back. The groups form rings, one ring for each position in the group: two dimensions, heads x sequence. The backward
/// pass exchanges Q, K and V again, because the forward pass has not kept them, and dO.
///
/// The ranks of a group are consecutive. If a group has more ranks than kv heads, ranks that share a kv head have
/// copies of it.
class UlyssesSchedule : public RingSchedule {
public:
    UlyssesSchedule(const ScheduleInput& input, int members) : RingSchedule(input), members_(members) {
        const auto& problem = input.problem;
        require(ranks() % members == 0,
                "groups of {} ranks do not divide {} ranks; give ulysses:RANKS a divisor of the ranks", members,
                ranks());
        require(problem.query_heads % members == 0,
                "{} query heads do not divide among {} ranks; give ulysses:RANKS a divisor of both the query heads and "
                "the ranks",
                problem.query_heads, members);
        require(problem.kv_heads % members == 0 || members % problem.kv_heads == 0,
                "{} kv heads can neither be divided among {} ranks nor copied to equally many of them; give "
                "ulysses:RANKS a divisor or a multiple of the kv heads",
                problem.kv_heads, members);
        set_channels({"K,V", "to heads", "to tokens"}, {"dK,dV"});
        dkv_channel_ = 3;
        if (members > 1) {
            first_block_ = add_groups(0);
            first_rows_ = problem.queries.empty() ? first_block_ : add_groups(row_block(0));
            gathered_ = 1;
        } else {
            first_rows_ = row_block(0);
        }
        find_hops(first_block_, first_rows_, groups());
        for (int group = 0; group < groups(); ++group) {
            sees_.push_back(some_group(group, [&](int keys) { return pairs(group, keys) > 0; }));
            is_seen_.push_back(some_group(group, [&](int rows) { return pairs(rows, group) > 0; }));
        }
        add_all_slots();
    }

    Ops ops(int rank) const override {
        if (members_ > 1) return whole_pass(rank);
        return options().pass == Pass::forward ? forward(member_of(rank)) : backward(member_of(rank));
    }

private:
    enum ExchangeChannel : int { to_heads = 1, to_tokens = 2 };

    int groups() const { return ranks() / members_; }
    int first_of(Pool pool) const { return of_rows(pool) ? first_rows_ : first_block_; }

    /// Adds for each group a block that concatenates the blocks of its ranks; block first_of_ranks + r is that of rank
    /// r. Returns the index of the first group's block.
    int add_groups(int first_of_ranks) {
        const int first = blocks();
        for (int group = 0; group < groups(); ++group) {
            std::vector<Run> runs;
            for (int member = 0; member < members_; ++member) {
                const auto own = block(first_of_ranks + group * members_ + member);
                runs.insert(runs.end(), own.begin(), own.end());
            }
            add_block(std::move(runs));
        }
        return first;
    }
    std::int64_t pairs(int rows_group, int keys_group) const {
        return pair_count(first_rows_ + rows_group, first_block_ + keys_group);
    }
    /// Whether `is` holds for any group. Tries `nearest` first, because most rows see keys of their own group.
    template <class Is>
    bool some_group(int nearest, Is is) const {
        for (int distance = 0; distance < groups(); ++distance)
            if (is((nearest + distance) % groups())) return true;
        return false;
    }
    bool shares_heads() const { return kv_heads().count() % members_ != 0; }

    HeadRange query_heads_of(int member) const {
        const int count = query_heads().count() / members_;
        return {member * count, (member + 1) * count};
    }
    HeadRange kv_heads_of(int member) const {
        if (shares_heads()) {
            const int head = member * kv_heads().count() / members_;
            return {head, head + 1};
        }
        const int count = kv_heads().count() / members_;
        return {member * count, (member + 1) * count};
    }
    HeadRange heads_of(Pool pool, int member) const {
        return of_rows(pool) ? query_heads_of(member) : kv_heads_of(member);
    }

    void add_all_slots() {
        std::int64_t most_rows = 0, most_keys = 0;
        for (int group = 0; group < groups(); ++group) {
            most_rows = std::max(most_rows, block_tokens(first_rows_ + group));
            most_keys = std::max(most_keys, block_tokens(first_block_ + group));
        }
        const int rows = query_heads_of(0).count(), keys = kv_heads_of(0).count();
        if (members_ == 1) return add_ring_slots(groups(), rows, keys, most_rows, most_keys);
        add_slots(Pool::q, 1, rows, most_rows);
        add_slots(Pool::kv, 1, keys, most_keys);
        if (options().pass == Pass::forward) {
            if (!partials()) add_slots(Pool::state, 1, rows, most_rows);
            add_slots(Pool::output, 1, rows, most_rows, partials() ? accumulator() : problem().dtype);
        } else {
            add_slots(Pool::dout, 1, rows, most_rows);
            add_slots(Pool::dq, 1, rows, most_rows);
            add_slots(Pool::dkv, 1, keys, most_keys);
        }
        add_ring_slots(groups(), rows, keys, most_rows, most_keys);
        if (partials()) {
            merged_ = gathered_ + 2;  // after the slot of the ring's partial result
            add_slots(Pool::output, 1, rows, most_rows);
        }
        if (options().pass == Pass::forward) return;
        int scratch = 0;
        for (const auto& group : slots())
            if (group.pool == Pool::dkv) scratch += group.count;
        // Two more, in the type of messages: a part that is sent to its owner, and one that arrives for this rank.
        outgoing_ = scratch + 1;
        add_slots(Pool::dkv, 2, keys, most_keys, options().gradient_dtype);
    }

    std::int64_t own_tokens(Pool pool, int rank) const { return block_tokens(own_block(pool, rank)); }
    Part own_part(Pool pool, int rank, HeadRange heads) const { return part(own_block(pool, rank), heads); }

    /// The part of the group's block that has the tokens of member `of_member`, for the heads of member `heads_member`.
    Part section(Pool pool, int rank, int of_member, int heads_member) const {
        const int group = rank / members_;
        std::int64_t begin = 0;
        for (int member = 0; member < of_member; ++member) begin += own_tokens(pool, group * members_ + member);
        return {first_of(pool) + group,
                heads_of(pool, heads_member),
                {begin, begin + own_tokens(pool, group * members_ + of_member)}};
    }

    Member member_of(int rank) const {
        Member self;
        self.position = rank / members_;
        self.size = groups();
        self.first_rank = rank % members_;
        self.stride = members_;
        self.first_block = first_block_;
        self.heads = kv_heads_of(rank % members_);
        self.rows = part(first_rows_ + self.position, query_heads_of(rank % members_));
        self.slot = gathered_;
        return self;
    }

    int peer(int rank, int member) const { return rank / members_ * members_ + member; }

    /// What a pass has done so far.
    struct Progress {
        OpIndex received = -1;      // the last message with Q, K, V or dO
        OpIndex copied = -1;        // the last copy of the rank's own
        OpIndex computed = -1;      // the last operation of the ring on the compute lane
        OpIndex own_gradient = -1;  // the arrival of the gradient of the rank's own keys
    };

    // Ranks without query rows have none to exchange.
    static bool is_empty(const Op& op) { return op.part.tokens.size() == 0; }

    /// Sends each member its heads of this rank's tokens, and receives this rank's heads of their tokens.
    Ops gather(int rank, std::vector<Pool> pools, Progress& progress) const {
        const int self = rank % members_;
        for (const auto pool : pools) {
            const auto own = copy(pool, 0, section(pool, rank, self, self), gathered_,
                                  own_part(pool, rank, heads_of(pool, self)), 0);
            if (!is_empty(own)) progress.copied = co_yield own;
        }
        for (int distance = 1; distance < members_; ++distance) {
            const int to = (self + distance) % members_, from = (self - distance + members_) % members_;
            for (const auto pool : pools) {
                const auto out = transfer(OpKind::send, to_heads, pool, 0, peer(rank, to),
                                          own_part(pool, rank, heads_of(pool, to)), 0);
                if (!is_empty(out)) progress.received = co_yield out;  // a send goes before a receive
                const auto in = transfer(OpKind::receive, to_heads, pool, 0, peer(rank, from),
                                         section(pool, rank, from, self), gathered_);
                if (!is_empty(in)) progress.received = co_yield in;
            }
        }
    }

    /// Sends results of rows, which are in `slot` once operation `ready` has ended, back to the rows' owners.
    Ops scatter(int rank, Pool pool, int slot, int step, OpIndex ready) const {
        const int self = rank % members_;
        const auto own =
            copy(pool, step, own_part(pool, rank, heads_of(pool, self)), 0, section(pool, rank, self, self), slot);
        if (!is_empty(own)) co_yield own;
        for (int distance = 1; distance < members_; ++distance) {
            const int to = (self + distance) % members_, from = (self - distance + members_) % members_;
            auto out =
                transfer(OpKind::send, to_tokens, pool, step, peer(rank, to), section(pool, rank, to, self), slot);
            out.run_after(ready);
            if (!is_empty(out)) co_yield out;
            const auto in = transfer(OpKind::receive, to_tokens, pool, step, peer(rank, from),
                                     own_part(pool, rank, heads_of(pool, from)), 0);
            if (!is_empty(in)) co_yield in;
        }
    }

    /// Sends dK and dV, converted to the type of messages, back to their owners, which sum them where members share
    /// heads.
    Ops scatter_gradients(int rank, int step, OpIndex own_gradient) const {
        const int self = rank % members_;
        auto kept =
            add(Pool::dkv, step, part(rank, kv_heads_of(self)), 0, section(Pool::dkv, rank, self, self), gathered_);
        kept.run_after(own_gradient);
        co_yield kept;
        OpIndex sent = -1, added = -1;
        for (int distance = 1; distance < members_; ++distance) {
            const int to = (self + distance) % members_, from = (self - distance + members_) % members_;
            auto leaving = copy(Pool::dkv, step, part(peer(rank, to), kv_heads_of(self)), outgoing_,
                                section(Pool::dkv, rank, to, self), gathered_);
            leaving.run_after(sent);
            leaving.run_after(own_gradient);
            const auto ready = co_yield leaving;
            auto out = transfer(OpKind::send, to_tokens, Pool::dkv, step, peer(rank, to), leaving.part, outgoing_);
            out.run_after(ready);
            sent = co_yield out;
            const auto mine = part(rank, kv_heads_of(from));
            auto in = transfer(OpKind::receive, to_tokens, Pool::dkv, step, peer(rank, from), mine, outgoing_ + 1);
            in.run_after(added);
            const auto arrived = co_yield in;
            auto sum = add(Pool::dkv, step, mine, 0, outgoing_ + 1);
            sum.run_after(arrived);
            sum.run_after(own_gradient);
            added = co_yield sum;
        }
    }

    /// The ring of groups, after gather().
    Ops ring(Member self, Progress& progress) const {
        const auto first = std::max(progress.received, progress.copied) + 1;
        auto stream = (options().pass == Pass::forward ? forward(self) : backward(self)).numbered_from(first);
        while (const auto* op = stream.next()) {
            const bool computes = op->lane() == compute_lane;
            const bool is_own_gradient =
                op->kind == OpKind::receive && op->pool == Pool::dkv && op->slot() == gathered_;
            const auto number = co_yield *op;
            if (computes) progress.computed = number;
            if (is_own_gradient) progress.own_gradient = number;
        }
    }

    std::vector<Pool> inputs() const {
        if (options().pass == Pass::forward) return {Pool::q, Pool::kv};
        return {Pool::q, Pool::dout, Pool::kv};
    }

    Ops whole_pass(int rank) const {
        const bool goes_forward = options().pass == Pass::forward;
        Progress progress;
        co_yield gather(rank, inputs(), progress);
        auto self = member_of(rank);
        self.ready = progress.received;
        self.copied = progress.copied;
        co_yield ring(self, progress);
        if (sees_[index(self.position)]) {
            if (partials())
                progress.computed = co_yield copy(Pool::output, groups(), self.rows, merged_, self.rows, gathered_);
            co_yield scatter(rank, goes_forward ? Pool::output : Pool::dq, partials() ? merged_ : gathered_, groups(),
                             progress.computed);
        }
        if (!goes_forward && is_seen_[index(self.position)])
            co_yield scatter_gradients(rank, groups() + 1, progress.own_gradient);
    }

    int members_;
    int first_block_ = 0, first_rows_ = 0;  // of the groups
    int gathered_ = 0;                      // slot of tensors gathered from the group
    int merged_ = 0;                        // slot of merged results, in the type of messages
    int outgoing_ = 0;
    std::vector<bool> sees_, is_seen_;  // by group: whether its rows see anything, whether its keys are seen
};

const ScheduleRegistration registered_ulysses(
    {"ulysses[:RANKS]",
     "groups of RANKS (all) consecutive ranks exchange tokens for heads before and after; K/V hop around a ring of "
     "groups",
     [](const std::string& arguments, const ScheduleInput& input) -> std::unique_ptr<Schedule> {
         const auto members = arguments.empty() ? input.layout.ranks()
                                                : parse_count(arguments, "the number of ranks that exchange heads", 1);
         require(members <= input.layout.ranks(), "{} ranks are to exchange heads, but there are only {} ranks",
                 members, input.layout.ranks());
         return std::make_unique<UlyssesSchedule>(input, static_cast<int>(members));
     },
     {"ulysses", "ulysses:2", "ulysses:4"}});

}  // namespace
}  // namespace ringlab::layouts
