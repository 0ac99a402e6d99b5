#pragma once

namespace ringlab::gpu {

/// How many clusters of so many thread blocks, each with a multiprocessor to itself, the current device runs at a time;
/// 0 where it has no clusters.
int clusters_at_a_time(int blocks);

}  // namespace ringlab::gpu
