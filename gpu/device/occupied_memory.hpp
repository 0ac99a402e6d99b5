#pragma once

#include "gpu/device/device_buffer.hpp"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace ringlab::gpu {

/// Holds memory of the first devices while it lives, as the rest of a model would, and watches how much is left.
class OccupiedMemory {
public:
    /// `bytes` of each of `devices`. Throws Error if one has less free.
    OccupiedMemory(int devices, std::int64_t bytes);
    ~OccupiedMemory();
    OccupiedMemory(const OccupiedMemory&) = delete;
    OccupiedMemory& operator=(const OccupiedMemory&) = delete;

    /// The least free memory of any of the devices so far, bytes, looked at every few milliseconds.
    std::int64_t least_free() const { return least_free_; }

private:
    void watch();

    int devices_;
    std::vector<DeviceBuffer> taken_;
    std::atomic<std::int64_t> least_free_;
    std::atomic<bool> done_ = false;
    std::thread watcher_;
};

}  // namespace ringlab::gpu
