#include "gpu/baselines/ceilings.hpp"
#include "layouts/require.hpp"

#include <nccl.h>

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

}  // namespace

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
