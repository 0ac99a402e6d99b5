#include "gpu/baselines/ceilings.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/shared_library.hpp"
#include "gpu/elements/elementwise.hpp"
#include "layouts/basics/require.hpp"

#include <cublas_v2.h>

namespace ringlab::gpu {
namespace {

void require_success(cublasStatus_t status, const char* what) {
    require(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {} failed with status {}", what, static_cast<int>(status));
}

/// cublasGemmEx: C++ has a second function of that name.
using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                              const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                              cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

/// Owns cuBLAS's handle and three matrices.
class Product {
public:
    explicit Product(const SharedLibrary& library)
        : create_(library.find<decltype(cublasCreate_v2)>("cublasCreate_v2")),
          destroy_(library.find<decltype(cublasDestroy_v2)>("cublasDestroy_v2")),
          set_stream_(library.find<decltype(cublasSetStream_v2)>("cublasSetStream_v2")),
          multiply_(library.find<GemmEx>("cublasGemmEx")) {
        require(create_ && destroy_ && set_stream_ && multiply_, "cuBLAS lacks a function that the ceiling needs");
        require_success(create_(&handle_), "starting");
        constexpr auto count = MatrixProduct::size * MatrixProduct::size;
        std::uint64_t seed = 0;
        for (auto* matrix : {&a_, &b_, &c_}) {
            *matrix = DeviceBuffer(static_cast<std::size_t>(count * layouts::bytes_of(DType::bf16)));
            fill_normal(matrix->data(), DType::bf16, count, ++seed, nullptr);
        }
    }
    ~Product() {
        if (handle_) destroy_(handle_);
    }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;

    void operator()(cudaStream_t stream) {
        constexpr int n = MatrixProduct::size;
        const float one = 1, zero = 0;
        require_success(set_stream_(handle_, stream), "choosing a stream");
        require_success(
            multiply_(handle_, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a_.data(), CUDA_R_16BF, n, b_.data(),
                      CUDA_R_16BF, n, &zero, c_.data(), CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            "a product");
    }

private:
    decltype(cublasCreate_v2)* create_;
    decltype(cublasDestroy_v2)* destroy_;
    decltype(cublasSetStream_v2)* set_stream_;
    GemmEx* multiply_;
    cublasHandle_t handle_ = nullptr;
    DeviceBuffer a_, b_, c_;
};

}  // namespace

MatrixProduct::MatrixProduct() {
    const auto major = fmt::format("libcublas.so.{}", CUDART_VERSION / 1000);
    const SharedLibrary library({major, "libcublas.so"});
    if (library.loaded())
        multiply_ = [product = std::make_shared<Product>(library)](cudaStream_t stream) { (*product)(stream); };
    else
        why_not_ = library.why_not();
}

TimedCall MatrixProduct::call() const { return {"matrix_product", multiply_}; }

}  // namespace ringlab::gpu
