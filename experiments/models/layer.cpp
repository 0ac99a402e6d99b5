#include "experiments/models/layer.hpp"

#include "reference/tensors/counts.hpp"
#include "reference/tensors/rounding.hpp"

#include <cmath>
#include <random>

namespace ringlab::experiments {
namespace {

using reference::Tensor;

/// out(b, t, h, j) = sum_i x(b, t, h, i) w(0, i, h, j), or with w transposed.
Tensor projected(const Tensor& x, const Tensor& w, bool transposed) {
    const auto& shape = x.shape();
    Tensor out({shape[0], shape[1], shape[2], w.shape(transposed ? 1 : 3)});
    out.fill(0);
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (std::size_t t = 0; t < shape[1]; ++t)
            for (std::size_t h = 0; h < shape[2]; ++h)
                for (std::size_t i = 0; i < shape[3]; ++i)
                    for (std::size_t j = 0; j < out.shape(3); ++j)
                        out(b, t, h, j) += x(b, t, h, i) * (transposed ? w(0, j, h, i) : w(0, i, h, j));
    return out;
}

/// sum over the positions of x(t, h, i) weight(t) gradient(t, h, j), as (head, i, j).
std::vector<double> outer(const Tensor& x, const Tensor& gradient, std::span<const double> weight,
                          std::span<const std::int64_t> positions) {
    const auto heads = x.shape(2), rows = x.shape(3), columns = gradient.shape(3);
    std::vector<double> sum(heads * rows * columns);
    for (std::size_t b = 0; b < x.shape(0); ++b)
        for (const auto position : positions)
            for (std::size_t h = 0; h < heads; ++h)
                for (std::size_t i = 0; i < rows; ++i) {
                    const auto t = size(position);
                    const double factor = x(b, t, h, i) * (weight.empty() ? 1 : weight[t]);
                    for (std::size_t j = 0; j < columns; ++j)
                        sum[(h * rows + i) * columns + j] += factor * gradient(b, t, h, j);
                }
    return sum;
}

}  // namespace

void add(ParameterGradients& sum, const ParameterGradients& other, double factor) {
    for (std::size_t p = 0; p < sum.size(); ++p) {
        sum[p].resize(other[p].size());
        for (std::size_t i = 0; i < other[p].size(); ++i) sum[p][i] += factor * other[p][i];
    }
}

Layer::Layer(const layouts::Problem& problem, std::uint64_t seed) : problem_(problem) {
    std::mt19937_64 generator(seed);
    const auto dim = size(problem.head_dim), value_dim = size(problem.value_dim);
    const std::size_t heads[]{size(problem.query_heads), size(problem.kv_heads), size(problem.kv_heads),
                              size(problem.query_heads)};
    const std::size_t dims[]{dim, dim, value_dim, value_dim};
    for (std::size_t p = 0; p < weights_.size(); ++p) {
        weights_[p] = Tensor({1, dims[p], heads[p], dims[p]});
        std::normal_distribution<double> normal(0, 1 / std::sqrt(static_cast<double>(dims[p])));
        for (auto& w : weights_[p]) w = normal(generator);
    }
}

reference::Inputs Layer::attention_inputs(const reference::Inputs& features,
                                          std::span<const double> loss_weight) const {
    auto loss_gradient = features.dout;  // of y
    for (std::size_t b = 0; b < loss_gradient.shape(0); ++b)
        for (std::size_t t = 0; t < loss_gradient.shape(1); ++t)
            for (std::size_t h = 0; h < loss_gradient.shape(2); ++h)
                for (std::size_t j = 0; j < loss_gradient.shape(3); ++j) loss_gradient(b, t, h, j) *= loss_weight[t];
    const auto rounded = [&](Tensor tensor) { return reference::rounded(std::move(tensor), problem_.dtype); };
    return {rounded(projected(features.q, weights_[0], false)), rounded(projected(features.k, weights_[1], false)),
            rounded(projected(features.v, weights_[2], false)), rounded(projected(loss_gradient, weights_[3], true))};
}

ParameterGradients Layer::gradients(const reference::Inputs& features, std::span<const double> loss_weight,
                                    const reference::Outputs& outputs, std::span<const std::int64_t> positions) const {
    return {outer(features.q, outputs.dq, {}, positions), outer(features.k, outputs.dk, {}, positions),
            outer(features.v, outputs.dv, {}, positions), outer(outputs.o, features.dout, loss_weight, positions)};
}

}  // namespace ringlab::experiments
