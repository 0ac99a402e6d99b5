#include "gpu/device/nvml.hpp"

#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/shared_library.hpp"

#include <array>
#include <chrono>
#include <map>

namespace ringlab::gpu {
namespace {

// The few declarations of NVML that are used here; its ABI is stable. Its header is a component of its own of the CUDA
// Toolkit, which toolkits put together from Python wheels or Conda packages lack.
using Status = int;
using Device = void*;
constexpr Status success = 0;
enum ClockType : int { sm_clock = 1, memory_clock = 2 };
constexpr int temperature_of_gpu = 0;

}  // namespace

struct Nvml::Library {
    Status (*shutdown)() = nullptr;
    Status (*device_by_bus_id)(const char*, Device*) = nullptr;
    Status (*clock)(Device, int, unsigned*) = nullptr;
    Status (*power)(Device, unsigned*) = nullptr;
    Status (*temperature)(Device, int, unsigned*) = nullptr;
    Status (*throttle)(Device, unsigned long long*) = nullptr;
    Status (*driver_version)(char*, unsigned) = nullptr;
    std::map<int, Device> devices;

    ~Library() {
        if (shutdown) shutdown();
    }
};

Nvml::Nvml() {
    const SharedLibrary nvml({"libnvidia-ml.so.1"});
    if (!nvml.loaded()) return;
    const auto find = [&]<class Function>(const char* name, Function*& function) {
        function = nvml.find<Function>(name);
        return function != nullptr;
    };
    Status (*init)() = nullptr;
    if (!find("nvmlInit_v2", init) || init() != success) return;
    auto library = std::make_unique<Library>();
    const bool complete = find("nvmlShutdown", library->shutdown) &&
                          find("nvmlDeviceGetHandleByPciBusId_v2", library->device_by_bus_id) &&
                          find("nvmlDeviceGetClockInfo", library->clock) &&
                          find("nvmlDeviceGetPowerUsage", library->power) &&
                          find("nvmlDeviceGetTemperature", library->temperature) &&
                          find("nvmlDeviceGetCurrentClocksThrottleReasons", library->throttle) &&
                          find("nvmlSystemGetDriverVersion", library->driver_version);
    int count = 0;
    if (!complete || cudaGetDeviceCount(&count) != cudaSuccess) return;
    for (int device = 0; device < count; ++device) {
        Device found = nullptr;
        if (library->device_by_bus_id(bus_id_of(device).c_str(), &found) == success) library->devices[device] = found;
    }
    library_ = std::move(library);
}

Nvml::~Nvml() = default;

std::string Nvml::driver_version() const {
    std::array<char, 96> version{};
    if (!library_ || library_->driver_version(version.data(), version.size()) != success) return "unknown";
    return version.data();
}

std::optional<ClockSample> Nvml::sample(int device, ClockSample::Moment moment) const {
    if (!library_) return {};
    const auto found = library_->devices.find(device);
    if (found == library_->devices.end()) return {};
    ClockSample sample;
    sample.device = device;
    sample.moment = moment;
    sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    // Values that the GPU does not report stay 0.
    unsigned value = 0;
    if (library_->clock(found->second, sm_clock, &value) == success) sample.sm_mhz = static_cast<int>(value);
    if (library_->clock(found->second, memory_clock, &value) == success) sample.memory_mhz = static_cast<int>(value);
    if (library_->power(found->second, &value) == success) sample.watts = static_cast<double>(value) * 1e-3;
    if (library_->temperature(found->second, temperature_of_gpu, &value) == success)
        sample.celsius = static_cast<int>(value);
    unsigned long long reasons = 0;
    if (library_->throttle(found->second, &reasons) == success) sample.throttle_reasons = reasons;
    return sample;
}

}  // namespace ringlab::gpu
