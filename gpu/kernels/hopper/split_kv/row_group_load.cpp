#include "gpu/kernels/hopper/split_kv/row_group_load.hpp"

#include "gpu/kernels/common/clusters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace ringlab::gpu::hopper {

/// Times are in key tiles of an SM. Row groups begin in the order of the list, each when SMs are free. Two bounds hold
/// for that: as many waves as there are row groups for the SMs, each as long as the longest row group; and an even
/// share of all work, and then the longest row group (Graham). The lower bound counts. The first is exact if row groups
/// are equally long, the second is close if they differ and are many.
int blocks_per_row_group(const RowGroupLoad& load, std::span<const layouts::SmGroup> choices) {
    // Begin and merge of a row group, some 5 us. A key tile (64 KB) takes 1.8 us at an SM's share of 4.8 TB/s.
    constexpr double more = 3;
    int best = 1;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [blocks, at_a_time] : choices) {
        const auto share = [&](std::int64_t entries) {
            return static_cast<double>(entries) / static_cast<double>(blocks);
        };
        const auto groups = static_cast<double>(load.row_groups), places = static_cast<double>(at_a_time);
        const double longest = std::ceil(share(load.longest)) + more;
        const double waves = std::ceil(groups / places) * longest;
        const double even = (share(load.entries) + groups * more) / places + longest;
        const double time = std::min(waves, even);
        if (time >= least) continue;
        least = time;
        best = static_cast<int>(blocks);
    }
    return best;
}

int blocks_per_row_group(const RowGroupLoad& load) {
    std::vector<layouts::SmGroup> choices{{1, sms_of_device()}};
    for (const int blocks : {2, 4, 8})
        if (const int clusters = clusters_at_a_time(blocks)) choices.push_back({blocks, clusters});
    return blocks_per_row_group(load, choices);
}

}  // namespace ringlab::gpu::hopper
