#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/hopper/launches.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/tiling/launch_order.hpp"

#include <array>
#include <map>
#include <utility>
#include <vector>

namespace ringlab::gpu::hopper {
namespace {

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
    std::vector<layouts::SmGroup> groups;
    for (const int blocks : {2, 4, 8})
        if (const int clusters = clusters_at_a_time(blocks)) groups.push_back({blocks, clusters});
    return known[asked] = static_cast<int>(layouts::sm_group_by_list_schedule(load, sms_of_device(), groups).sms);
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

}  // namespace ringlab::gpu::hopper
