#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/hopper/forward/forward_config.hpp"
#include "gpu/kernels/hopper/fused_work.hpp"
#include "gpu/kernels/hopper/launches.hpp"
#include "gpu/kernels/hopper/ptx/tensor_map.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/tiling/launch_order.hpp"

#include <limits>

namespace ringlab::gpu::hopper {
namespace {

void require_mappable(const ConstView& view, const Extent& extent, const char* name) {
    require(!view.data || can_map(view, extent),
            "{} at {} with strides {}, {}, {} (batch, token, head): the hopper kernels need data and strides in "
            "multiples of 16 bytes; make the work list for the portable family",
            name, view.data, view.strides.batch, view.strides.token, view.strides.head);
}

CUtensorMap map_of(const ConstView& view, const Extent& extent, int box_tokens, const char* name) {
    require_mappable(view, extent, name);
    return make_tensor_map(view, extent, box_tokens);
}

/// All but the maps of K and V.
ForwardLaunch make_launch(const ForwardArgs& args, std::int64_t query_tokens, const ForwardParams& params,
                          std::uint32_t* counter) {
    const auto& shape = args.shape;
    const auto tile = tile_of<ForwardConfig>(dim_class(shape.head_dim, shape.value_dim));
    const Extent o_extent{shape.batch, query_tokens, shape.query_heads(), shape.value_dim};
    if (!args.first || !args.last) require_mappable(args.carry.o, o_extent, "the carry's o");
    if (args.last) {
        require_mappable(args.result.o, o_extent, "o");
        require_mappable(args.result.o_rounded, o_extent, "o_rounded");
    }
    const auto work_tiles = static_cast<std::int64_t>(params.work.count) * shape.query_heads() * shape.batch;
    require(work_tiles <= std::numeric_limits<int>::max() / 2, "{} query tiles of all heads are too many for a launch",
            work_tiles);
    ForwardLaunch launch{
        .q = map_of(args.q, {shape.batch, query_tokens, shape.query_heads(), shape.head_dim}, tile.rows, "q"),
        .k = {},
        .v = {},
        .fused = {},
        .carry = {},
        .params = params,
        .counter = counter,
        .work_tiles = static_cast<int>(work_tiles),
        .order = {}};
    if (!args.first) launch.carry = make_tensor_map(args.carry.o, o_extent, tile.rows);
    return launch;
}

}  // namespace

ForwardLaunch make_forward_launch(const ForwardArgs& args, const WorkList& work, const ForwardParams& params) {
    const auto& shape = args.shape;
    const auto tile = tile_of<ForwardConfig>(dim_class(shape.head_dim, shape.value_dim));
    const auto keys = work.keys().tokens();
    auto launch = make_launch(args, work.rows().tokens(), params, work.next_counter());
    launch.k = map_of(args.k, {shape.batch, keys, shape.kv_heads, shape.head_dim}, tile.keys, "k");
    launch.v = map_of(args.v, {shape.batch, keys, shape.kv_heads, shape.value_dim}, tile.keys, "v");
    launch.order =
        layouts::forward_order(params.work.count, shape.batch * shape.kv_heads, shape.query_heads_per_kv_head,
                               keys * (shape.head_dim + shape.value_dim) * layouts::bytes_of(shape.dtype));
    return launch;
}

ForwardLaunch make_forward_launch(const ForwardArgs& args, const HopperFusedWork& work, const ForwardParams& params) {
    auto launch = make_launch(args, work.rows().tokens(), params, work.counter());
    launch.fused = work.parameters();
    return launch;
}

}  // namespace ringlab::gpu::hopper
