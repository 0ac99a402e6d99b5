#pragma once

namespace ringlab::gpu {

/// SMs of the current device.
int sms_of_device();

/// How many clusters of so many thread blocks, each block alone on its SM, the current device runs at the same time; 0
/// if it has no clusters of that size.
int clusters_at_a_time(int blocks);

}  // namespace ringlab::gpu
