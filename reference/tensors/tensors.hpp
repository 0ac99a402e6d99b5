#pragma once

#if __has_include(<xtensor/containers/xtensor.hpp>)
#include <xtensor/containers/xtensor.hpp>
#else
#include <xtensor/xtensor.hpp>
#endif

#include "layouts/basics/counts.hpp"
#include "reference/tensors/blas.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>
#include <vector>

namespace ringlab::reference {

/// (batch, tokens, heads, dim), row-major; tokens in global order.
template <class Scalar>
using TensorOf = xt::xtensor<Scalar, 4>;
using Tensor = TensorOf<double>;

inline Tensor zeros_of(const std::array<std::int64_t, 4>& shape) {
    std::array<std::size_t, 4> sizes;
    std::ranges::copy(shape, sizes.begin());
    return Tensor(sizes, 0.0);
}

/// `count` tokens of one batch element and head, from `first` on, as a matrix (token, dim), const if the tensor is.
template <class AnyTensor>
auto head_view(AnyTensor& tensor, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count) {
    const auto dim = static_cast<std::int64_t>(tensor.shape(3));
    const auto stride = static_cast<std::int64_t>(tensor.shape(2)) * dim;
    auto* data = tensor.data() + (batch * static_cast<std::int64_t>(tensor.shape(1)) + first) * stride + head * dim;
    return MatrixView<std::remove_pointer_t<decltype(data)>>{data, count, dim, stride};
}

/// 0 .. tokens - 1.
inline std::vector<std::int64_t> all_positions(std::int64_t tokens) {
    std::vector<std::int64_t> positions(size(tokens));
    std::iota(positions.begin(), positions.end(), std::int64_t{0});
    return positions;
}

/// (batch, tokens, query_heads): natural logarithm of the sum of exponentials of a row's scores, -inf for a fully
/// masked row.
template <class Scalar>
using LseOf = xt::xtensor<Scalar, 3>;
using Lse = LseOf<double>;

/// Inputs of attention, with the shapes given at layouts::Problem: k and v may be a latent and its matrices. `dout` is
/// the gradient of the loss with respect to the output.
template <class Scalar>
struct InputsOf {
    TensorOf<Scalar> q, k, v, dout;
};
using Inputs = InputsOf<double>;

/// Results of a forward and a backward pass. o has the shape of dout; dq, dk and dv have those of q, k and v.
template <class Scalar>
struct OutputsOf {
    TensorOf<Scalar> o;
    LseOf<Scalar> lse;
    TensorOf<Scalar> dq, dk, dv;
    std::vector<Scalar> dsinks = {};  ///< gradients of sink logits, by query head; empty if there are no sinks
};
using Outputs = OutputsOf<double>;

}  // namespace ringlab::reference
