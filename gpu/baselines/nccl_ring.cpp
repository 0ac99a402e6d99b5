#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/transports/nccl_direction.hpp"
#include "layouts/basics/require.hpp"

#include <nccl.h>

#include <map>
#include <memory>

namespace ringlab::gpu {
namespace {

void require_success(ncclResult_t status, const char* what) {
    require(status == ncclSuccess, "NCCL: {} failed: {}", what, ncclGetErrorString(status));
}

/// One communicator over devices 0, 1, 2 ... of this process.
class Communicators {
public:
    explicit Communicators(std::size_t devices) : handles_(devices) {
        require_success(ncclCommInitAll(handles_.data(), static_cast<int>(devices), nullptr), "starting up");
    }
    ~Communicators() {
        for (const auto handle : handles_) ncclCommDestroy(handle);
    }
    Communicators(const Communicators&) = delete;
    Communicators& operator=(const Communicators&) = delete;

    ncclComm_t operator[](std::size_t device) const { return handles_[device]; }

private:
    std::vector<ncclComm_t> handles_;
};

/// Memory of each device.
class KnownMemory {
public:
    KnownMemory(int devices, std::size_t bytes) : bytes_(bytes), memory_(static_cast<std::size_t>(devices)) {
        for (int device = 0; device < devices; ++device) {
            const DeviceScope scope(device);
            require_success(ncclMemAlloc(&memory_[static_cast<std::size_t>(device)], bytes), "allocating");
        }
    }
    ~KnownMemory() {
        for (auto* memory : memory_) ncclMemFree(memory);
    }
    KnownMemory(const KnownMemory&) = delete;
    KnownMemory& operator=(const KnownMemory&) = delete;

    std::size_t bytes() const { return bytes_; }
    char* operator[](int device) const { return static_cast<char*>(memory_[static_cast<std::size_t>(device)]); }

private:
    const std::size_t bytes_;
    std::vector<void*> memory_;
};

/// A communicator of all devices whose kernels have at most `most_blocks` thread blocks, and which knows memory of
/// each.
class LimitedBlocks {
public:
    LimitedBlocks(int devices, int most_blocks, std::shared_ptr<const KnownMemory> memory)
        : memory_(std::move(memory)), handles_(static_cast<std::size_t>(devices)), registrations_(handles_.size()) {
        ncclUniqueId id;
        require_success(ncclGetUniqueId(&id), "starting up");
        require_success(ncclGroupStart(), "a group");
        for (int device = 0; device < devices; ++device) {
            const DeviceScope scope(device);
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.maxCTAs = most_blocks;
            require_success(
                ncclCommInitRankConfig(&handles_[static_cast<std::size_t>(device)], devices, id, device, &config),
                "starting up");
        }
        require_success(ncclGroupEnd(), "a group");
        for (std::size_t device = 0; device < handles_.size(); ++device)
            require_success(ncclCommRegister(handles_[device], (*memory_)[static_cast<int>(device)], memory_->bytes(),
                                             &registrations_[device]),
                            "registering memory");
    }
    ~LimitedBlocks() {
        for (std::size_t device = 0; device < handles_.size(); ++device)
            ncclCommDeregister(handles_[device], registrations_[device]);
        for (const auto handle : handles_) ncclCommDestroy(handle);
    }
    LimitedBlocks(const LimitedBlocks&) = delete;
    LimitedBlocks& operator=(const LimitedBlocks&) = delete;

    ncclComm_t operator[](int device) const { return handles_[static_cast<std::size_t>(device)]; }

private:
    const std::shared_ptr<const KnownMemory> memory_;
    std::vector<ncclComm_t> handles_;
    std::vector<void*> registrations_;
};

}  // namespace

std::function<void(int count, const std::vector<TwoStreams>&)> nccl_ring_apart(int devices, std::int64_t bytes,
                                                                               int most_blocks) {
    const auto size = static_cast<std::size_t>(bytes);
    const auto memory = std::make_shared<const KnownMemory>(devices, 2 * size);  // what is sent, then what is received
    std::map<NcclDirection, std::shared_ptr<const LimitedBlocks>> communicators;
    for (int device = 0; device < devices; ++device) {
        auto& one = communicators[nccl_direction(device, (device + 1) % devices)];
        if (!one) one = std::make_shared<const LimitedBlocks>(devices, most_blocks, memory);
    }
    return [=](int count, const std::vector<TwoStreams>& streams) {
        for (int i = 0; i < count; ++i) {
            require_success(ncclGroupStart(), "a group");
            for (int device = 0; device < devices; ++device) {
                const int next = (device + 1) % devices;
                const auto& by = *communicators.at(nccl_direction(device, next));
                require_success(ncclSend((*memory)[device], size, ncclUint8, next, by[device],
                                         streams[static_cast<std::size_t>(device)].sends),
                                "sending");
                require_success(ncclRecv((*memory)[next] + size, size, ncclUint8, device, by[next],
                                         streams[static_cast<std::size_t>(next)].receives),
                                "receiving");
            }
            require_success(ncclGroupEnd(), "a group");
        }
    };
}

std::function<void(int count, const std::vector<cudaStream_t>&)> nccl_ring(const std::vector<const void*>& from,
                                                                           const std::vector<void*>& to,
                                                                           std::int64_t bytes) {
    const auto devices = from.size(), size = static_cast<std::size_t>(bytes);
    const auto communicators = std::make_shared<Communicators>(devices);
    return [=](int count, const std::vector<cudaStream_t>& streams) {
        for (int i = 0; i < count; ++i) {
            require_success(ncclGroupStart(), "a group");
            for (std::size_t device = 0; device < devices; ++device) {
                const int next = static_cast<int>((device + 1) % devices);
                const int previous = static_cast<int>((device + devices - 1) % devices);
                const auto handle = (*communicators)[device];
                require_success(ncclSend(from[device], size, ncclUint8, next, handle, streams[device]), "sending");
                require_success(ncclRecv(to[device], size, ncclUint8, previous, handle, streams[device]), "receiving");
            }
            require_success(ncclGroupEnd(), "a group");
        }
    };
}

}  // namespace ringlab::gpu
