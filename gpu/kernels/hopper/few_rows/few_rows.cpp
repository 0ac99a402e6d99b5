#include "gpu/kernels/hopper/few_rows/few_rows.hpp"

#include "gpu/kernels/common/clusters.hpp"
#include "gpu/kernels/hopper/units/unit_order.hpp"

namespace ringlab::gpu::hopper {

/// A launch takes as long as its blocks come in turns, each of which has its share of a unit's key tiles.
int blocks_per_unit(std::int64_t units, std::int64_t entries) {
    const auto turns = [](std::int64_t work, std::int64_t at_a_time) { return (work + at_a_time - 1) / at_a_time; };
    int best = 1;
    auto least = turns(units, multiprocessors_of_device()) * entries;
    for (const int blocks : {2, 4, 8}) {
        const int clusters = clusters_at_a_time(blocks);
        if (clusters == 0) break;
        const auto time = turns(units, clusters) * turns(entries, blocks);
        if (time >= least) continue;
        least = time;
        best = blocks;
    }
    return best;
}

}  // namespace ringlab::gpu::hopper
