#pragma once

#include "layouts/layout.hpp"
#include "layouts/mask.hpp"
#include "layouts/operation_stream.hpp"
#include "layouts/problem.hpp"
#include "layouts/work.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::layouts {

/// How forward partial results of several blocks become one.
enum class Accumulation {
    carry,     ///< (o, m, l) continue inside the kernel from block to block, nothing is rounded between
    partials,  ///< every block gives a normalised (o, lse) in the problem's dtype, merged by an operation of its own
};

struct ScheduleOptions {
    std::string algorithm = "ring";  ///< as typed: "ring", "all-gather:2", "pull"
    Pass pass = Pass::forward;
    Accumulation accumulation = Accumulation::carry;
    DType gradient_dtype = DType::fp32;  ///< of dK, dV between ranks
};

/// Scratch slots of one kind that a schedule asks of every rank. Those of a pool are numbered from 1, through its
/// groups in order.
struct SlotGroup {
    Pool pool = Pool::kv;
    int count = 0;
    int heads = 0;              ///< that each holds at a time
    std::int64_t tokens = 0;    ///< of the largest block that each may hold
    DType dtype = DType::bf16;  ///< of elements; m, l, lse and delta are always in the accumulator's type
};

struct Program;

/// What every rank does and when: the one description that simulator, CPU and GPU interpret.
class Schedule {
public:
    /// Throws Error if problem, mask and layout disagree about the tokens, or the problem is not valid.
    Schedule(Problem problem, Mask mask, Layout layout, ScheduleOptions options);
    virtual ~Schedule() = default;
    Schedule(const Schedule&) = delete;
    Schedule& operator=(const Schedule&) = delete;

    const Problem& problem() const { return problem_; }
    const Mask& mask() const { return mask_; }
    const Layout& layout() const { return layout_; }
    const ScheduleOptions& options() const { return options_; }
    int ranks() const { return layout_.ranks(); }

    /// A fresh stream of the operations of `rank`. Constant memory; the schedule must outlive it.
    virtual Ops ops(int rank) const = 0;

    /// Whether ranks do the same but for their number: an operation of rank r is rank 0's with its peer and blocks r
    /// ranks further on, around the ring. Attends are to whole blocks, and their cells, never 0, depend on nothing but
    /// which of rows and keys is the greater block.
    virtual bool ranks_are_alike() const { return false; }

    /// Whether ranks read slot 0 of others by OpKind::fetch, so that it must hold what they read from the start.
    virtual bool fetches() const { return false; }

    /// Scratch of every rank.
    const std::vector<SlotGroup>& slots() const { return slots_; }

    /// What travels on each channel that this pass uses, for people: "K,V".
    const std::vector<std::string>& channels() const { return channels_; }
    int lanes() const { return 1 + 2 * static_cast<int>(channels_.size()); }
    std::string lane_name(Lane lane) const;

    /// Tokens that lie together: block r is the shard of rank r; a schedule may put others together from shards. Where
    /// few positions have a query row, a rank's rows are a block of their own.
    int blocks() const { return static_cast<int>(blocks_.size()); }
    std::span<const Run> block(int index) const;
    std::int64_t block_tokens(int index) const { return blocks_[static_cast<std::size_t>(index)].tokens; }

    /// Whether a rank has something of its own in slot 0 of a pool. With a latent no K and V unless they are expanded
    /// at home.
    bool keeps(Pool pool) const {
        if (pool == Pool::kv || pool == Pool::dkv) return !problem_.latent.is_given() || expands_at_home_;
        return (pool != Pool::latent && pool != Pool::dlatent) || problem_.latent.is_given();
    }

    /// The block of a rank's own rows, and of what slot 0 of a pool holds.
    int row_block(int rank) const { return first_row_block_ + rank; }
    int own_block(Pool pool, int rank) const { return of_rows(pool) ? row_block(rank) : rank; }

    /// All tokens of a block.
    Part part(int block, HeadRange heads) const { return {block, heads, {0, block_tokens(block)}}; }
    Part rows_of(int rank, HeadRange heads) const { return part(row_block(rank), heads); }
    bool is_whole(const Part& part) const { return part.tokens == Interval{0, block_tokens(part.block)}; }

    /// Global positions of a part, in its order: what the mask is asked with. Virtual, as amend(), so that mistakes can
    /// be made on purpose from outside.
    virtual std::vector<Run> runs(const Part& part) const;

    /// Changes what resolve() made of this schedule, when all its rules have been checked.
    virtual void amend(Program&) const {}

    /// Positions of a rank's own rows, in local order, and where they lie in Q.
    std::vector<std::int64_t> row_positions(int rank) const;
    std::vector<std::int64_t> row_places(int rank) const { return problem_.rows_at(row_positions(rank)); }

    /// Visible pairs of one query head and batch element between rows and keys.
    std::int64_t cells(const Part& rows, const Part& keys) const;
    std::int64_t cells(int rows_block, int keys_block) const;
    bool needs(int rank, int owner) const { return sees(row_block(rank), owner); }

    /// Whether there are any.
    bool sees(int rows_block, int keys_block) const;

    /// Element type of a slot of a pool; slot 0 is the rank's own.
    DType dtype(Pool pool, int slot) const;

    /// Of sums: fp64 for an fp64 problem, else fp32.
    DType accumulator() const { return problem_.dtype == DType::fp64 ? DType::fp64 : DType::fp32; }

    /// Bytes of one token of one head and batch element in a slot.
    std::int64_t token_bytes(Pool pool, int slot) const;
    std::int64_t bytes(Pool pool, int slot, const Part& part) const {
        return problem_.batch * part.tokens.size() * part.heads.count() * token_bytes(pool, slot);
    }

    /// Floating-point operations of an attend, all its heads and batch elements.
    double flop(const Op& attend) const;

    /// Bytes of scratch slots per rank.
    std::int64_t scratch_bytes() const;

protected:
    HeadRange kv_heads() const { return {0, static_cast<int>(problem_.kv_heads)}; }
    HeadRange query_heads() const { return {0, static_cast<int>(problem_.query_heads)}; }

    /// The query heads that read these kv heads.
    HeadRange query_heads(HeadRange kv_heads) const;

    /// Where all attends of a pass are one launch, a block is cut into so many equal parts of the kv heads, each of
    /// which travels by itself. Forward `given`, or for 0 as many as are each large enough to be worth a message;
    /// backward two, if the heads can be halved. Throws Error if they do not divide.
    int parts_of_one_launch(int given) const;
    HeadRange heads_of_part(int part, int parts) const;

    // For constructors.
    void set_channels(std::vector<std::string> names) { channels_ = std::move(names); }

    /// With more of them in the backward pass. Lanes that a pass never uses would be waited for.
    void set_channels(std::vector<std::string> names, const std::vector<std::string>& backward_names);
    void add_slots(Pool pool, int count, int heads, std::int64_t tokens, DType dtype);
    void add_slots(Pool pool, int count, int heads, std::int64_t tokens);  ///< of the type that slot 0 has
    void expand_at_home() { expands_at_home_ = true; }
    int add_block(std::vector<Run> runs);
    std::int64_t largest_rows() const;
    bool partials() const { return options_.pass == Pass::forward && options_.accumulation == Accumulation::partials; }

    // Operations with the fields that follow from the problem filled in; the caller adds what begins and ends, and
    // dependencies. An attend has its rows in `row_slot` of all pools, but for output: with Accumulation::partials that
    // is the slot after it, and the attend begins and ends there.
    Op attend(int step, const Part& rows, const Part& keys, int row_slot, int kv_slot) const;
    Op merge(int step, const Part& rows, int slot, int source) const;
    Op add(Pool pool, int step, const Part& part, int slot, int source) const;
    Op add(Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;
    Op copy(Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;
    /// `keys` with the heads that K and V are made for, or that their gradients are summed over.
    Op expand(int step, const Part& keys, int slot, int source) const;
    Op compress(int step, const Part& keys, int slot, int latent_slot, int source) const;
    Op transfer(OpKind kind, int channel, Pool pool, int step, int peer, const Part& part, int slot) const;

private:
    struct Block {
        std::vector<Run> runs;  // empty: a shard of the layout
        std::int64_t tokens;
        KeyCounter keys;
    };

    Op take_in(OpKind kind, Pool pool, int step, const Part& part, int slot, const Part& read, int source) const;

    Problem problem_;
    Mask mask_;
    Layout layout_;
    ScheduleOptions options_;
    std::vector<Block> blocks_;
    int first_row_block_ = 0;
    bool expands_at_home_ = false;
    std::vector<SlotGroup> slots_;
    std::vector<std::string> channels_;
};

/// Throws Error where the schedule's name or its arguments are wrong, or where it has no use for the problem. With a
/// latent that is what travels in place of K and V, whichever schedule it is; see latent.hpp.
std::unique_ptr<Schedule> make_schedule(const Problem& problem, const Mask& mask, const Layout& layout,
                                        const ScheduleOptions& options);

using ScheduleFactory = std::function<std::unique_ptr<Schedule>(const std::string& arguments, const Problem&,
                                                                const Mask&, const Layout&, const ScheduleOptions&)>;
Registry<ScheduleFactory>& schedules();

/// The PARTS of a schedule's name, as of "pull:4", that `Schedule::parts_of_one_launch` takes; 0 where it has none.
int parse_parts_of_heads(const std::string& arguments, const Problem& problem);

/// A namespace-scope object of this type makes a schedule known by name.
struct ScheduleRegistration {
    ScheduleRegistration(std::string name, std::string usage, std::string help, ScheduleFactory factory) {
        schedules().add(std::move(name), {std::move(usage), std::move(help), std::move(factory)});
    }
};

}  // namespace ringlab::layouts
