#pragma once

#include "gpu/kernels/hopper/unit_order.hpp"

namespace ringlab::gpu::hopper {

struct Place {
    int item, head;
};

__device__ inline Place place_of(int unit, const UnitOrder& order, int heads) {
    const int first = order.first_items * heads;
    if (unit >= first) return {order.first_items + (unit - first) / heads, (unit - first) % heads};
    const int section = order.first_items * order.together, rest = unit % section;
    return {rest / order.together, unit / section * order.together + rest % order.together};
}

}  // namespace ringlab::gpu::hopper
