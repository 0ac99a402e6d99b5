#include "gpu/ranks/latent_products.hpp"

#include "gpu/device/cublas.hpp"
#include "gpu/device/cuda_check.hpp"
#include "gpu/elements/elementwise.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/transports/slot_map.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace ringlab::gpu {
namespace {

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

LatentProducts::LatentProducts(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank)
    : problem_(forward.problem()),
      cublas_(std::make_unique<Cublas>()),
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
            cublas_->multiply(extent.tokens, dims, rank, made_of, rows_from(row),
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
        cublas_->multiply(tokens, rank, row, together, matrices, {to.data, to.dtype, to.strides.token}, what.adds, 1,
                          stream);
        together.transposed = true;
        cublas_->multiply(row, rank, tokens, together, {latent.data, latent.dtype, latent.strides.token}, gradient,
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
