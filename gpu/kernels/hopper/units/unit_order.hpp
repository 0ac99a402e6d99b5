#pragma once

#include "layouts/tiling/work_tile_order.hpp"

namespace ringlab::gpu::hopper {

using layouts::WorkTileOrder;

int multiprocessors_of_device();

}  // namespace ringlab::gpu::hopper
