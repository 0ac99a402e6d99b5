#include "gpu/device/driver.hpp"

#include "gpu/device/cuda_check.hpp"
#include "layouts/basics/require.hpp"

#include <vector>

namespace ringlab::gpu {
namespace {

void require_done(CUresult status, const char* what) {
    require(status == CUDA_SUCCESS, "the CUDA driver cannot {}: error {}", what, static_cast<int>(status));
}

}  // namespace

void* driver_function(const char* name) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    constexpr unsigned version = 12000;
    RINGLAB_CUDA(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found));
#else
    RINGLAB_CUDA(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found));
#endif
    require(found == cudaDriverEntryPointSuccess && address != nullptr,
            "the CUDA driver has no {}: it is older than CUDA 12.0", name);
    return address;
}

void write_value(cudaStream_t stream, std::uint32_t* address, std::uint32_t value) {
    static const auto function =
        reinterpret_cast<decltype(&cuStreamWriteValue32)>(driver_function("cuStreamWriteValue32"));
    require_done(function(stream, reinterpret_cast<CUdeviceptr>(address), value, CU_STREAM_WRITE_VALUE_DEFAULT),
                 "write a value in a stream");
}

void wait_for_value(cudaStream_t stream, const std::uint32_t* address, std::uint32_t value) {
    static const auto function =
        reinterpret_cast<decltype(&cuStreamWaitValue32)>(driver_function("cuStreamWaitValue32"));
    require_done(function(stream, reinterpret_cast<CUdeviceptr>(address), value, CU_STREAM_WAIT_VALUE_GEQ),
                 "wait for a value in a stream");
}

void exchange_value(cudaStream_t stream, std::span<std::uint32_t* const> written,
                    std::span<const std::uint32_t* const> awaited, std::uint32_t value) {
    static const auto function = reinterpret_cast<decltype(&cuStreamBatchMemOp)>(driver_function("cuStreamBatchMemOp"));
    std::vector<CUstreamBatchMemOpParams> operations(written.size() + awaited.size());
    auto operation = operations.begin();
    for (auto* const address : written) {
        auto& write = (operation++)->writeValue;
        write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        write.address = reinterpret_cast<CUdeviceptr>(address);
        write.value = value;
        write.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    }
    for (const auto* const address : awaited) {
        auto& wait = (operation++)->waitValue;
        wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        wait.address = reinterpret_cast<CUdeviceptr>(address);
        wait.value = value;
        wait.flags = CU_STREAM_WAIT_VALUE_GEQ;
    }
    require_done(function(stream, static_cast<unsigned>(operations.size()), operations.data(), 0),
                 "write and wait for values in a stream");
}

}  // namespace ringlab::gpu
