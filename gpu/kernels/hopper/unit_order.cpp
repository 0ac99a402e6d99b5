#include "gpu/kernels/hopper/unit_order.hpp"

#include "gpu/cuda_check.hpp"

#include <algorithm>

namespace ringlab::gpu::hopper {

int multiprocessors_of_device() {
    int device = 0, count = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

std::optional<UnitOrder> order_in_step(std::int64_t items, std::int64_t heads, int blocks, bool alike) {
    const std::int64_t places = multiprocessors_of_device() / blocks;
    constexpr double enough = 0.9;  // of the multiprocessors, and of the items
    const auto nearly = [](std::int64_t part, std::int64_t all) {
        return static_cast<double>(part) >= enough * static_cast<double>(all);
    };
    for (std::int64_t together = 1; together <= std::min(heads, places); ++together) {
        if (heads % together != 0) continue;
        const auto most = places / together, fewest = std::max<std::int64_t>(items / most, 1);
        for (const auto chunks : {fewest, fewest + 1}) {
            const auto chunk = std::min(most, items / chunks);
            const bool are_paired = chunks * heads / together % 2 == 0 || alike;
            if (are_paired && nearly(chunk * together, places) && nearly(chunk * chunks, items))
                return UnitOrder{.first_items = static_cast<int>(chunk * chunks),
                                 .together = static_cast<int>(together),
                                 .chunk = static_cast<int>(chunk),
                                 .chunks = static_cast<int>(chunks),
                                 .in_step = true};
        }
    }
    return std::nullopt;
}

}  // namespace ringlab::gpu::hopper
