#pragma once

#include "gpu/kernels/hopper/unit_order.hpp"

namespace ringlab::gpu::hopper {

struct Place {
    int item, head;
};

__device__ inline int section_of(int unit, const UnitOrder& order) { return unit / (order.chunk * order.together); }

__device__ inline Place place_of(int unit, const UnitOrder& order, int heads) {
    const int first = order.first_items * heads;
    if (unit >= first) return {order.first_items + (unit - first) / heads, (unit - first) % heads};
    const int section = section_of(unit, order), rest = unit - section * order.chunk * order.together;
    return {section % order.chunks * order.chunk + rest / order.together,
            section / order.chunks * order.together + rest % order.together};
}

}  // namespace ringlab::gpu::hopper
