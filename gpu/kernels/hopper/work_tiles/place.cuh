#pragma once

#include "layouts/layouts/launch_order.hpp"

namespace ringlab::gpu::hopper {

/// An entry of the work list, for one head.
struct Place {
    int item, head;
};

using layouts::WorkTileOrder;

/// The number of the section that holds a work tile of the launch.
__device__ inline int section_of(int work_tile, const WorkTileOrder& order) {
    return work_tile / (order.section_tiles * order.heads_at_a_time);
}

/// What the work tile with this number in the launch is, by the order of for_each_work_tile_run().
__device__ inline Place place_of(int work_tile, const WorkTileOrder& order, int heads) {
    const int first = order.leading_tiles * heads;
    if (work_tile >= first) return {order.leading_tiles + (work_tile - first) / heads, (work_tile - first) % heads};
    const int section = section_of(work_tile, order),
              rest = work_tile - section * order.section_tiles * order.heads_at_a_time;
    return {section % order.sections * order.section_tiles + rest / order.heads_at_a_time,
            section / order.sections * order.heads_at_a_time + rest % order.heads_at_a_time};
}

}  // namespace ringlab::gpu::hopper
