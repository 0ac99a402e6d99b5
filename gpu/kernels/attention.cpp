#include "gpu/kernels/attention.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/common/dropout_params.hpp"
#include "gpu/kernels/common/params.hpp"
#include "gpu/kernels/hopper/backward/backward.hpp"
#include "gpu/kernels/hopper/few_rows/few_rows.hpp"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "gpu/kernels/joined_work.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/tiling/launch_order.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

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

void require_data(const void* data, const char* name) {
    require(data != nullptr, "{} has no data; it must point to device memory", name);
}

Input input(const ConstView& view, DType dtype, std::int64_t dim, const char* name) {
    require_data(view.data, name);
    require(view.dtype == dtype, "{} is {}, the attend's dtype is {}; they must agree", name, to_string(view.dtype),
            to_string(dtype));
    constexpr std::int64_t chunk_bytes = 16;
    return {view.data, view.strides, static_cast<int>(dim),
            dim * layouts::bytes_of(dtype) % chunk_bytes == 0 && fits(view.data, dtype, view.strides, chunk_bytes)};
}

/// Of a tensor that may be absent.
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

ScoreRule score_rule(const AttendShape& shape) {
    const double scale_to_log2 = shape.scale * std::numbers::log2e;
    const bool rewrite = shape.soft_cap > 0 || shape.scale <= 0;
    return {.factor = rewrite ? 1.0f : static_cast<float>(scale_to_log2),
            .rewrite = rewrite,
            .cap_log2 = static_cast<float>(shape.soft_cap * std::numbers::log2e),
            .scale_to_cap = shape.soft_cap > 0 ? static_cast<float>(shape.scale / shape.soft_cap) : 0.0f,
            .scale_to_log2 = static_cast<float>(scale_to_log2)};
}

Items items(const TileList& list, std::int64_t count) {
    constexpr std::int64_t most_tiles = 65535;  // of a grid's second dimension
    require(count <= most_tiles, "{} tiles are more than the {} of one launch: use fewer tokens per rank", count,
            most_tiles);
    return {reinterpret_cast<const int4*>(list.device_items()), list.device_entries(), static_cast<int>(count)};
}

/// Once shape and list are known to fit together.
Geometry geometry_of(const AttendShape& shape, const RowBounds& rows, std::int64_t key_tokens,
                     const std::int32_t* key_positions) {
    return {.batch = static_cast<int>(shape.batch),
            .query_heads = static_cast<int>(shape.query_heads()),
            .group = static_cast<int>(shape.query_heads_per_kv_head),
            .query_tokens = static_cast<int>(rows.tokens()),
            .key_tokens = static_cast<int>(key_tokens),
            .row_bounds = reinterpret_cast<const int4*>(rows.device()),
            .key_positions = key_positions};
}

void require_fit(const AttendShape& shape, const WorkList::Options& options, layouts::Pass pass) {
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

Geometry geometry(const AttendShape& shape, const JoinedWork& work, layouts::Pass pass) {
    require_fit(shape, work.options().list, pass);
    const auto& made_for = work.options().shape;
    require(shape.batch == made_for.batch && shape.kv_heads == made_for.kv_heads,
            "a joined launch made for batch {} and {} kv heads, called with {} and {}", made_for.batch,
            made_for.kv_heads, shape.batch, shape.kv_heads);
    return geometry_of(shape, work.rows(), 0, work.device_key_positions());
}

/// Calls launcher.operator()<DimClass>() for the class of the dims.
template <class Launcher>
void for_dims(const AttendShape& shape, Launcher launcher) {
    switch (dim_class(shape.head_dim, shape.value_dim)) {
        case DimClass::d64: return launcher.template operator()<DimClass::d64>();
        case DimClass::d128: return launcher.template operator()<DimClass::d128>();
        case DimClass::d192_128: return launcher.template operator()<DimClass::d192_128>();
        case DimClass::d256: return launcher.template operator()<DimClass::d256>();
    }
}

CombineParams combine_params(const Extent& extent, const View& destination, const ConstView& source, bool add) {
    return {.sizes = sizes(extent),
            .add = add,
            .destination = elements(destination, "the destination"),
            .source = elements(source, "the source")};
}

void require_fp32(const Elements& tensor, const char* name) {
    require(tensor.dtype == DType::fp32, "{} is {}; it must be fp32", name, to_string(tensor.dtype));
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

/// Parameters of a kernel that drops out.
template <class Params>
Dropping<Params> dropping(const Params& params, const AttendShape& shape) {
    return {params,
            {dropout_draw(shape.dropout), static_cast<float>(shape.dropout.factor()),
             static_cast<int>(shape.first_query_head)}};
}

void require_no_dropout(const AttendShape& shape) {
    require(!shape.dropout.drops(),
            "dropout {}: the hopper kernels have none; make the work list for the portable family",
            text_of(shape.dropout));
}

void launch_on_hopper(const hopper::ForwardLaunch& launch, const AttendShape& shape, cudaStream_t stream) {
    require_no_dropout(shape);
    for_dims(shape, [&]<DimClass dims>() { hopper::launch_forward<dims>(launch, shape.dtype, stream); });
}

void launch_few_rows(const ForwardParams& params, const WorkList& work, const AttendShape& shape, cudaStream_t stream) {
    for (const auto& [tensor, name] : {std::pair(&params.q, "q"), std::pair(&params.k, "k"), std::pair(&params.v, "v")})
        require(tensor->chunks_fit,
                "{} at {} with strides {}, {}, {} (batch, token, head): the hopper kernels need data and strides in "
                "multiples of 16 bytes; make the work list for the portable family",
                name, tensor->data, tensor->strides.batch, tensor->strides.token, tensor->strides.head);
    const auto units =
        shape.batch * shape.kv_heads * hopper::units_of_few_rows(work.rows().tokens(), shape.query_heads_per_kv_head);
    const int blocks = hopper::blocks_per_unit(units, work.tiles().longest());
    for_dims(shape, [&]<DimClass dims>() { hopper::launch_few_rows<dims>(params, blocks, shape.dtype, stream); });
}

}  // namespace

void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) {
    const auto& shape = args.shape;
    // A first or last block writes every row, those that see nothing of it too.
    const auto count = args.first || args.last ? work.tiles().items() : work.tiles().busy_items();
    const auto params = forward_params(args, geometry(shape, work, layouts::Pass::forward), items(work.tiles(), count));
    if (work.has_few_rows()) return launch_few_rows(params, work, shape, stream);
    if (work.options().family == KernelFamily::hopper)
        return launch_on_hopper(hopper::make_forward_launch(args, work, params), shape, stream);
    if (shape.dropout.drops())
        return for_dims(shape, [&]<DimClass dims>() {
            launch_dropping_forward<dims>(dropping(params, shape), shape.dtype, stream);
        });
    for_dims(shape, [&]<DimClass dims>() { launch_forward<dims>(params, shape.dtype, stream); });
}

void attend_forward(const ForwardArgs& asked, const JoinedWork& work, cudaStream_t stream) {
    auto args = asked;
    args.k = work.first_block().k;
    args.v = work.first_block().v;
    const Items items{reinterpret_cast<const int4*>(work.device_items()), work.device_entries(),
                      static_cast<int>(work.launch_items())};
    const auto params = forward_params(args, geometry(args.shape, work, layouts::Pass::forward), items);
    launch_on_hopper(hopper::make_forward_launch(args, work, params), args.shape, stream);
}

void merge(const MergeArgs& args, cudaStream_t stream) {
    launch_merge({.sizes = sizes(args.extent),
                  .first = args.first,
                  .o = elements(args.o, "the running o"),
                  .lse = row_values(args.lse, "the running lse"),
                  .partial_o = elements(args.partial_o, "the partial o"),
                  .partial_lse = row_values(args.partial_lse, "the partial lse")},
                 stream);
}

void prepare_backward(const PrepareBackwardArgs& args, cudaStream_t stream) {
    require_data(args.statistics.data, "statistics");
    const Elements zeroed = optional_elements(args.dq, "dq");
    require_fp32(zeroed, "dq");
    require(args.dq_dim >= 0 && args.dq_dim <= int_max, "dq has dim {}; it must be 0 to {}", args.dq_dim, int_max);
    launch_statistics({.sizes = sizes(args.extent),
                       .o = elements(args.o, "o"),
                       .dout = elements(args.dout, "dout"),
                       .lse = row_values(args.lse, "lse"),
                       .statistics = reinterpret_cast<float2*>(args.statistics.data),
                       .statistics_strides = args.statistics.strides,
                       .zeroed = zeroed,
                       .zeroed_dim = static_cast<int>(args.dq_dim)},
                      stream);
}

namespace {

BackwardParams backward_params(const BackwardArgs& args, const Geometry& geometry, KernelFamily family,
                               const Items& work, const Items& query_work) {
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
    if (family == KernelFamily::hopper)
        for (const auto& [tensor, name] : {std::pair(&params.dk, "dk"), std::pair(&params.dv, "dv")}) {
            require(tensor->pairs_fit,
                    "{} at {}: the hopper kernels need data and strides in multiples of two elements; make the work "
                    "list for the portable family",
                    name, tensor->data);
            require(tensor->dtype == DType::fp32 || tensor->dtype == shape.dtype, "{} is {}; it must be fp32 or {}",
                    name, to_string(tensor->dtype), to_string(shape.dtype));
        }
    return params;
}

void launch_on_hopper(const hopper::BackwardLaunch& launch, const AttendShape& shape, cudaStream_t stream) {
    require_no_dropout(shape);
    for_dims(shape, [&]<DimClass dims>() { hopper::launch_backward<dims>(launch, shape.dtype, stream); });
}

hopper::WorkTileOrder unit_order(const AttendShape& shape, const TileList& tiles, int blocks, bool with_turns) {
    const layouts::KeyWorkTiles items{.items = tiles.items(),
                                      .busy = tiles.busy_items(),
                                      .entries = tiles.full() + tiles.partial(),
                                      .longest = tiles.longest(),
                                      .fall_linearly = tiles.fall_linearly()};
    const layouts::LaunchShape places{.heads = shape.batch * shape.kv_heads,
                                      .group = shape.query_heads_per_kv_head,
                                      .sms = hopper::multiprocessors_of_device(),
                                      .blocks = blocks};
    return with_turns ? layouts::deterministic_backward_order(items, places) : layouts::backward_order(items, places);
}

}  // namespace

void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) {
    const auto& shape = args.shape;
    const auto& tiles = work.tiles();
    const auto* query_tiles = work.query_tiles();
    const auto params = backward_params(args, geometry(shape, work, layouts::Pass::backward), work.options().family,
                                        items(tiles, tiles.items()),  // dk, dv of idle tiles become 0
                                        query_tiles ? items(*query_tiles, query_tiles->busy_items()) : Items{});
    if (work.options().family == KernelFamily::hopper) {
        const auto* turns = tiles.device_turns();
        const int blocks = blocks_per_item({.items = tiles.busy_items() * shape.batch * shape.kv_heads,
                                            .entries = (tiles.full() + tiles.partial()) * shape.batch * shape.kv_heads,
                                            .longest = tiles.longest(),
                                            .steps_per_row_tile = shape.query_heads_per_kv_head});
        const auto order = unit_order(shape, tiles, blocks, turns != nullptr);
        return launch_on_hopper(
            {.params = params, .joined = {}, .blocks_per_item = blocks, .order = order, .turns = turns}, shape, stream);
    }
    if (shape.dropout.drops())
        return for_dims(shape, [&]<DimClass dims>() {
            launch_dropping_backward<dims>(dropping(params, shape), shape.dtype, query_tiles != nullptr, stream);
        });
    for_dims(shape, [&]<DimClass dims>() {
        launch_backward<dims>(params, shape.dtype, query_tiles != nullptr, stream);
        if (query_tiles) launch_query_gradient<dims>(params, shape.dtype, stream);
    });
}

void attend_backward(const BackwardArgs& asked, const JoinedWork& work, cudaStream_t stream) {
    auto args = asked;
    const auto& block = work.first_block();
    args.k = block.k;
    args.v = block.v;
    args.dk = block.dk;
    args.dv = block.dv;
    const Items list{reinterpret_cast<const int4*>(work.device_items()), work.device_entries(),
                     static_cast<int>(work.launch_items())};
    const auto params =
        backward_params(args, geometry(args.shape, work, layouts::Pass::backward), KernelFamily::hopper, list, {});
    launch_on_hopper({.params = params,
                      .joined = work.joined(),
                      .blocks_per_item = work.blocks_per_item(),
                      .order = work.order(),
                      .turns = work.device_turns()},
                     args.shape, stream);
}

void add(const Extent& extent, const View& destination, const ConstView& source, cudaStream_t stream) {
    launch_combine(std::array{combine_params(extent, destination, source, true)}, stream);
}

void convert(std::span<const Conversion> conversions, cudaStream_t stream) {
    std::vector<CombineParams> all;
    for (const auto& one : conversions) all.push_back(combine_params(one.extent, one.destination, one.source, false));
    launch_combine(all, stream);
}

}  // namespace ringlab::gpu
