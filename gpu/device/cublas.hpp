#pragma once

#include "gpu/device/shared_library.hpp"
#include "layouts/basics/basic_types.hpp"
#include "layouts/basics/require.hpp"

#include <cublas_v2.h>

#include <cstdint>

namespace ringlab::gpu {

/// A row-major matrix in device memory; several lie `apart` elements from each other.
struct DeviceMatrix {
    const void* data = nullptr;
    layouts::DType dtype = layouts::DType::bf16;
    std::int64_t stride = 0;
    std::int64_t apart = 0;
    bool transposed = false;
};

/// Matrix products by cuBLAS, which is loaded at run time. One thread at a time.
class Cublas {
public:
    /// Throws Error if there is no cuBLAS.
    Cublas() {
        const SharedLibrary library({fmt::format("libcublas.so.{}", CUDART_VERSION / 1000), "libcublas.so"});
        require(library.loaded(), "matrix products are cuBLAS's: {}", library.why_not());
        destroy_ = library.find<decltype(cublasDestroy_v2)>("cublasDestroy_v2");
        set_stream_ = library.find<decltype(cublasSetStream_v2)>("cublasSetStream_v2");
        multiply_ = library.find<BatchedProduct>("cublasGemmStridedBatchedEx");
        const auto create = library.find<decltype(cublasCreate_v2)>("cublasCreate_v2");
        require(create && destroy_ && set_stream_ && multiply_, "cuBLAS lacks a function that a product needs");
        require_success(create(&handle_), "starting");
    }
    ~Cublas() { destroy_(handle_); }
    Cublas(const Cublas&) = delete;
    Cublas& operator=(const Cublas&) = delete;

    /// c (rows x columns) = a b, or c += a b, `count` times, in stream order. A row-major matrix is the transpose of
    /// the column-major one that cuBLAS takes the same memory for: so c^T = b^T a^T.
    void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const DeviceMatrix& a,
                  const DeviceMatrix& b, const DeviceMatrix& c, bool adds, std::int64_t count, cudaStream_t stream) {
        if (rows == 0) return;
        const float one = 1, beta = adds ? 1 : 0;
        const auto number = [](std::int64_t value) { return static_cast<int>(value); };
        const auto how = [](const DeviceMatrix& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
        require_success(set_stream_(handle_, stream), "choosing a stream");
        require_success(multiply_(handle_, how(b), how(a), number(columns), number(rows), number(inner), &one, b.data,
                                  type_of(b.dtype), number(b.stride), b.apart, a.data, type_of(a.dtype),
                                  number(a.stride), a.apart, &beta, const_cast<void*>(c.data), type_of(c.dtype),
                                  number(c.stride), c.apart, number(count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                        "a product");
    }

private:
    /// cublasGemmStridedBatchedEx: C++ has a second function of that name.
    using BatchedProduct = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                          const void*, const void*, cudaDataType, int, long long, const void*,
                                          cudaDataType, int, long long, const void*, void*, cudaDataType, int,
                                          long long, int, cublasComputeType_t, cublasGemmAlgo_t);

    static void require_success(cublasStatus_t status, const char* what) {
        require(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {} failed with status {}", what, static_cast<int>(status));
    }
    static cudaDataType type_of(layouts::DType dtype) {
        using enum layouts::DType;
        return dtype == fp32 ? CUDA_R_32F : dtype == bf16 ? CUDA_R_16BF : CUDA_R_16F;
    }

    decltype(cublasDestroy_v2)* destroy_;
    decltype(cublasSetStream_v2)* set_stream_;
    BatchedProduct* multiply_;
    cublasHandle_t handle_ = nullptr;
};

}  // namespace ringlab::gpu
