#pragma once

#include "gpu/elements/views.hpp"
#include "layouts/program/program.hpp"

#include <array>
#include <vector>

namespace ringlab::gpu {

/// Which tensors of a rank its caller lends for a pass, in memory of the caller's own; they have no place in a SlotMap.
enum class Lent {
    nothing,
    rounded,  ///< O, dQ, dK and dV in the problem's dtype
    /// And Q, dO, the fp32 O and lse, where no message reads or writes rows. What else belongs to rows (sums,
    /// statistics) is then in local memory.
    rounded_and_rows,
};

/// Choices that the contents of exchange memory depend on; the same on all ranks of a run.
struct MapOptions {
    bool round_running_output = false;  ///< see GpuOptions
    bool round_results = false;         ///< see GpuOptions
    bool output_arrives = false;        ///< some rank receives its own output; see output_arrives()
    std::size_t arrival_flags = 0;      ///< number of flags of a rank, see arrival_flags()
    std::size_t merging_pairs = 0;      ///< of 8 bytes, see merging_pairs()
    Lent lent = Lent::nothing;
};

/// Whether some rank receives its own output (slot 0 of Pool::output) as a message, as with `pass-q`.
bool output_arrives(const layouts::Program& forward);

/// Number of arrival flags of a rank: enough for an instruction of each rank and pass.
std::size_t arrival_flags(const std::vector<layouts::Program>& programs);

/// Elements of dK and dV that are gathered at a time to be compressed, in problems with a latent.
std::int64_t elements_compressed_at_once(const layouts::Schedule& backward, int rank);

/// Device memory of one rank, bytes.
struct MemoryUse {
    std::int64_t inputs = 0;   ///< Q, K, V and dO of the shard
    std::int64_t results = 0;  ///< O, lse, dQ, dK, dV
    std::int64_t slots = 0;    ///< scratch slots of the schedule, of the pass with more of them
    std::int64_t work = 0;     ///< running softmax, statistics, what arrives in another type, work lists

    std::array<std::int64_t, layouts::pool_count> slots_of_pool{};  ///< `slots` by pool

    std::int64_t total() const { return inputs + results + slots + work; }
};

/// Where the fields of a slot begin in a rank's exchange memory, and their types. The fields are the tensors of its
/// pool, see layouts::pool_table.
struct Frame {
    static constexpr std::size_t most_fields = layouts::PoolDescription::most_tensors;

    layouts::Pool pool = layouts::Pool::kv;
    /// Byte in exchange memory, by field. In a pool of keys the fields of a head follow each other, so only the first
    /// one is set.
    std::array<std::size_t, most_fields> begins{};
    std::array<DType, most_fields> dtypes{};
    bool local = false;  ///< in local memory, see SlotMap
};

/// Numbers of fields.
struct FieldOf {
    static constexpr std::size_t k = 0, v = 1;            ///< of kv, dkv
    static constexpr std::size_t o = 0, lse = 1;          ///< of output
    static constexpr std::size_t statistics = 1;          ///< of dout
    static constexpr std::size_t maximum = 1, total = 2;  ///< of state
};

/// One field of some heads and tokens of a frame.
struct Field {
    char* lent = nullptr;   ///< where it begins, of a tensor that is lent; null: in exchange or local memory
    std::size_t begin = 0;  ///< byte in that memory of the first head, batch element and token
    bool local = false;     ///< in local memory
    DType dtype = DType::fp32;
    Extent extent;
    Strides strides;
};

/// Where the tensors of a rank lie: in exchange memory, one piece of device memory that peers read and write, or in
/// local memory, which no peer sees and which holds nothing between passes. Any rank can work it out for any other.
///
/// A slot of keys lies head by head: K (batch, tokens, head_dim), then V (batch, tokens, value_dim); so any heads of a
/// whole block are one piece of memory and one message, out of slot 0 too, without packing. A slot of rows lies field
/// by field, and a field head by head: each can be where its own use wants it. Kernels take the strides as they are.
class SlotMap {
public:
    /// Number of elements to which the fields of one head are padded. So the size of a head does not depend on its
    /// type, and the next head is aligned.
    static constexpr std::int64_t padding = 128;

    /// `backward` may be null.
    SlotMap(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank, const MapOptions& options);

    std::size_t bytes() const { return exchange_.bytes; }
    std::size_t local_bytes() const { return local_.bytes; }

    /// The byte of the flag, four bytes long, of a message that may come early (Instruction): it has the number of the
    /// pass once the message is there. All flags lie together from byte 0.
    static std::size_t arrival_flag(layouts::Pass pass, std::size_t receive) {
        return (2 * receive + (pass == layouts::Pass::backward)) * sizeof(std::uint32_t);
    }
    /// The byte where messages of launches that merge begin, see MergingPass.
    std::size_t merging_pairs() const { return merging_pairs_; }
    /// Flags and messages of launches must be 0 before the first pass.
    std::size_t zeroed_bytes() const { return zeroed_bytes_; }
    const MemoryUse& memory() const { return memory_; }  ///< without work lists

    /// Where the slot of an operand lies.
    const Frame& frame(layouts::Pass pass, const layouts::Place& place) const;

    /// Where a message reads or writes. It is the same as frame(), except for the rank's own output if that is stored
    /// in another type than it travels in: then it arrives at a place of its own and is converted.
    const Frame& message_frame(layouts::Pass pass, const layouts::Place& place) const;
    bool converts_arrivals(const layouts::Place& place) const {
        return place.pool == layouts::Pool::output && place.slot == 0 && has_arrivals_;
    }

    /// Where results in the problem's dtype lie, if they are asked for: output, dq and dkv. The gradients overwrite
    /// scratch slots of the backward pass when nothing needs these any more.
    const Frame& rounded(layouts::Pool pool) const { return rounded_[static_cast<std::size_t>(pool)]; }
    bool rounds_output() const { return rounds_output_; }

    /// Whether dq lies where the fp32 output does.
    bool dq_overwrites_output() const { return dq_overwrites_output_; }

    std::size_t fields(layouts::Pool pool) const;
    Field field(const Frame& frame, const layouts::Place& place, std::size_t field) const;

    /// Bytes that a pass has to write before it reads them: [first, second).
    std::pair<std::size_t, std::size_t> undefined_at_start(layouts::Pass pass) const {
        return {pass == layouts::Pass::forward ? inputs_end_ : gradients_begin_, exchange_.bytes};
    }

private:
    using Frames = std::array<std::vector<Frame>, layouts::pool_count>;

    std::int64_t width(layouts::Pool pool, std::size_t field) const;
    std::int64_t field_elements(layouts::Pool pool, std::size_t field, std::int64_t tokens) const;
    bool is_local(layouts::Pool pool) const { return rows_are_local_ && of_rows(pool); }
    std::size_t take(layouts::Pool pool, std::int64_t bytes, std::int64_t& account);
    Frame make_frame(layouts::Pool pool, DType dtype, std::int64_t heads, std::int64_t tokens, std::int64_t& account);
    void place_scratch(const layouts::Schedule& pass);
    Frames& frames(layouts::Pass pass) { return frames_[static_cast<std::size_t>(pass)]; }

    /// Memory that is given out from its begin on.
    struct Memory {
        std::size_t cursor = 0, bytes = 0;

        std::size_t take(std::int64_t bytes);
    };

    const layouts::Problem& problem_;
    bool rows_are_local_;
    Memory exchange_, local_;
    std::size_t merging_pairs_ = 0, zeroed_bytes_ = 0, inputs_end_ = 0, gradients_begin_ = 0;
    MemoryUse memory_;
    std::array<Frames, 2> frames_;  // by pass
    std::array<Frame, layouts::pool_count> rounded_;
    Frame arrivals_;
    bool rounds_output_ = false, dq_overwrites_output_ = false, has_arrivals_ = false;
};

/// The maps of all ranks.
std::vector<SlotMap> slot_maps(const layouts::Schedule& forward, const layouts::Schedule* backward,
                               const MapOptions& options);

/// A piece of a message: `rows` equal pieces of memory at both ends.
struct Piece {
    std::size_t from = 0, to = 0;  ///< byte offsets in exchange memory
    std::size_t bytes = 0;         ///< of a row
    std::size_t rows = 1;
    std::size_t from_pitch = 0, to_pitch = 0;

    friend bool operator==(const Piece&, const Piece&) = default;
};

/// The pieces of a message that moves the same heads and tokens from one place to the other, as few as possible. Throws
/// Error if the two places have different types.
std::vector<Piece> pieces_between(const SlotMap& from_map, const Frame& from, const layouts::Place& from_place,
                                  const SlotMap& to_map, const Frame& to, const layouts::Place& to_place);

}  // namespace ringlab::gpu
