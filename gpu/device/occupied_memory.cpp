#include "gpu/device/occupied_memory.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/cuda_handles.hpp"

#include <algorithm>
#include <chrono>

namespace ringlab::gpu {
namespace {

constexpr std::chrono::milliseconds pause_between_looks{5};

std::int64_t least_free_now(int devices) {
    std::int64_t least = 0;
    for (int device = 0; device < devices; ++device) {
        const DeviceScope scope(device);
        std::size_t free_bytes = 0, total = 0;
        RINGLAB_CUDA(cudaMemGetInfo(&free_bytes, &total));
        const auto here = static_cast<std::int64_t>(free_bytes);
        least = device == 0 ? here : std::min(least, here);
    }
    return least;
}

}  // namespace

OccupiedMemory::OccupiedMemory(int devices, std::int64_t bytes) : devices_(devices) {
    for (int device = 0; device < devices; ++device) {
        const DeviceScope scope(device);
        taken_.emplace_back(static_cast<std::size_t>(bytes));
    }
    least_free_ = least_free_now(devices);
    watcher_ = std::thread([this] { watch(); });
}

OccupiedMemory::~OccupiedMemory() {
    done_ = true;
    watcher_.join();
}

void OccupiedMemory::watch() {
    try {
        while (!done_) {
            least_free_ = std::min<std::int64_t>(least_free_, least_free_now(devices_));
            std::this_thread::sleep_for(pause_between_looks);
        }
    } catch (const std::exception&) {
        // Errors are ignored: the code that runs on a failed device reports the failure.
    }
}

}  // namespace ringlab::gpu
