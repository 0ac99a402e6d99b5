#include "gpu/kernels/hopper/split_kv/split_kv.hpp"

#include "gpu/kernels/common/clusters.hpp"

namespace ringlab::gpu::hopper {

/// A launch takes as many waves as its row groups need, and each wave as long as a block's share of the key tiles.
int blocks_per_row_group(std::int64_t row_groups, std::int64_t entries) {
    const auto rounded_up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    int best = 1;
    auto least = rounded_up(row_groups, sms_of_device()) * entries;
    for (const int blocks : {2, 4, 8}) {
        const int clusters = clusters_at_a_time(blocks);
        if (clusters == 0) break;
        const auto time = rounded_up(row_groups, clusters) * rounded_up(entries, blocks);
        if (time >= least) continue;
        least = time;
        best = blocks;
    }
    return best;
}

}  // namespace ringlab::gpu::hopper
