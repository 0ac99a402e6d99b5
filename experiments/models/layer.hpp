#pragma once

#include "experiments/inputs/inputs.hpp"
#include "layouts/layouts/layout.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::experiments {

/// The parameters of a layer around attention: W_q, W_k and W_v are used before keys and values travel, W_o after.
inline constexpr std::array<const char*, 4> layer_parameters{"w_q", "w_k", "w_v", "w_o"};

/// Gradients of a loss by the parameters, in the order of layer_parameters: (head, dim, dim) each.
using ParameterGradients = std::array<std::vector<double>, layer_parameters.size()>;

void add(ParameterGradients& sum, const ParameterGradients& other, double factor = 1);

/// Attention between projections of each head: q = x_q W_q, k = x_k W_k, v = x_v W_v, y = o W_o, and a loss that is the
/// sum over tokens of c . y. What stands for x and c are the q, k, v and dO of an input. All in fp64; what attention
/// is computed from is rounded to the problem's dtype.
class Layer {
public:
    /// Parameters are normal with variance 1/dim, drawn from the seed alone.
    Layer(const layouts::Problem& problem, std::uint64_t seed);

    /// q, k, v and dO of attention where token t's loss counts `loss_weight[t]` times.
    reference::Inputs attention_inputs(const reference::Inputs& features, std::span<const double> loss_weight) const;

    /// Gradients from the tokens at `positions` alone, which a rank can compute for its own tokens. `outputs` are
    /// attention's over the whole sequence.
    ParameterGradients gradients(const reference::Inputs& features, std::span<const double> loss_weight,
                                 const reference::Outputs& outputs, std::span<const std::int64_t> positions) const;

private:
    layouts::Problem problem_;
    std::array<reference::Tensor, layer_parameters.size()> weights_;  // (1, dim in, head, dim out)
};

}  // namespace ringlab::experiments
