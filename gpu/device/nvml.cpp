#include "gpu/device/nvml.hpp"

#include "gpu/device/cuda_check.hpp"

#include <dlfcn.h>

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
    void* handle = nullptr;
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
        if (handle) dlclose(handle);
    }

    template <class Function>
    bool find(const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(handle, name));
        return function != nullptr;
    }
};

Nvml::Nvml() {
    auto library = std::make_unique<Library>();
    library->handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library->handle) return;
    Status (*init)() = nullptr;
    if (!library->find("nvmlInit_v2", init) || init() != success) return;
    library->find("nvmlShutdown", library->shutdown);
    const bool complete = library->find("nvmlDeviceGetHandleByPciBusId_v2", library->device_by_bus_id) &&
                          library->find("nvmlDeviceGetClockInfo", library->clock) &&
                          library->find("nvmlDeviceGetPowerUsage", library->power) &&
                          library->find("nvmlDeviceGetTemperature", library->temperature) &&
                          library->find("nvmlDeviceGetCurrentClocksThrottleReasons", library->throttle) &&
                          library->find("nvmlSystemGetDriverVersion", library->driver_version);
    if (!complete) return;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return;
    for (int device = 0; device < count; ++device) {
        std::array<char, 32> bus_id{};
        RINGLAB_CUDA(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device));
        Device found = nullptr;
        if (library->device_by_bus_id(bus_id.data(), &found) == success) library->devices[device] = found;
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
