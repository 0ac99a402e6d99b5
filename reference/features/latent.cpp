#include "reference/features/latent.hpp"

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

/// The problem without roundings.
layouts::Problem in_fp64(layouts::Problem problem) {
    problem.dtype = layouts::DType::fp64;
    return problem;
}

template <class AnyTensor>
auto all_tokens(AnyTensor& tensor, std::int64_t batch, std::int64_t head) {
    return head_view(tensor, batch, head, 0, static_cast<std::int64_t>(tensor.shape(1)));
}

template <class Visit>
void for_each_head(const layouts::Problem& problem, Visit visit) {
    for (std::int64_t b = 0; b < problem.batch; ++b)
        for (int h = 0; h < problem.kv_heads; ++h) visit(b, h);
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

Inputs expanded(const layouts::Problem& problem, const Inputs& inputs) {
    const auto heads = problem.expanded(), exact = in_fp64(problem);
    Inputs result{inputs.q, zeros_of(heads.key_shape()), zeros_of(heads.value_shape()), inputs.dout};
    const LatentMatrices<double> matrices(exact, inputs.v);
    for_each_head(problem, [&](std::int64_t b, int h) {
        matrices.expand(h, all_tokens(inputs.k, b, 0), all_tokens(result.k, b, h), all_tokens(result.v, b, h));
    });
    for (auto* tensor : {&result.k, &result.v}) *tensor = rounded(std::move(*tensor), problem.dtype);
    return result;
}

void compress(const layouts::Problem& problem, const Inputs& inputs, Outputs& outputs) {
    const auto exact = in_fp64(problem);
    LatentMatrices<double> matrices(exact, inputs.v);
    matrices.begin_gradient();
    Tensor dlatent = zeros_of(problem.key_shape());
    for_each_head(problem, [&](std::int64_t b, int h) {
        matrices.compress(h, all_tokens(outputs.dk, b, h), all_tokens(outputs.dv, b, h), all_tokens(inputs.k, b, 0),
                          all_tokens(dlatent, b, 0));
    });
    outputs.dk = std::move(dlatent);
    outputs.dv = zeros_of(problem.value_shape());
    std::ranges::copy(matrices.gradient(), outputs.dv.begin());
}

}  // namespace ringlab::reference
