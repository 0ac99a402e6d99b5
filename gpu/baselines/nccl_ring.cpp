#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/cuda_handles.hpp"
#include "gpu/transports/nccl_communicators.hpp"
#include "layouts/basics/counts.hpp"

#include <map>
#include <memory>

namespace ringlab::gpu {
namespace {

/// Memory of each device, as NCCL allocates it.
struct NcclMemory {
    NcclMemory(int devices, std::size_t bytes) : of_device(size(devices)) {
        for (int device = 0; device < devices; ++device) {
            const DeviceScope scope(device);
            RINGLAB_NCCL(ncclMemAlloc(&of_device[size(device)], bytes));
        }
    }
    ~NcclMemory() {
        for (auto* memory : of_device) ncclMemFree(memory);
    }
    NcclMemory(const NcclMemory&) = delete;
    NcclMemory& operator=(const NcclMemory&) = delete;

    std::vector<void*> of_device;
};

/// A communicator over devices 0, 1, 2 ... of this process. `most_blocks`: of its kernels; 0: as NCCL chooses.
class Communicator {
public:
    Communicator(int devices, int most_blocks) : handles_(size(devices)) {
        ncclUniqueId id;
        RINGLAB_NCCL(ncclGetUniqueId(&id));
        RINGLAB_NCCL(ncclGroupStart());
        for (int device = 0; device < devices; ++device) {
            const DeviceScope scope(device);
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            if (most_blocks > 0) config.maxCTAs = most_blocks;
            RINGLAB_NCCL(ncclCommInitRankConfig(&handles_[size(device)], devices, id, device, &config));
        }
        RINGLAB_NCCL(ncclGroupEnd());
    }
    ~Communicator() {
        for (std::size_t device = 0; device < registrations_.size(); ++device)
            ncclCommDeregister(handles_[device], registrations_[device]);
        for (const auto handle : handles_) ncclCommDestroy(handle);
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    void register_memory(std::shared_ptr<const NcclMemory> memory, std::size_t bytes) {
        memory_ = std::move(memory);
        for (std::size_t device = 0; device < handles_.size(); ++device)
            RINGLAB_NCCL(
                ncclCommRegister(handles_[device], memory_->of_device[device], bytes, &registrations_.emplace_back()));
    }

    ncclComm_t operator[](int device) const { return handles_[size(device)]; }

private:
    std::shared_ptr<const NcclMemory> memory_;  // that is registered
    std::vector<ncclComm_t> handles_;
    std::vector<void*> registrations_;
};

/// Sends one message from each device to the next. `by`: for each device the communicator of its message.
void send_to_next(const std::vector<const void*>& from, const std::vector<void*>& to, std::int64_t bytes,
                  const std::vector<std::shared_ptr<const Communicator>>& by, const std::vector<TwoStreams>& streams) {
    const auto devices = static_cast<int>(from.size());
    RINGLAB_NCCL(ncclGroupStart());
    for (int device = 0; device < devices; ++device) {
        const int next = (device + 1) % devices;
        const auto& communicator = *by[size(device)];
        RINGLAB_NCCL(ncclSend(from[size(device)], size(bytes), ncclUint8, next, communicator[device],
                              streams[size(device)].sends));
        RINGLAB_NCCL(
            ncclRecv(to[size(next)], size(bytes), ncclUint8, device, communicator[next], streams[size(next)].receives));
    }
    RINGLAB_NCCL(ncclGroupEnd());
}

}  // namespace

NcclRing nccl_ring_apart(int devices, std::int64_t bytes, int most_blocks) {
    // Of each device what is sent, then what is received.
    const auto memory = std::make_shared<const NcclMemory>(devices, 2 * size(bytes));
    std::map<NcclDirection, std::shared_ptr<const Communicator>> communicators;
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<std::shared_ptr<const Communicator>> by;
    for (int device = 0; device < devices; ++device) {
        auto& one = communicators[nccl_direction(device, (device + 1) % devices)];
        if (!one) {
            const auto made = std::make_shared<Communicator>(devices, most_blocks);
            made->register_memory(memory, 2 * size(bytes));
            one = made;
        }
        by.push_back(one);
        from.push_back(memory->of_device[size(device)]);
        to.push_back(static_cast<char*>(memory->of_device[size(device)]) + bytes);
    }
    return [=](const std::vector<TwoStreams>& streams) { send_to_next(from, to, bytes, by, streams); };
}

NcclRing nccl_ring(const std::vector<const void*>& from, const std::vector<void*>& to, std::int64_t bytes) {
    const std::vector by(from.size(), std::make_shared<const Communicator>(static_cast<int>(from.size()), 0));
    return [=](const std::vector<TwoStreams>& streams) { send_to_next(from, to, bytes, by, streams); };
}

}  // namespace ringlab::gpu
