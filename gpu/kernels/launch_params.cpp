#include "gpu/kernels/launch_params.hpp"

#include "layouts/basics/require.hpp"

#include <cmath>
#include <limits>
#include <numbers>

namespace ringlab::gpu {
namespace {

constexpr std::int64_t int_max = std::numeric_limits<int>::max();

bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::fp16; }

/// Whether data and strides keep `bytes`-wide accesses at multiples of their width aligned.
bool fits(const void* data, DType dtype, const Strides& strides, std::int64_t bytes) {
    const auto is_multiple = [&](std::int64_t stride) { return stride * layouts::bytes_of(dtype) % bytes == 0; };
    return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0 &&
           is_multiple(strides.batch) && is_multiple(strides.token) && is_multiple(strides.head);
}

ScoreRule score_rule(const AttendShape& shape) {
    const double scale_to_log2 = shape.scale * std::numbers::log2e;
    const bool rewrite = shape.soft_cap > 0 || shape.scale <= 0;
    return {.factor = rewrite ? 1.0f : static_cast<float>(scale_to_log2),
            .rewrite = rewrite,
            .cap_log2 = static_cast<float>(shape.soft_cap * std::numbers::log2e),
            .scale_to_cap = shape.soft_cap > 0 ? static_cast<float>(shape.scale / shape.soft_cap) : 0.0f,
            .scale_to_log2 = static_cast<float>(scale_to_log2)};
}

}  // namespace

void require_data(const void* data, const char* name) {
    require(data != nullptr, "{} has no data; it must point to device memory", name);
}

Elements optional_elements(const ConstView& view, const char* name) {
    require(view.dtype == DType::fp32 || is_16_bit(view.dtype), "{} is {}; the kernels take fp32, bf16 or fp16", name,
            to_string(view.dtype));
    return {const_cast<void*>(view.data), view.dtype, view.strides,
            fits(view.data, view.dtype, view.strides, 2 * layouts::bytes_of(view.dtype))};
}

Elements elements(const ConstView& view, const char* name) {
    require_data(view.data, name);
    return optional_elements(view, name);
}

RowValues row_values(const ConstRowView& view, const char* name) {
    require_data(view.data, name);
    return {const_cast<float*>(view.data), view.strides};
}

Input input(const ConstView& view, DType dtype, std::int64_t dim, const char* name) {
    require_data(view.data, name);
    require(view.dtype == dtype, "{} is {}, the attend's dtype is {}; they must agree", name, to_string(view.dtype),
            to_string(dtype));
    constexpr std::int64_t chunk_bytes = 16;
    return {view.data, view.strides, static_cast<int>(dim),
            dim * layouts::bytes_of(dtype) % chunk_bytes == 0 && fits(view.data, dtype, view.strides, chunk_bytes)};
}

Sizes sizes(const Extent& extent) {
    require(extent.batch >= 0 && extent.tokens >= 0 && extent.heads >= 0 && extent.dim >= 0 && extent.dim <= int_max &&
                extent.batch <= int_max && extent.tokens <= int_max && extent.heads <= int_max,
            "extent of {} x {} tokens x {} heads x dim {}: each must be 0 to {}", extent.batch, extent.tokens,
            extent.heads, extent.dim, int_max);
    constexpr std::int64_t most_rows = std::numeric_limits<std::uint32_t>::max() - 1024;  // less than a block's rows
    require(extent.batch * extent.tokens * extent.heads <= most_rows, "{} x {} x {} rows are more than {}",
            extent.batch, extent.tokens, extent.heads, most_rows);
    return {extent.batch, extent.tokens, extent.heads, extent.dim};
}

void require_fp32(const Elements& tensor, const char* name) {
    require(tensor.dtype == DType::fp32, "{} is {}; it must be fp32", name, to_string(tensor.dtype));
}

Items launch_items(const TileList& list, std::int64_t count) {
    constexpr std::int64_t most_tiles = 65535;  // of a grid's second dimension
    require(count <= most_tiles, "{} tiles are more than the {} of one launch: use fewer tokens per rank", count,
            most_tiles);
    return {reinterpret_cast<const int4*>(list.device_items()), list.device_entries(), static_cast<int>(count)};
}

Geometry geometry_of(const AttendShape& shape, const RowBounds& rows, std::int64_t key_tokens,
                     const std::int32_t* key_positions) {
    return {.batch = static_cast<int>(shape.batch),
            .query_heads = static_cast<int>(shape.query_heads()),
            .group = static_cast<int>(shape.query_heads_per_kv_head),
            .query_tokens = static_cast<int>(rows.tokens()),
            .key_tokens = static_cast<int>(key_tokens),
            .seeing_tokens = static_cast<int>(rows.seeing_tokens()),
            .row_bounds = reinterpret_cast<const int4*>(rows.device()),
            .key_positions = key_positions};
}

void require_fit(const AttendShape& shape, const WorkListOptions& options, layouts::Pass pass) {
    require(is_16_bit(shape.dtype), "attend in {}: the kernels take bf16 or fp16", to_string(shape.dtype));
    require(shape.batch >= 1 && shape.kv_heads >= 1 && shape.query_heads_per_kv_head >= 1 &&
                shape.batch * shape.query_heads() <= int_max,
            "attend of batch {}, {} kv heads with {} query heads each: all must be at least 1", shape.batch,
            shape.kv_heads, shape.query_heads_per_kv_head);
    require(std::isfinite(shape.scale) && std::isfinite(shape.soft_cap) && shape.soft_cap >= 0,
            "scale {} and soft cap {} must be finite, the cap not negative", shape.scale, shape.soft_cap);
    require(options.pass == pass && options.head_dim == shape.head_dim && options.value_dim == shape.value_dim,
            "the work list was made for {} with dims {} and {}, the attend is {} with {} and {}",
            to_string(options.pass), options.head_dim, options.value_dim, to_string(pass), shape.head_dim,
            shape.value_dim);
}

Geometry geometry(const AttendShape& shape, const WorkList& work, layouts::Pass pass) {
    require_fit(shape, work.options(), pass);
    return geometry_of(shape, work.rows(), work.keys().tokens(), work.keys().device());
}

ForwardParams forward_params(const ForwardArgs& args, const Geometry& geometry, const Items& work) {
    const auto& shape = args.shape;
    ForwardParams params{.geometry = geometry,
                         .work = work,
                         .q = input(args.q, shape.dtype, shape.head_dim, "q"),
                         .k = input(args.k, shape.dtype, shape.head_dim, "k"),
                         .v = input(args.v, shape.dtype, shape.value_dim, "v"),
                         .rule = score_rule(shape),
                         .first = args.first,
                         .last = args.last,
                         .carry_o = {},
                         .carry_m = {},
                         .carry_l = {},
                         .o = {},
                         .o_rounded = {},
                         .lse = {}};
    if (!args.first || !args.last) {
        params.carry_o = elements(args.carry.o, "the carry's o");
        require_fp32(params.carry_o, "the carry's o");
        params.carry_m = row_values(args.carry.m, "the carry's m");
        params.carry_l = row_values(args.carry.l, "the carry's l");
    }
    if (args.last) {
        params.o = optional_elements(args.result.o, "o");
        params.o_rounded = optional_elements(args.result.o_rounded, "o_rounded");
        params.lse = {args.result.lse.data, args.result.lse.strides};
    }
    return params;
}

BackwardParams backward_params(const BackwardArgs& args, const Geometry& geometry, const Items& work,
                               const Items& query_work) {
    const auto& shape = args.shape;
    require_data(args.statistics.data, "statistics");
    BackwardParams params{.geometry = geometry,
                          .work = work,
                          .query_work = query_work,
                          .q = input(args.q, shape.dtype, shape.head_dim, "q"),
                          .k = input(args.k, shape.dtype, shape.head_dim, "k"),
                          .v = input(args.v, shape.dtype, shape.value_dim, "v"),
                          .dout = input(args.dout, shape.dtype, shape.value_dim, "dout"),
                          .rule = score_rule(shape),
                          .scale = static_cast<float>(shape.scale),
                          .statistics = reinterpret_cast<const float2*>(args.statistics.data),
                          .statistics_strides = args.statistics.strides,
                          .dq = elements(args.dq, "dq"),
                          .dk = elements(args.dk, "dk"),
                          .dv = elements(args.dv, "dv"),
                          .adds = args.adds,
                          .quads_fit = false};
    require_fp32(params.dq, "dq");
    constexpr std::int64_t quad = 4;
    params.quads_fit = shape.head_dim % quad == 0 &&
                       fits(params.dq.data, DType::fp32, params.dq.strides, quad * layouts::bytes_of(DType::fp32));
    return params;
}

}  // namespace ringlab::gpu
