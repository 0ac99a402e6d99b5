#include "reference/ranks/cpu_latent.hpp"

#include "reference/tensors/blas.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>

namespace ringlab::reference {
namespace {

template <class Element>
MatrixView<Element> columns_of(MatrixView<Element> view, std::int64_t first, std::int64_t count) {
    return {view.data + first, view.rows, count, view.stride};
}

template <class Element>
MatrixView<Element> some_rows_of(MatrixView<Element> view, std::int64_t first, std::int64_t count) {
    return {view.row(first), count, view.columns, view.stride};
}

}  // namespace

template <class Real>
LatentMatrices<Real>::LatentMatrices(const layouts::Problem& problem, const Tensor& matrices)
    : problem_(problem), matrices_(matrices.begin(), matrices.end()) {
    round_in_place(std::span(matrices_), problem.dtype);
}

template <class Real>
template <class Numbers>
auto LatentMatrices<Real>::of_head(Numbers& numbers, int head) const {
    const auto rows = problem_.expanded_dim(), rank = problem_.latent.rank;
    auto* data = numbers.data() + head * rows * rank;
    return MatrixView<std::remove_pointer_t<decltype(data)>>{data, rows, rank, rank};
}

template <class Real>
void LatentMatrices<Real>::expand(int head, ConstView latent, View k, View v) const {
    if (latent.rows == 0) return;
    const auto own = problem_.own_key_dim(), rank = problem_.latent.rank, shared = problem_.latent.shared;
    const auto matrices = of_head(matrices_, head);
    const auto compressed = columns_of(latent, 0, rank);
    multiply(1, compressed, transpose(some_rows_of(matrices, 0, own)), columns_of(k, 0, own));
    multiply(1, compressed, transpose(some_rows_of(matrices, own, problem_.value_dim)), v);
    for (std::int64_t t = 0; t < k.rows; ++t) std::copy_n(latent.row(t) + rank, shared, k.row(t) + own);
}

template <class Real>
void LatentMatrices<Real>::compress(int head, ConstView dk, ConstView dv, ConstView latent, View dlatent) {
    if (dk.rows == 0) return;
    const auto own = problem_.own_key_dim(), rank = problem_.latent.rank, shared = problem_.latent.shared;
    const auto dims = problem_.expanded_dim();
    if (rows_.size() < size(dk.rows * dims)) rows_ = std::vector<Real>(size(dk.rows * dims));
    const View rows{rows_.data(), dk.rows, dims, dims};
    for (std::int64_t t = 0; t < dk.rows; ++t) {
        std::copy_n(dk.row(t), own, rows.row(t));
        std::copy_n(dv.row(t), dv.columns, rows.row(t) + own);
        for (std::int64_t d = 0; d < shared; ++d) dlatent.row(t)[rank + d] += dk.row(t)[own + d];
    }
    round_in_place(std::span(rows.data, size(dk.rows * dims)), problem_.dtype);
    multiply_add(1, rows, of_head(matrices_, head), columns_of(dlatent, 0, rank));
    multiply_add(1, transpose(rows), columns_of(latent, 0, rank), of_head(gradient_, head));
}

template class LatentMatrices<float>;
template class LatentMatrices<double>;

}  // namespace ringlab::reference
