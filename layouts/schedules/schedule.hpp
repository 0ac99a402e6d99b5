#pragma once

#include "layouts/layouts/layout.hpp"
#include "layouts/layouts/visible_pairs.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/operations/operation.hpp"
#include "layouts/problem/problem.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::layouts {

/// How the forward pass combines the results of several blocks.
enum class Accumulation {
    carry,     ///< the kernel continues the running softmax (o, m, l) from block to block without rounding it
    partials,  ///< each attend writes a normalised (o, lse) in the problem's dtype, which a merge operation combines
};

/// Which schedule make_schedule() makes, and for which pass.
struct ScheduleOptions {
    std::string schedule = "ring";  ///< as typed: "ring", "all-gather:2", "pull"
    Pass pass = Pass::forward;
    Accumulation accumulation = Accumulation::carry;
    DType gradient_dtype = DType::fp32;  ///< of dK and dV in messages
    /// Query rows of one interval of Problem::queries all belong to the owner of the interval's last position, instead
    /// of each row to the owner of its own position. A rank then reads the keys of a sequence for one owner only.
    bool keeps_rows_together = false;
};

/// Equal scratch slots that a schedule needs on every rank. The scratch slots of a pool are numbered from 1, group
/// after group.
struct SlotGroup {
    Pool pool = Pool::kv;
    int count = 0;
    int heads = 0;              ///< that each slot holds at a time
    std::int64_t tokens = 0;    ///< of the largest block that a slot may hold
    DType dtype = DType::bf16;  ///< of elements; m, l, lse and delta are always in the accumulator's type
};

/// What a schedule is made from.
struct ScheduleInput {
    const Problem& problem;
    const Mask& mask;
    const Layout& layout;
    const ScheduleOptions& options;
};

/// Which ranks need something that hops from rank to rank, in steps from its owner: the first and the last. Both 0 if
/// only the owner, or no rank, needs it.
struct Hops {
    int first = 0;
    int last = 0;
};

struct Program;

/// What every rank does and when: the single description of a pass that simulator, CPU and GPU interpret.
class Schedule {
public:
    /// Throws Error if problem, mask and layout disagree about the tokens, or the problem is not valid.
    Schedule(Problem problem, Mask mask, Layout layout, ScheduleOptions options);
    explicit Schedule(const ScheduleInput& input) : Schedule(input.problem, input.mask, input.layout, input.options) {}
    virtual ~Schedule() = default;
    Schedule(const Schedule&) = delete;
    Schedule& operator=(const Schedule&) = delete;

    const Problem& problem() const { return problem_; }
    const Mask& mask() const { return mask_; }
    const Layout& layout() const { return layout_; }
    const ScheduleOptions& options() const { return options_; }
    int ranks() const { return layout_.ranks(); }

    /// A new stream of the operations of `rank`, in constant memory. The schedule must outlive it.
    virtual Ops ops(int rank) const = 0;

    /// Whether the schedule is the same for all ranks up to a rotation: an operation of rank r is that of rank 0 with
    /// peer and blocks shifted by r, modulo the number of ranks. Attends are then to whole blocks, and their visible
    /// pairs, never 0, depend only on which of the blocks of rows and of keys has the greater index.
    virtual bool is_rank_symmetric() const { return rank_symmetric_; }

    /// Whether ranks read slot 0 of others by OpKind::fetch. It must then hold the inputs before the pass begins on any
    /// rank.
    virtual bool fetches() const { return false; }

    /// Whether a device may run a rank's pass as one launch. The launch attends to rows of other ranks and to the
    /// rank's own, stores rows and partial results in its peers' memory by itself, and merges. The operations are:
    /// sends of own rows from slot 0; receives of rows; attends to them, then to the own rows, all to the rank's own
    /// keys; sends and receives of results; merges into slot 0 in the order of the schedule. Every slot is written
    /// once.
    virtual bool is_one_launch() const { return false; }

    /// The scratch slots that every rank needs.
    const std::vector<SlotGroup>& slots() const { return slots_; }
    /// The group that a scratch slot belongs to; null for slot 0, and if there is no such slot.
    const SlotGroup* slot_group(Pool pool, int slot) const;

    /// The name of each channel that this pass uses, after what travels on it: "K,V".
    const std::vector<std::string>& channels() const { return channels_; }
    int lanes() const { return 1 + 2 * static_cast<int>(channels_.size()); }
    std::string lane_name(Lane lane) const;

    /// A block is a list of tokens that are stored together. Block r is the shard of rank r; a schedule may add blocks
    /// composed of parts of shards. If not all positions have a query row, the rows of a rank are a block of their own.
    int blocks() const { return static_cast<int>(blocks_.size()); }
    std::span<const Run> block(int index) const;
    std::int64_t block_tokens(int index) const { return blocks_[static_cast<std::size_t>(index)].tokens; }

    /// Whether ranks own tensors in slot 0 of a pool. With a latent they own K and V only if these are expanded at
    /// their owner.
    bool keeps(Pool pool) const {
        if (pool == Pool::kv || pool == Pool::dkv) return !problem_.latent.is_given() || expands_at_owner_;
        return (pool != Pool::latent && pool != Pool::dlatent) || problem_.latent.is_given();
    }

    /// The block of a rank's query rows, and the block that slot 0 of a pool holds.
    int row_block(int rank) const { return first_row_block_ + rank; }
    int own_block(Pool pool, int rank) const { return of_rows(pool) ? row_block(rank) : rank; }

    /// The part that has all tokens of a block.
    Part part(int block, HeadRange heads) const { return {block, heads, {0, block_tokens(block)}}; }
    Part rows_of(int rank, HeadRange heads) const { return part(row_block(rank), heads); }
    bool is_whole(const Part& part) const { return part.tokens == Interval{0, block_tokens(part.block)}; }

    /// Global positions of a part, in its order, at which the mask is evaluated. Virtual, like modify_program(), so
    /// that experiments can inject mistakes on purpose.
    virtual std::vector<Run> runs(const Part& part) const;

    /// Called by resolve() at its end, after all checks, to change the program that it returns. For injected mistakes.
    virtual void modify_program(Program&) const {}

    /// Global positions of a rank's query rows in local order, and their indices in Q.
    std::vector<std::int64_t> row_positions(int rank) const { return positions_of(block(row_block(rank))); }
    std::vector<std::int64_t> row_indices(int rank) const { return problem_.row_indices_of(row_positions(rank)); }

    /// Number of visible pairs, for one query head and batch element, between rows and keys.
    std::int64_t pair_count(const Part& rows, const Part& keys) const;
    std::int64_t pair_count(int rows_block, int keys_block) const;
    /// Whether any query row of `rank` sees a key of `owner`.
    bool needs(int rank, int owner) const { return sees(row_block(rank), owner); }

    /// Whether any of the rows sees any of the keys.
    bool sees(int rows_block, int keys_block) const;

    /// Element type of a slot of a pool.
    DType dtype(Pool pool, int slot) const;

    /// Element type of sums: fp64 for an fp64 problem, otherwise fp32.
    DType accumulator() const { return problem_.dtype == DType::fp64 ? DType::fp64 : DType::fp32; }

    /// Bytes of one token of one head and batch element in a slot, and of a part with all batch elements.
    std::int64_t token_bytes(Pool pool, int slot) const;
    std::int64_t bytes(Pool pool, int slot, const Part& part) const {
        return problem_.batch * part.tokens.size() * part.heads.count() * token_bytes(pool, slot);
    }

    /// Floating-point operations of an attend, for all its heads and batch elements.
    double flop(const Op& attend) const;

    /// Bytes of all scratch slots of a rank.
    std::int64_t scratch_bytes() const;

protected:
    /// Operations that read a slot of blocks that travel, and must end before it is overwritten.
    struct Readers {
        OpIndex attend = -1, send = -1;

        void let_go(Op& op) const {
            op.run_after(attend);
            op.run_after(send);
        }
    };

    static constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

    /// The rank so many places after or before another in the ring of all ranks.
    int ahead(int rank, int distance) const { return behind(rank, -distance); }
    int behind(int rank, int distance) const { return (rank - distance + 2 * ranks()) % ranks(); }

    /// The largest distance of a block behind a rank that the rank needs; -1 if it needs none.
    int farthest_needed(int rank) const;

    /// Hops of something that at most `last` steps may need, if `needed(step)` says which do. `first`: the step from
    /// which on it counts.
    template <class Needed>
    static Hops hops_of(int last, Needed needed, int first = 0) {
        while (last > 0 && !needed(last)) --last;
        first = std::min(first, last);
        while (first < last && !needed(first)) ++first;
        return {first, last};
    }

    HeadRange kv_heads() const { return {0, static_cast<int>(problem_.kv_heads)}; }
    HeadRange query_heads() const { return {0, static_cast<int>(problem_.query_heads)}; }

    /// The query heads that read these kv heads.
    HeadRange query_heads(HeadRange kv_heads) const;

    /// For schedules that fuse all attends of a pass into one launch: into how many equal groups of kv heads a block is
    /// cut, each of which travels by itself. Forward: `given`, or for 0 as many as leave each group enough bytes to be
    /// worth a message. Backward: two, or one if the kv heads cannot be halved.
    int head_groups_of_fused_launch(int given) const;

    /// The kv heads of one of `groups` equal groups.
    HeadRange heads_of_group(int group, int groups) const;

    // For constructors of schedules.
    void set_channels(std::vector<std::string> names) { channels_ = std::move(names); }

    /// The same, with additional channels in the backward pass. A pass should not have channels that it does not use,
    /// because their lanes would be waited for.
    void set_channels(std::vector<std::string> names, const std::vector<std::string>& backward_names);
    void add_slots(Pool pool, int count, int heads, std::int64_t tokens, DType dtype);
    void add_slots(Pool pool, int count, int heads,
                   std::int64_t tokens);  ///< with the element type of slot 0
    /// For a schedule that depends only on distances between ranks. It fulfils is_rank_symmetric() if every rank sees
    /// something of every block, all tokens have a query row, and pairs_depend_on_rank_order().
    void find_rank_symmetry();
    /// K and V are expanded from the latent at their owner, so ranks own K and V, see keeps().
    void expand_at_owner() { expands_at_owner_ = true; }
    void add_block(std::vector<Run> runs);
    /// Takes over the blocks of a schedule of the same layout and query rows.
    void take_blocks(const Schedule& other) { blocks_ = other.blocks_; }
    std::int64_t largest_rows() const;  ///< largest number of query rows of a rank
    bool partials() const { return options_.pass == Pass::forward && options_.accumulation == Accumulation::partials; }

    // Operations with those fields filled in that follow from the problem; the caller adds begins, ends and
    // dependencies. An attend uses slot `row_slot` of all pools of rows, with one exception: with
    // Accumulation::partials its output slot is row_slot + 1, and begins and ends are set. `part` and `slot` are
    // written; `read` and `source` are the part and the slot that are read.
    Op attend(int step, const Part& rows, const Part& keys, int row_slot, int kv_slot) const;
    Op merge(int step, const Part& rows, int slot, int source) const {
        return from_source(OpKind::merge, Pool::output, step, rows, slot, rows, source);
    }
    Op add(Pool pool, int step, const Part& part, int slot, int source) const {
        return from_source(OpKind::add, pool, step, part, slot, part, source);
    }
    Op add(Pool pool, int step, const Part& part, int slot, const Part& read, int source) const {
        return from_source(OpKind::add, pool, step, part, slot, read, source);
    }
    Op copy(Pool pool, int step, const Part& part, int slot, const Part& read, int source) const {
        return from_source(OpKind::copy, pool, step, part, slot, read, source);
    }
    /// `keys` has the heads for which K and V are computed, or over which their gradients are summed.
    Op expand(int step, const Part& keys, int slot, int source) const;
    Op compress(int step, const Part& keys, int slot, int latent_slot, int source) const;
    Op transfer(OpKind kind, int channel, Pool pool, int step, int peer, const Part& part, int slot) const;

private:
    struct Block {
        std::vector<Run> runs;  // empty: a shard of the layout
        std::int64_t tokens;
        KeyCounter keys;
    };

    void add_blocks_of_whole_intervals();
    Op from_source(OpKind kind, Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;

    Problem problem_;
    Mask mask_;
    Layout layout_;
    ScheduleOptions options_;
    std::vector<Block> blocks_;
    int first_row_block_ = 0;
    bool expands_at_owner_ = false;
    bool rank_symmetric_ = false;
    std::vector<SlotGroup> slots_;
    std::vector<std::string> channels_;
};

/// Whether the number of visible pairs between the rows of one rank and the keys of another depends only on which of
/// the two ranks is the greater. True for full masks over equal shards. True for causal masks if, for every i, the i-th
/// runs of all ranks are ordered by rank, ascending or descending, as with contiguous, zigzag and striped. Linear in
/// the number of runs.
bool pairs_depend_on_rank_order(const Mask& mask, const Layout& layout);

/// Throws Error that says what differs unless both schedules have the same problem, layout and mask. Code that executes
/// one pass after the other needs this, because it keeps the tensors in between.
void require_same_problem(const Schedule& forward, const Schedule& backward);

/// Makes the schedule that `options` names. Throws Error if the name or its arguments are wrong, or if the schedule
/// cannot be used for the problem. With a latent, the latent travels in the place of K and V, whatever the schedule
/// (except `expanded`).
std::unique_ptr<Schedule> make_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                        const ScheduleOptions& options);

/// Schedule `options.schedule` for a problem with a latent. The latent travels wherever the schedule sends K and V, as
/// the K of a single kv head. Before each attend, K and V of its heads are expanded from the latent into a scratch
/// slot, which all blocks share; after a backward attend, dK and dV in such a slot are compressed to the latent's
/// gradient, which travels wherever the schedule sends dK and dV.
///
/// Throws Error if K and V do not travel in that schedule.
std::unique_ptr<Schedule> make_latent_schedule(const ScheduleInput& input);

/// Name of the schedule that expands K and V from the latent at their owner, before they travel.
inline constexpr const char* expanded_schedule_name = "expanded";

using ScheduleFactory =
    std::function<std::unique_ptr<Schedule>(const std::string& arguments, const ScheduleInput& input)>;
Registry<ScheduleFactory>& schedules();

/// Parses the argument GROUPS of a schedule such as "pull:4": the number of equal groups of kv heads; 0 if there is
/// none. Throws Error if it is no whole number that divides the kv heads.
int parse_head_groups(const std::string& arguments, const Problem& problem);

/// Factories of schedules T(input), which take no arguments, and of T(input, parse_head_groups()).
template <class T>
std::unique_ptr<Schedule> made(const std::string&, const ScheduleInput& input) {
    return std::make_unique<T>(input);
}
template <class T>
std::unique_ptr<Schedule> made_of_head_groups(const std::string& arguments, const ScheduleInput& input) {
    return std::make_unique<T>(input, parse_head_groups(arguments, input.problem));
}

/// Makes a schedule known by name.
using ScheduleRegistration = Registration<schedules>;

}  // namespace ringlab::layouts
