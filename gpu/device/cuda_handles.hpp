#pragma once

#include "gpu/device/cuda_check.hpp"

#include <array>
#include <string>
#include <utility>

namespace ringlab::gpu {

/// Makes `device` current for the calling thread until the end of the scope.
class DeviceScope {
public:
    explicit DeviceScope(int device) : device_(device) {
        RINGLAB_CUDA(cudaGetDevice(&before_));
        if (device_ != before_) RINGLAB_CUDA(cudaSetDevice(device_));
    }
    ~DeviceScope() {
        if (device_ != before_) cudaSetDevice(before_);
    }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

private:
    int device_, before_ = 0;
};

/// In its scope this thread does not disturb a graph that another thread captures: by default, a query of an event
/// fails then, and the capture too. Nothing that the scope enqueues goes to a stream that is captured.
class CaptureElsewhere {
public:
    CaptureElsewhere() { exchange(); }
    ~CaptureElsewhere() { exchange(); }
    CaptureElsewhere(const CaptureElsewhere&) = delete;
    CaptureElsewhere& operator=(const CaptureElsewhere&) = delete;

private:
    void exchange() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Owns a stream of the device that was current when it was made. It does not synchronise with the default stream.
class Stream {
public:
    /// Kernels that transfer have priority over those that compute. Otherwise the next block would wait until a grid
    /// that fills the device has ended.
    enum class Use { computing, transfers };

    explicit Stream(Use use = Use::computing) {
        int least = 0, greatest = 0;
        RINGLAB_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        RINGLAB_CUDA(
            cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, use == Use::transfers ? greatest : least));
    }
    ~Stream() {
        if (handle_) cudaStreamDestroy(handle_);
    }
    Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Stream& operator=(Stream&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }

    operator cudaStream_t() const { return handle_; }
    void synchronize() const { RINGLAB_CUDA(cudaStreamSynchronize(handle_)); }

private:
    cudaStream_t handle_ = nullptr;
};

/// Owns an event of the device that was current when it was made.
class Event {
public:
    /// `timing` records a time stamp. The others only order work and cost less; `ordering_across_processes` also in
    /// streams of other processes.
    enum class Use : unsigned {
        timing = cudaEventDefault,
        ordering = cudaEventDisableTiming,
        ordering_across_processes = cudaEventDisableTiming | cudaEventInterprocess,
    };

    explicit Event(Use use) { RINGLAB_CUDA(cudaEventCreateWithFlags(&handle_, static_cast<unsigned>(use))); }
    ~Event() {
        if (handle_) cudaEventDestroy(handle_);
    }
    Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Event& operator=(Event&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }

    operator cudaEvent_t() const { return handle_; }
    void record(cudaStream_t stream) const { RINGLAB_CUDA(cudaEventRecord(handle_, stream)); }

    /// Work that is enqueued on `stream` from now on begins after the work behind which this event was last recorded.
    void hold_back(cudaStream_t stream) const { RINGLAB_CUDA(cudaStreamWaitEvent(stream, handle_, 0)); }

    /// Whether the work behind which it was last recorded has ended; true if it was never recorded.
    bool done() const {
        const auto status = cudaEventQuery(handle_);
        if (status != cudaErrorNotReady) RINGLAB_CUDA(status);
        return status == cudaSuccess;
    }

private:
    cudaEvent_t handle_ = nullptr;
};

/// Seconds between two events for timing, both of which the device has passed. CUDA gives milliseconds as a float: half
/// a nanosecond exact at 10 ms, 60 ns at a second.
inline double seconds_between(cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0;
    RINGLAB_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    return static_cast<double>(milliseconds) * 1e-3;
}

/// Where the device is in its host, as in "0000:1b:00.0".
inline std::string bus_id_of(int device) {
    std::array<char, 32> text{};
    RINGLAB_CUDA(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
    return text.data();
}

}  // namespace ringlab::gpu
