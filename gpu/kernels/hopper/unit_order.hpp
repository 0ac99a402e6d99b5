#pragma once

#include "layouts/unit_order.hpp"

namespace ringlab::gpu::hopper {

using layouts::WorkTileOrder;

int multiprocessors_of_device();

}  // namespace ringlab::gpu::hopper
