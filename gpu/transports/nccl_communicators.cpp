#include "gpu/transports/nccl_communicators.hpp"

#include "gpu/device/cuda_check.hpp"

#include <cstring>
#include <future>
#include <thread>

namespace ringlab::gpu {

void check_nccl(ncclResult_t status, const char* call, const char* file, int line) {
    if (status == ncclSuccess || status == ncclInProgress) return;
    int device = -1;
    cudaGetDevice(&device);
    fail("NCCL error '{}' from {} at {}:{}, device {}; {}", ncclGetErrorString(status), call, file, line, device,
         ncclGetLastError(nullptr));
}

void call_with_patience(const char* what, int rank, const Patience& patience, std::function<void()> call) {
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    std::packaged_task<void()> task([device, call = std::move(call)] {
        RINGLAB_CUDA(cudaSetDevice(device));
        call();
    });
    auto done = task.get_future();
    std::thread(std::move(task)).detach();
    processes::Waiting waiting;
    while (done.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
        if (patience.team.cancelled()) throw Cancelled();
        require(waiting.so_far() < patience.timeout, "rank {}: NCCL has spent {} s on {}; another rank is not there",
                rank, std::chrono::duration<double>(patience.timeout).count(), what);
    }
    done.get();
}

NcclCommunicator::NcclCommunicator(const NcclId& id, int rank, int ranks, bool takes_few, const Patience& patience)
    : id_(id), rank_(rank) {
    const auto made = std::make_shared<ncclComm_t>();
    call_with_patience("starting up", rank, patience, [=] {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        if (takes_few) config.maxCTAs = overlapped_message_thread_blocks;
        ncclUniqueId unique;
        std::memcpy(&unique, id.data(), id.size());
        RINGLAB_NCCL(ncclCommInitRankConfig(made.get(), ranks, unique, rank, &config));
    });
    handle_ = *made;
}

void NcclCommunicator::check(const char* what) const {
    ncclResult_t status = ncclSuccess;
    RINGLAB_NCCL(ncclCommGetAsyncError(handle_, &status));
    require(status == ncclSuccess || status == ncclInProgress, "rank {}: NCCL failed while {}: {}; {}", rank_, what,
            ncclGetErrorString(status), ncclGetLastError(handle_));
}

NcclPool& NcclPool::of_this_process() {
    static auto* const pool = new NcclPool;  // never destroyed, see above
    return *pool;
}

std::unique_ptr<NcclCommunicator> NcclPool::take(const End& end) {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.extract(end);
    return found ? std::move(found.mapped()) : nullptr;
}

void NcclPool::keep(const End& end, std::unique_ptr<NcclCommunicator> communicator) {
    const std::lock_guard lock(mutex_);
    kept_[end] = std::move(communicator);
}

}  // namespace ringlab::gpu
