#pragma once

#include "gpu/elements/views.hpp"
#include "gpu/kernels/work_list.hpp"

#include <cuda_runtime_api.h>

#include <span>

// The kernels of one attention step. Every function enqueues on `stream` of the current device and returns at once; its
// operands must stay alive and unchanged until the stream has passed it. Errors of arguments and of launches throw
// Error.

namespace ringlab::gpu {

/// One attend: all query rows of a rank against one K/V block, for the kv heads that the block holds.
///
/// Views point at the first head that takes part: for kv heads [begin, end) of a shard give q.from_head(begin * group)
/// and kv_heads = end - begin; nothing else knows that there are more heads.
struct AttendShape {
    std::int64_t batch = 1;
    std::int64_t kv_heads = 1;
    std::int64_t query_heads_per_kv_head = 1;
    std::int64_t head_dim = 128;        ///< of q and k, 1 to 256
    std::int64_t value_dim = 128;       ///< of v, o and dout, 1 to 256
    double scale = 1;                   ///< of q.k, as Problem::effective_scale() gives it; any sign
    double soft_cap = 0;                ///< c > 0 turns a score s into c*tanh(s/c); 0 leaves it
    DType dtype = DType::bf16;          ///< of q, k, v and dout: bf16 or fp16
    layouts::Dropout dropout = {};      ///< of p, in the portable family alone
    std::int64_t first_query_head = 0;  ///< number in the problem of the first head, which dropout goes by

    std::int64_t query_heads() const { return kv_heads * query_heads_per_kv_head; }
};

/// The forward state of every query row between the blocks it takes in: all fp32, meaningful to these kernels alone.
struct Carry {
    View o = {};     ///< (batch, tokens, query_heads, value_dim), fp32: unnormalised output
    RowView m = {};  ///< running maximum of the scores, in units of log2
    RowView l = {};  ///< running sum of exp2(score - m)
};

/// Normalised results. Each is written if its data is not null; o twice, in two types, if both are given.
struct ForwardResult {
    View o = {};          ///< (batch, tokens, query_heads, value_dim), any of fp32, bf16, fp16
    View o_rounded = {};  ///< the same again, for a second type
    RowView lse = {};     ///< natural logarithm; -inf for a row that saw nothing, whose o is 0
};

struct ForwardArgs {
    AttendShape shape = {};
    ConstView q = {};           ///< (batch, query tokens, query_heads, head_dim)
    ConstView k = {}, v = {};   ///< (batch, key tokens, kv_heads, head_dim and value_dim)
    bool first = true;          ///< the rows' first block: the carry is not read
    bool last = true;           ///< the rows' last block: writes `result` and leaves the carry as it was
    Carry carry = {};           ///< read unless first, written unless last; may be null if both hold
    ForwardResult result = {};  ///< written if last
};

/// Takes one K/V block into (o, m, l) of every row. First and last block are flags of the call, so one block alone
/// (both true) is ordinary attention, and a partial result in bf16 for merge() as well. Splitting the
/// same sequence of key tiles over calls changes the order in which l is summed, and nothing else.
void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream);

struct MergeArgs {
    Extent extent = {};        ///< of o: dim is value_dim
    bool first = false;        ///< running result undefined so far: becomes the partial one
    View o = {};               ///< running normalised output, fp32, bf16 or fp16: updated
    RowView lse = {};          ///< running, natural logarithm: updated
    ConstView partial_o = {};  ///< normalised, fp32, bf16 or fp16
    ConstRowView partial_lse = {};
};

/// w = sigmoid(lse_b - lse); o += w (o_b - o); lse += softplus(lse_b - lse), in fp32, o rounded to its type at the end.
/// An empty side (lse = -inf) leaves the other exactly as it is.
void merge(const MergeArgs& args, cudaStream_t stream);

/// What the backward kernels need to know of each row: (lse * log2(e), delta), two floats per (batch, head, token),
/// strides in pairs. An empty row holds lse = +inf so that every p of it is 0.
struct Statistics {
    float* data = nullptr;
    Strides strides = {};

    Statistics from_head(std::int64_t head) const { return {data + 2 * head * strides.head, strides}; }
};

/// Strides of statistics held as (batch, heads, tokens); they take 8 * batch * heads * tokens bytes.
constexpr Strides statistics_strides(std::int64_t heads, std::int64_t tokens) { return {heads * tokens, 1, tokens}; }

struct PrepareBackwardArgs {
    Extent extent = {};     ///< of o and dout: dim is value_dim
    ConstView o = {};       ///< the final output; fp32 is exact, bf16 or fp16 costs 13 to 29 % more error in dq and dk
    ConstView dout = {};    ///< bf16, fp16 or fp32
    ConstRowView lse = {};  ///< of the whole row, over all blocks
    Statistics statistics = {};
    /// Set to 0 if its data is not null: fp32, `dq_dim` dims. It may lie where o does if that has its type, dims and
    /// strides.
    View dq = {};
    std::int64_t dq_dim = 0;
};

/// delta = sum over dims of dout * o, in fp32, and lse in the form that attend_backward reads; dq = 0. Once per pass.
void prepare_backward(const PrepareBackwardArgs& args, cudaStream_t stream);

struct BackwardArgs {
    AttendShape shape = {};
    ConstView q = {};            ///< (batch, query tokens, query_heads, head_dim)
    ConstView k = {}, v = {};    ///< (batch, key tokens, kv_heads, head_dim and value_dim)
    ConstView dout = {};         ///< (batch, query tokens, query_heads, value_dim)
    Statistics statistics = {};  ///< from prepare_backward, of the same query heads
    View dq = {};                ///< as q, fp32: this block's part is added to it
    View dk = {}, dv = {};       ///< as k, v, fp32 or the shape's dtype: overwritten with this block's gradient
    bool adds = false;           ///< or it is added to them, in fp32, and the sum rounded to their type
};

/// Adds to dq and overwrites dk, dv with, or adds to them, what one K/V block contributes. If `work` was made
/// deterministic, every sum is taken in a fixed order (repeats are bit-identical, not so other layouts or P, whose
/// tiles differ): in the portable family dq has a kernel of its own, 7 products instead of 5, in the hopper family
/// thread blocks take turns. Otherwise dq is summed by atomic additions, whose order changes its last bits. dk and dv
/// are always in a fixed order.
void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream);

/// destination += source, in fp32, rounded to the destination's type.
void add(const Extent& extent, const View& destination, const ConstView& source, cudaStream_t stream);

struct Conversion {
    Extent extent = {};
    View destination = {};
    ConstView source = {};
};

/// destination = source, rounded to the destination's type (to nearest even), for each; up to three of the same types
/// in one launch.
void convert(std::span<const Conversion> conversions, cudaStream_t stream);

}  // namespace ringlab::gpu
