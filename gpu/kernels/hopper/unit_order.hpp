#pragma once

namespace ringlab::gpu::hopper {

/// In which order a launch goes over its units, an item of the work list and a head each. Items come longest first, so
/// that short ones fill the gaps at the end; but what runs at the same time should read the same tensors, or L2 does
/// not hold them. So the first items are done for `together` heads, then for as many others; the rest by item, all
/// heads.
struct UnitOrder {
    int first_items = 0;
    int together = 1;  // divides the heads
};

}  // namespace ringlab::gpu::hopper
