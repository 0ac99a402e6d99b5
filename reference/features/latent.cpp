#include "reference/features/latent.hpp"

#include "reference/tensors/blas.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>

namespace ringlab::reference {
namespace {

/// All tokens of one batch element and head as a matrix (token, dim), with `count` dims from `first` on.
template <class SomeTensor>
auto dims_of(SomeTensor& tensor, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count) {
    auto view = head_view(tensor, batch, head, 0, static_cast<std::int64_t>(tensor.shape(1)));
    view.data += first;
    view.columns = count;
    return view;
}

/// `count` rows, from `first` on, of a head's matrices.
template <class SomeTensor>
auto rows_of(SomeTensor& matrices, std::int64_t head, std::int64_t first, std::int64_t count) {
    auto* data = &matrices(0, size(head), size(first), 0);
    const auto rank = static_cast<std::int64_t>(matrices.shape(3));
    return MatrixView<std::remove_pointer_t<decltype(data)>>{data, count, rank, rank};
}

template <class Visit>
void for_each_head(const layouts::Problem& problem, Visit visit) {
    for (std::int64_t b = 0; b < problem.batch; ++b)
        for (std::int64_t h = 0; h < problem.kv_heads; ++h) visit(b, h);
}

}  // namespace

Inputs expanded(const layouts::Problem& problem, const Inputs& inputs) {
    const auto heads = problem.expanded();
    const auto own = problem.own_key_dim(), rank = problem.latent.rank, shared = problem.latent.shared;
    Inputs result{inputs.q, zeros_of(heads.key_shape()), zeros_of(heads.value_shape()), inputs.dout};
    for_each_head(problem, [&](std::int64_t b, std::int64_t h) {
        const auto latent = dims_of(inputs.k, b, 0, 0, rank), tail = dims_of(inputs.k, b, 0, rank, shared);
        multiply(1, latent, transpose(rows_of(inputs.v, h, 0, own)), dims_of(result.k, b, h, 0, own));
        multiply(1, latent, transpose(rows_of(inputs.v, h, own, problem.value_dim)),
                 dims_of(result.v, b, h, 0, problem.value_dim));
        if (shared == 0) return;
        const auto keys = dims_of(result.k, b, h, own, shared);
        for (std::int64_t t = 0; t < keys.rows; ++t) std::copy_n(tail.row(t), shared, keys.row(t));
    });
    for (auto* tensor : {&result.k, &result.v}) *tensor = rounded(std::move(*tensor), problem.dtype);
    return result;
}

void compress(const layouts::Problem& problem, const Inputs& inputs, Outputs& outputs) {
    const auto own = problem.own_key_dim(), rank = problem.latent.rank, shared = problem.latent.shared;
    Tensor dlatent = zeros_of(problem.key_shape()), dmatrices = zeros_of(problem.value_shape());
    for_each_head(problem, [&](std::int64_t b, std::int64_t h) {
        const auto dk = dims_of(outputs.dk, b, h, 0, own), dv = dims_of(outputs.dv, b, h, 0, problem.value_dim);
        const auto gradient = dims_of(dlatent, b, 0, 0, rank);
        multiply_add(1, dk, rows_of(inputs.v, h, 0, own), gradient);
        multiply_add(1, dv, rows_of(inputs.v, h, own, problem.value_dim), gradient);
        const auto latent = dims_of(inputs.k, b, 0, 0, rank);
        multiply_add(1, transpose(dk), latent, rows_of(dmatrices, h, 0, own));
        multiply_add(1, transpose(dv), latent, rows_of(dmatrices, h, own, problem.value_dim));
        if (shared == 0) return;
        const auto from = dims_of(outputs.dk, b, h, own, shared), to = dims_of(dlatent, b, 0, rank, shared);
        for (std::int64_t t = 0; t < to.rows; ++t)
            for (std::int64_t d = 0; d < shared; ++d) to.row(t)[d] += from.row(t)[d];
    });
    outputs.dk = std::move(dlatent);
    outputs.dv = std::move(dmatrices);
}

}  // namespace ringlab::reference
