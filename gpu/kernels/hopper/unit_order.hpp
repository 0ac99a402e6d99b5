#pragma once

#include "layouts/unit_order.hpp"

namespace ringlab::gpu::hopper {

using layouts::UnitOrder;

int multiprocessors_of_device();

}  // namespace ringlab::gpu::hopper
