// The part of the CUDA runtime that the executor's host code calls, without a GPU: device memory is host memory, every
// stream has a thread that works its queue off in order, and events order them as CUDA's do. So the thread sanitizer
// sees what threads of the host, and streams behind each other's backs, do to the same memory.

#include "tests/gpu_host/fake_cuda.hpp"

#include "gpu/device/driver.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

/// The host has the longest name that Linux allows.
extern "C" int gethostname(char* name, std::size_t bytes) noexcept {
    const std::string longest(64, 'h');
    if (bytes <= longest.size()) return -1;
    longest.copy(name, longest.size());
    name[longest.size()] = '\0';
    return 0;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int device_count = 4;
constexpr std::size_t most_pitch = 0x7fffffff;
thread_local int current_device = 0, recorded_by_thread = 0;

/// Guards all streams and events.
std::mutex mutex;
std::condition_variable changed;

/// Recorded so many times, and passed by its stream so many times.
struct EventState {
    std::uint64_t recorded = 0, passed = 0;
    Clock::time_point time;
};

/// Works off its queue one by one; a task is ready when its condition, asked under the mutex, is true.
class FakeStream {
public:
    struct Task {
        std::function<bool()> ready;
        std::function<void()> work;   // outside the mutex
        std::function<void()> ended;  // under it
    };

    FakeStream() : device(current_device), thread_([this](std::stop_token stop) { run(stop); }) {}
    ~FakeStream() {
        thread_.request_stop();
        changed.notify_all();
        thread_.join();
    }

    void push(Task task) {
        const std::lock_guard lock(mutex);
        queue_.push_back(std::move(task));
        changed.notify_all();
    }
    bool idle() const { return queue_.empty(); }  // under the mutex

    const int device;

private:
    void run(const std::stop_token& stop) {
        std::unique_lock lock(mutex);
        for (;;) {
            // With a limit: the request to stop comes without the mutex.
            changed.wait_for(lock, std::chrono::milliseconds(20), [&] {
                return stop.stop_requested() || (!queue_.empty() && (!queue_.front().ready || queue_.front().ready()));
            });
            if (queue_.empty() || (queue_.front().ready && !queue_.front().ready())) {
                if (stop.stop_requested()) return;
                continue;
            }
            auto& task = queue_.front();
            if (task.work) {
                lock.unlock();
                task.work();
                lock.lock();
            }
            if (task.ended) task.ended();
            queue_.pop_front();
            changed.notify_all();
        }
    }

    std::deque<Task> queue_;
    std::jthread thread_;
};

std::set<FakeStream*> streams;  // under the mutex

FakeStream& of(cudaStream_t stream) { return *reinterpret_cast<FakeStream*>(stream); }
std::shared_ptr<EventState>& of(cudaEvent_t event) { return *reinterpret_cast<std::shared_ptr<EventState>*>(event); }

std::atomic<int> slow_device = -1, limited_device = -1, closed_device = -1;
std::atomic<std::chrono::milliseconds> copy_time;
std::atomic<std::size_t> most_bytes = 0;
std::atomic<bool> captures = false;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

/// On a stream, or at once where there is none.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
    if (stream)
        of(stream).push({{}, std::move(work), {}});
    else
        work();
    return cudaSuccess;
}

cudaError_t enqueue_copy(cudaStream_t stream, std::function<void()> copy) {
    return enqueue(stream, [stream, copy = std::move(copy)] {
        copy();
        if (stream && of(stream).device == slow_device) std::this_thread::sleep_for(copy_time.load());
    });
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    *properties = {};
    std::strcpy(properties->name, "none");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    std::snprintf(text, static_cast<std::size_t>(size), "%d", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* possible, int, int) {
    *possible = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [] {
        for (const auto* stream : streams)
            if (stream->device == current_device && !stream->idle()) return false;
        return true;
    });
    return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "an error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the fake runtime"; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
    if (current_device == limited_device && bytes > most_bytes) return cudaErrorMemoryAllocation;
    *memory = std::malloc(bytes);
    if (!*memory) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);  // no table begins like this
    return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
    std::free(memory);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    *free = *total = 0;
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return enqueue_copy(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
    if (std::max(to_pitch, from_pitch) > most_pitch) return cudaErrorInvalidPitchValue;
    return enqueue_copy(stream, [=] {
        for (std::size_t row = 0; row < height; ++row)
            std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                        width);
    });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return enqueue(stream, [=] { function(data); });
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    return enqueue(stream, [=] { std::memset(memory, value, bytes); });
}
cudaError_t cudaMemset2DAsync(void* memory, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
    if (pitch > most_pitch) return cudaErrorInvalidPitchValue;
    return enqueue(stream, [=] {
        for (std::size_t row = 0; row < height; ++row)
            std::memset(static_cast<char*>(memory) + row * pitch, value, width);
    });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    auto* made = new FakeStream;
    const std::lock_guard lock(mutex);
    streams.insert(made);
    *stream = reinterpret_cast<cudaStream_t>(made);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaStreamSynchronize(stream);
    {
        const std::lock_guard lock(mutex);
        streams.erase(&of(stream));
    }
    delete &of(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (!stream) return cudaSuccess;
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return of(stream).idle(); });
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    auto state = of(event);
    std::uint64_t recorded = 0;
    {
        const std::lock_guard lock(mutex);
        recorded = state->recorded;
    }
    of(stream).push({[=] { return state->passed >= recorded; }, {}, {}});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = reinterpret_cast<cudaEvent_t>(new std::shared_ptr(std::make_shared<EventState>()));
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete &of(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    auto state = of(event);
    std::uint64_t recorded = 0;
    ++recorded_by_thread;
    {
        const std::lock_guard lock(mutex);
        recorded = ++state->recorded;
    }
    of(stream).push({{}, {}, [=] {
                         state->passed = std::max(state->passed, recorded);
                         state->time = Clock::now();
                     }});
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (captures && capture_mode != cudaStreamCaptureModeRelaxed) return cudaErrorStreamCaptureUnsupported;
    const std::lock_guard lock(mutex);
    return of(event)->passed >= of(event)->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return of(event)->passed >= of(event)->recorded; });
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    const std::lock_guard lock(mutex);
    *milliseconds = std::chrono::duration<float, std::milli>(of(to)->time - of(from)->time).count();
    return cudaSuccess;
}

// Between threads that stand for processes: a handle is the address.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
    std::memcpy(handle, &memory, sizeof(memory));
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
    if (current_device == closed_device) return cudaErrorMapBufferObjectFailed;
    std::memcpy(memory, &handle, sizeof(*memory));
    return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
    std::memcpy(handle, &event, sizeof(event));
    return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    cudaEvent_t original = nullptr;
    std::memcpy(&original, &handle, sizeof(original));
    *event = reinterpret_cast<cudaEvent_t>(new std::shared_ptr(of(original)));
    return cudaSuccess;
}

}  // extern "C"

namespace ringlab::tests {

void slow_down_copies(int device, std::chrono::milliseconds time) {
    copy_time = time;
    slow_device = device;
}
void capture_a_graph(bool begins) { captures = begins; }
void open_no_memory_of_others(int device) { closed_device = device; }
int events_recorded() { return recorded_by_thread; }
void limit_allocations(int device, std::size_t bytes) {
    most_bytes = bytes;
    limited_device = device;
}

}  // namespace ringlab::tests

namespace ringlab::gpu {

void write_value(cudaStream_t stream, std::uint32_t* address, std::uint32_t value) {
    of(stream).push({{}, {}, [=] { *address = value; }});
}
void wait_for_value(cudaStream_t stream, const std::uint32_t* address, std::uint32_t value) {
    of(stream).push({[=] { return static_cast<std::int32_t>(*address - value) >= 0; }, {}, {}});
}
void exchange_value(cudaStream_t stream, std::span<std::uint32_t* const> written,
                    std::span<const std::uint32_t* const> awaited, std::uint32_t value) {
    for (auto* const address : written) write_value(stream, address, value);
    for (const auto* const address : awaited) wait_for_value(stream, address, value);
}

/// Waits as a kernel does, until there is the value or `late` is not 0. For fake_kernels.cpp.
void wait_in_kernel(cudaStream_t stream, const std::uint32_t* address, std::uint32_t value, const std::uint32_t* late) {
    of(stream).push({[=] { return static_cast<std::int32_t>(*address - value) >= 0 || *late != 0; }, {}, {}});
}

}  // namespace ringlab::gpu
