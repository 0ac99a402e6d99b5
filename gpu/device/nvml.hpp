#pragma once

#include "gpu/device/samples.hpp"

#include <memory>
#include <optional>
#include <string>

namespace ringlab::gpu {

/// Reads clocks and power by NVML, which is loaded at run time. Without NVML, sample() returns nothing.
class Nvml {
public:
    Nvml();
    ~Nvml();
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    std::string driver_version() const;

    /// Clocks and power of a CUDA device now; nothing if NVML does not know the device. Any thread may call it. Takes
    /// 10 us to 1 ms of host time.
    std::optional<ClockSample> sample(int device, ClockSample::Moment moment) const;

private:
    struct Library;
    std::unique_ptr<Library> library_;
};

}  // namespace ringlab::gpu
