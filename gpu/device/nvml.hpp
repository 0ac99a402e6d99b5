#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// Clocks, power and temperature of a GPU at a moment, by NVML.
struct ClockSample {
    enum class Moment { before, during, after };

    int device = 0;  ///< as CUDA numbers it in this process
    Moment moment = Moment::before;
    double seconds = 0;  ///< host clock (steady)
    int sm_mhz = 0;
    int memory_mhz = 0;
    double watts = 0;
    int celsius = 0;
    std::uint64_t throttle_reasons = 0;  ///< nvmlClocksEventReasons
};

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
