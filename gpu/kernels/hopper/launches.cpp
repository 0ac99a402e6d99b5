#include "gpu/kernels/hopper/launches.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/hopper/common/tensor_map.hpp"
#include "gpu/kernels/hopper/forward/forward.hpp"
#include "gpu/kernels/hopper/fused_work.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/layouts/launch_order.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace ringlab::gpu::hopper {
namespace {

/// Clusters of 2, 4 and 8 thread blocks that the current device has at a time.
std::vector<layouts::SmGroup> clusters_of_device() {
    std::vector<layouts::SmGroup> clusters;
    for (const int blocks : {2, 4, 8})
        if (const int at_a_time = clusters_at_a_time(blocks)) clusters.push_back({blocks, at_a_time});
    return clusters;
}

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

layouts::WorkTileOrder work_tile_order(const AttendShape& shape, const TileList& tiles, int blocks) {
    const layouts::KeyWorkTiles work_tiles{.work_tiles = tiles.items(),
                                           .busy = tiles.busy_items(),
                                           .entries = tiles.full() + tiles.partial(),
                                           .longest = tiles.longest(),
                                           .fall_linearly = tiles.fall_linearly(),
                                           .row_groups = tiles.row_groups()};
    const layouts::LaunchShape launch{.heads = shape.batch * shape.kv_heads,
                                      .group = shape.query_heads_per_kv_head,
                                      .sms = sms_of_device(),
                                      .blocks = blocks};
    return tiles.device_semaphore_values() ? layouts::deterministic_backward_order(work_tiles, launch)
                                           : layouts::backward_order(work_tiles, launch);
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

/// A cluster needs SMs that lie together, so a few SMs stay idle beside larger clusters. A launch that just does not
/// fit takes twice as long.
int blocks_per_work_tile(const layouts::BackwardLoad& load) {
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    // Estimating takes microseconds, which short launches would show. A program whose masks change has ever new loads.
    constexpr std::size_t most_known = 1024;
    thread_local std::map<std::array<std::int64_t, 5>, int> known;
    const std::array<std::int64_t, 5> asked{device, load.work_tiles, load.entries, load.longest,
                                            load.steps_per_row_tile};
    if (const auto found = known.find(asked); found != known.end()) return found->second;
    if (known.size() >= most_known) known.clear();
    return known[asked] =
               static_cast<int>(layouts::sm_group_by_list_schedule(load, sms_of_device(), clusters_of_device()).sms);
}

BackwardParams hopper_backward_params(const BackwardArgs& args, const Geometry& geometry, const Items& work) {
    const auto params = backward_params(args, geometry, work, {});
    for (const auto& [tensor, name] : {std::pair(&params.dk, "dk"), std::pair(&params.dv, "dv")}) {
        require(tensor->pairs_fit,
                "{} at {}: the hopper kernels need data and strides in multiples of two elements; make the work "
                "list for the portable family",
                name, tensor->data);
        require(tensor->dtype == DType::fp32 || tensor->dtype == args.shape.dtype, "{} is {}; it must be fp32 or {}",
                name, to_string(tensor->dtype), to_string(args.shape.dtype));
    }
    return params;
}

BackwardLaunch make_backward_launch(const BackwardArgs& args, const WorkList& work) {
    const auto& shape = args.shape;
    const auto& tiles = work.tiles();
    const int blocks = blocks_per_work_tile({.work_tiles = tiles.busy_items() * shape.batch * shape.kv_heads,
                                             .entries = (tiles.full() + tiles.partial()) * shape.batch * shape.kv_heads,
                                             .longest = tiles.longest(),
                                             .steps_per_row_tile = shape.query_heads_per_kv_head});
    return {.params = hopper_backward_params(args, geometry(shape, work, layouts::Pass::backward),
                                             launch_items(tiles, tiles.items())),  // dK and dV of idle tiles become 0
            .fused = {},
            .blocks_per_item = blocks,
            .order = work_tile_order(shape, tiles, blocks),
            .turns = tiles.device_semaphore_values(),
            .semaphores = args.semaphores};
}

/// Times are in key tiles of an SM. Row groups begin in the order of the list, each when SMs are free. Two bounds hold
/// for that: as many waves as there are row groups for the SMs, each as long as the longest row group; and an even
/// share of all work, and then the longest row group (Graham). The lower bound counts. The first is exact if row groups
/// are equally long, the second is close if they differ and are many.
int blocks_per_row_group(const RowGroupLoad& load, std::span<const layouts::SmGroup> choices) {
    // Begin and merge of a row group, some 5 us. A key tile (64 KB) takes 1.8 us at an SM's share of 4.8 TB/s.
    constexpr double more = 3;
    int best = 1;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [blocks, at_a_time] : choices) {
        const auto share = [&](std::int64_t entries) {
            return static_cast<double>(entries) / static_cast<double>(blocks);
        };
        const auto groups = static_cast<double>(load.row_groups), places = static_cast<double>(at_a_time);
        const double longest = std::ceil(share(load.longest)) + more;
        const double waves = std::ceil(groups / places) * longest;
        const double even = (share(load.entries) + groups * more) / places + longest;
        const double time = std::min(waves, even);
        if (time >= least) continue;
        least = time;
        best = static_cast<int>(blocks);
    }
    return best;
}

int blocks_per_row_group(const RowGroupLoad& load) {
    auto choices = clusters_of_device();
    choices.insert(choices.begin(), {1, sms_of_device()});
    return blocks_per_row_group(load, choices);
}

}  // namespace ringlab::gpu::hopper
