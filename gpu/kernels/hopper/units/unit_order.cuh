#pragma once

#include "gpu/kernels/hopper/units/unit_order.hpp"

namespace ringlab::gpu::hopper {

struct Place {
    int item, head;
};

__device__ inline int section_of(int unit, const WorkTileOrder& order) { return unit / (order.section_tiles * order.heads_at_a_time); }

__device__ inline Place place_of(int unit, const WorkTileOrder& order, int heads) {
    const int first = order.leading_tiles * heads;
    if (unit >= first) return {order.leading_tiles + (unit - first) / heads, (unit - first) % heads};
    const int section = section_of(unit, order), rest = unit - section * order.section_tiles * order.heads_at_a_time;
    return {section % order.sections * order.section_tiles + rest / order.heads_at_a_time,
            section / order.sections * order.heads_at_a_time + rest % order.heads_at_a_time};
}

}  // namespace ringlab::gpu::hopper
