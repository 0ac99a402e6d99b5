#pragma once

#include "layouts/tiling/work_tile_order.hpp"

namespace ringlab::gpu::hopper {

using layouts::WorkTileOrder;

}  // namespace ringlab::gpu::hopper
