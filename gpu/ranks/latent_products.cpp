#include "gpu/ranks/latent_products.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/shared_library.hpp"
#include "gpu/elements/elementwise.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/transports/slot_map.hpp"
#include "layouts/basics/require.hpp"

#include <cublas_v2.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace ringlab::gpu {
namespace {

void require_product(cublasStatus_t status, const char* what) {
    require(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {} failed with status {}", what, static_cast<int>(status));
}

/// cublasGemmStridedBatchedEx: C++ has a second function of that name.
using BatchedProduct = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                      const void*, cudaDataType, int, long long, const void*, cudaDataType, int,
                                      long long, const void*, void*, cudaDataType, int, long long, int,
                                      cublasComputeType_t, cublasGemmAlgo_t);

cudaDataType type_of(DType dtype) {
    return dtype == DType::fp32 ? CUDA_R_32F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

std::int64_t matrix_elements(const layouts::Problem& p) { return p.kv_heads * p.expanded_dim() * p.latent.rank; }

/// The same tensor from one of a head's dims on.
template <class SomeView>
SomeView from_dim(const SomeView& view, std::int64_t dim) {
    return {
        static_cast<decltype(view.data)>(static_cast<char*>(const_cast<void*>(static_cast<const void*>(view.data))) +
                                         dim * layouts::bytes_of(view.dtype)),
        view.dtype, view.strides};
}

template <class SomeView>
SomeView of_batch(const SomeView& view, std::int64_t batch) {
    return from_dim(view, batch * view.strides.batch);
}

}  // namespace

/// A row-major matrix in device memory; several lie `apart` elements from each other.
struct DeviceMatrix {
    const void* data = nullptr;
    DType dtype = DType::bf16;
    std::int64_t stride = 0;
    std::int64_t apart = 0;
    bool transposed = false;
};

class LatentProducts::Library {
public:
    Library() {
        const auto major = fmt::format("libcublas.so.{}", CUDART_VERSION / 1000);
        const SharedLibrary library({major, "libcublas.so"});
        require(library.loaded(), "a latent is expanded and compressed by cuBLAS: {}", library.why_not());
        destroy_ = library.find<decltype(cublasDestroy_v2)>("cublasDestroy_v2");
        set_stream_ = library.find<decltype(cublasSetStream_v2)>("cublasSetStream_v2");
        multiply_ = library.find<BatchedProduct>("cublasGemmStridedBatchedEx");
        const auto create = library.find<decltype(cublasCreate_v2)>("cublasCreate_v2");
        require(create && destroy_ && set_stream_ && multiply_, "cuBLAS lacks a function that a latent needs");
        require_product(create(&handle_), "starting");
    }
    ~Library() { destroy_(handle_); }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    /// c (rows x columns) = a b, or c += a b, `count` times. A row-major matrix is the transpose of the column-major
    /// one that cuBLAS takes the same memory for: so c^T = b^T a^T.
    void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const DeviceMatrix& a,
                  const DeviceMatrix& b, const DeviceMatrix& c, bool adds, std::int64_t count, cudaStream_t stream) {
        if (rows == 0) return;
        const float one = 1, beta = adds ? 1 : 0;
        const auto number = [](std::int64_t value) { return static_cast<int>(value); };
        const auto how = [](const DeviceMatrix& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
        require_product(set_stream_(handle_, stream), "choosing a stream");
        require_product(multiply_(handle_, how(b), how(a), number(columns), number(rows), number(inner), &one, b.data,
                                  type_of(b.dtype), number(b.stride), b.apart, a.data, type_of(a.dtype),
                                  number(a.stride), a.apart, &beta, const_cast<void*>(c.data), type_of(c.dtype),
                                  number(c.stride), c.apart, number(count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                        "a product");
    }

private:
    decltype(cublasDestroy_v2)* destroy_;
    decltype(cublasSetStream_v2)* set_stream_;
    BatchedProduct* multiply_;
    cublasHandle_t handle_ = nullptr;
};

LatentProducts::LatentProducts(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank)
    : problem_(forward.problem()),
      library_(std::make_unique<Library>()),
      matrices_(static_cast<std::size_t>(matrix_elements(problem_) * bytes_of(problem_.dtype))) {
    if (!backward) return;
    gradient_ = DeviceBuffer(static_cast<std::size_t>(matrix_elements(problem_)) * sizeof(float));
    rows_ =
        DeviceBuffer(static_cast<std::size_t>(elements_compressed_at_once(*backward, rank) * bytes_of(problem_.dtype)));
}

LatentProducts::~LatentProducts() = default;

void LatentProducts::load(const HostTensor<std::uint16_t>& matrices) {
    require(matrices.shape == problem_.value_shape(), "v, a latent's matrices, has shape ({}), expected ({})",
            fmt::join(matrices.shape, ", "), fmt::join(problem_.value_shape(), ", "));
    matrices_.upload(matrices.values.data());
}

void LatentProducts::load_random(int seed) {
    fill_normal(matrices_.data(), problem_.dtype, matrix_elements(problem_), 16u * static_cast<std::uint64_t>(seed) + 9,
                nullptr);
    RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
}

void LatentProducts::expand(const Extent& extent, const ConstView& latent, const View& k, const View& v, int first_head,
                            cudaStream_t stream) {
    const auto own = problem_.own_key_dim(), rank = problem_.latent.rank, shared = problem_.latent.shared;
    const auto of_a_head = problem_.expanded_dim() * rank;
    const ConstView matrices{matrices_.data(), problem_.dtype, {}};
    const auto rows_from = [&](std::int64_t row) {
        return DeviceMatrix{from_dim(matrices, first_head * of_a_head + row * rank).data, problem_.dtype, rank,
                            of_a_head, true};
    };
    for (std::int64_t b = 0; b < extent.batch; ++b) {
        const auto from = of_batch(latent, b);
        const DeviceMatrix made_of{from.data, from.dtype, from.strides.token};
        const auto make = [&](const View& to, std::int64_t row, std::int64_t dims) {
            const auto view = of_batch(to, b);
            library_->multiply(extent.tokens, dims, rank, made_of, rows_from(row),
                               {view.data, view.dtype, view.strides.token, view.strides.head}, false, extent.heads,
                               stream);
        };
        make(k, 0, own);
        make(v, own, problem_.value_dim);
    }
    if (shared == 0) return;
    auto same_for_all = from_dim(latent, rank);
    same_for_all.strides.head = 0;
    convert(std::array{Conversion{{extent.batch, extent.tokens, extent.heads, shared}, from_dim(k, own), same_for_all}},
            stream);
}

void LatentProducts::compress(const Compression& what, cudaStream_t stream) {
    const auto own = problem_.own_key_dim(), rank = problem_.latent.rank, shared = problem_.latent.shared;
    const auto dims = problem_.expanded_dim();
    const auto& [batch, tokens, heads, unused] = what.extent;
    if (tokens == 0) return;
    const auto row = heads * dims;
    const View rows{rows_.data(), problem_.dtype, {tokens * row, row, dims}};
    convert(std::array{Conversion{{batch, tokens, heads, own}, rows, what.dk},
                       Conversion{{batch, tokens, heads, problem_.value_dim}, from_dim(rows, own), what.dv}},
            stream);
    const auto head_offset = what.first_head * dims * rank;
    const DeviceMatrix matrices{from_dim(ConstView{matrices_.data(), problem_.dtype, {}}, head_offset).data,
                                problem_.dtype, rank};
    const DeviceMatrix gradient{from_dim(View{gradient_.data(), DType::fp32, {}}, head_offset).data, DType::fp32, rank};
    for (std::int64_t b = 0; b < batch; ++b) {
        const auto to = of_batch(what.dlatent, b);
        const auto latent = of_batch(what.latent, b);
        DeviceMatrix together{of_batch(rows, b).data, problem_.dtype, row};
        library_->multiply(tokens, rank, row, together, matrices, {to.data, to.dtype, to.strides.token}, what.adds, 1,
                           stream);
        together.transposed = true;
        library_->multiply(row, rank, tokens, together, {latent.data, latent.dtype, latent.strides.token}, gradient,
                           true, 1, stream);
    }
    if (shared > 0)
        sum_heads({batch, tokens, heads, shared}, from_dim(what.dlatent, rank), from_dim(what.dk, own), what.adds,
                  stream);
}

void LatentProducts::begin_gradient(cudaStream_t stream) { gradient_.fill(0, stream); }

std::vector<float> LatentProducts::gradient() const {
    std::vector<float> numbers(gradient_.bytes() / sizeof(float));
    gradient_.download(numbers.data());
    return numbers;
}

}  // namespace ringlab::gpu
