#pragma once

#include "gpu/elements/views.hpp"
#include "gpu/kernels/work_list.hpp"

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

// The kernels of one attention step. Every function enqueues on `stream` of the current device and returns at once. Its
// operands must stay alive and unchanged until the stream has passed it. Wrong arguments and failed launches throw
// Error.

namespace ringlab::gpu {

/// One attend: all query rows of a rank against one K/V block, for the kv heads that the block holds.
///
/// Views point at the first head that takes part. For kv heads [begin, end) of a shard, give q.from_head(begin * group)
/// and kv_heads = end - begin.
struct AttendShape {
    std::int64_t batch = 1;
    std::int64_t kv_heads = 1;
    std::int64_t query_heads_per_kv_head = 1;
    std::int64_t head_dim = 128;        ///< of q and k, 1 to 256
    std::int64_t value_dim = 128;       ///< of v, o and dout, 1 to 256
    double scale = 1;                   ///< of q.k, as Problem::effective_scale() gives it; any sign
    double soft_cap = 0;                ///< c > 0 turns a score s into c*tanh(s/c); 0 leaves it
    DType dtype = DType::bf16;          ///< of q, k, v and dout: bf16 or fp16
    layouts::Dropout dropout = {};      ///< of p; the work list must say drops_out
    std::int64_t first_query_head = 0;  ///< the first head's number in the problem, which dropout depends on

    std::int64_t query_heads() const { return kv_heads * query_heads_per_kv_head; }
};

/// The forward state of every query row between two of its blocks. All fp32; only these kernels can read it.
struct Carry {
    View o = {};     ///< (batch, tokens, query_heads, value_dim), fp32: unnormalised output
    RowView m = {};  ///< the largest score so far, or up to 15 less, in units of log2; -inf if there was none
    RowView l = {};  ///< running sum of exp2(score - m)
};

/// Normalised results. Each is written if its data is not null. If both views of o are given, o is written in two
/// types.
struct ForwardResult {
    View o = {};          ///< (batch, tokens, query_heads, value_dim), any of fp32, bf16, fp16
    View o_rounded = {};  ///< o again, in a second type
    RowView lse = {};     ///< natural logarithm; -inf for a fully masked row, whose o is 0
};

struct ForwardArgs {
    AttendShape shape = {};
    ConstView q = {};          ///< (batch, query tokens, query_heads, head_dim)
    ConstView k = {}, v = {};  ///< (batch, key tokens, kv_heads, head_dim and value_dim)
    bool first = true;         ///< Op::begins: the rows' first attend, so the carry is not read
    bool last = true;  ///< Op::ends: the rows' last attend, which writes `result` and leaves the carry as it was
    Carry carry = {};  ///< read unless first, written unless last; may be null if both hold
    ForwardResult result = {};  ///< written if last
};

/// Adds one K/V block to (o, m, l) of every row. The call says whether the block is the rows' first and last one. With
/// both it is ordinary attention, or a partial result for merge(). If the same sequence of key tiles is split over
/// calls, only the order changes in which l is summed.
void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream);

struct MergeArgs {
    Extent extent = {};        ///< of o: dim is value_dim
    bool first = false;        ///< there is no running result yet: it becomes the partial one
    View o = {};               ///< running normalised output, fp32, bf16 or fp16: updated
    RowView lse = {};          ///< running, natural logarithm: updated
    ConstView partial_o = {};  ///< normalised, fp32, bf16 or fp16
    ConstRowView partial_lse = {};
};

/// w = sigmoid(lse_b - lse); o += w (o_b - o); lse += softplus(lse_b - lse). In fp32; o is rounded to its type at the
/// end. If one side is empty (lse = -inf), the result is exactly the other side.
void merge(const MergeArgs& args, cudaStream_t stream);

/// (lse * log2(e), delta) of each row for the backward kernels: two floats per (batch, head, token), strides in pairs.
/// A fully masked row holds lse = +inf, so that each of its p is 0.
struct Statistics {
    float* data = nullptr;
    Strides strides = {};

    Statistics from_head(std::int64_t head) const { return {data + 2 * head * strides.head, strides}; }
};

/// Strides of dense statistics (batch, heads, tokens), which take 8 * batch * heads * tokens bytes.
constexpr Strides statistics_strides(std::int64_t heads, std::int64_t tokens) { return {heads * tokens, 1, tokens}; }

struct PrepareBackwardArgs {
    Extent extent = {};     ///< of o and dout: dim is value_dim
    ConstView o = {};       ///< the final output; in bf16 or fp16 instead of fp32, dq and dk have 13 to 29 % more error
    ConstView dout = {};    ///< bf16, fp16 or fp32
    ConstRowView lse = {};  ///< of the row over all blocks
    Statistics statistics = {};
    /// fp32, `dq_dim` dims; set to 0 if its data is not null. It may share o's memory if o has its type, dims and
    /// strides.
    View dq = {};
    std::int64_t dq_dim = 0;
};

/// delta = sum over dims of dout * o, in fp32, lse in the form that attend_backward() reads, and dq = 0. Once per pass.
void prepare_backward(const PrepareBackwardArgs& args, cudaStream_t stream);

struct BackwardArgs {
    AttendShape shape = {};
    ConstView q = {};            ///< (batch, query tokens, query_heads, head_dim)
    ConstView k = {}, v = {};    ///< (batch, key tokens, kv_heads, head_dim and value_dim)
    ConstView dout = {};         ///< (batch, query tokens, query_heads, value_dim)
    Statistics statistics = {};  ///< from prepare_backward, of the same query heads
    View dq = {};                ///< as q, fp32; the block's part is added to it
    View dk = {}, dv = {};       ///< as k, v, in fp32 or the shape's dtype: overwritten with the block's gradient
    bool adds = false;           ///< instead, the gradient is added in fp32 and the sum rounded to their type
    /// Deterministic: device memory of a word for each query tile of each query head and batch, for the launches of one
    /// stream; null: each launch allocates it, in stream order.
    int* semaphores = nullptr;
};

/// Adds the contribution of one K/V block to dq, and overwrites dk and dv with it (or adds it). dk and dv are always
/// summed in a fixed order. dq is summed by atomic additions, whose order changes its last bits, unless `work` was made
/// deterministic: then repeats are bit-identical (but not other layouts or numbers of ranks, whose tiles differ). For
/// that the portable family computes dq in a kernel of its own, with 7 products instead of 5, and the thread blocks of
/// the hopper family add in the order that semaphores give.
void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream);

/// destination += source, computed in fp32 and rounded to the destination's type.
void add(const Extent& extent, const View& destination, const ConstView& source, cudaStream_t stream);

constexpr std::size_t most_sums = 7;
struct Conversion {
    Extent extent = {};
    View destination = {};
    ConstView source = {};
    std::vector<ConstView> sums = {};  ///< at most most_sums, each fp32 or of the destination's type
};

/// destination = source + sums for each conversion, added up in fp32 in their order and rounded to nearest even. One
/// launch does up to three conversions of the same types.
void convert(std::span<const Conversion> conversions, cudaStream_t stream);

}  // namespace ringlab::gpu
