#include "reference/features/rotary.hpp"

#include "layouts/basics/require.hpp"
#include "reference/tensors/rounding.hpp"

namespace ringlab::reference {

void Rotation::set_position(std::int64_t position) {
    for (std::size_t i = 0; i < rotations_.size(); ++i)
        rotations_[i] = std::polar(table_.amplitude, static_cast<double>(position) * table_.frequencies[i]);
}

void Rotation::apply(double* dims, Way way) const {
    const auto distance = table_.distance();
    const double shrink = way == Way::inverse_of_back ? 1 / (table_.amplitude * table_.amplitude) : 1;
    for (std::size_t i = 0; i < rotations_.size(); ++i) {
        double& x = dims[table_.dim_of(static_cast<std::int64_t>(i))];
        double& y = *(&x + distance);
        const auto turn = way == Way::back ? std::conj(rotations_[i]) : shrink * rotations_[i];
        const auto turned = turn * std::complex<double>(x, y);
        x = turned.real();
        y = turned.imag();
    }
}

Tensor rotated(Tensor tensor, const layouts::Problem& problem, const layouts::Mask& mask, Rotation::Way way,
               std::span<const std::int64_t> tokens) {
    const auto [batches, count, heads, dims] = tensor.shape();
    const auto all = tokens.empty() ? all_positions(static_cast<std::int64_t>(count))
                                    : std::vector<std::int64_t>(tokens.begin(), tokens.end());
    require(all.size() == count, "{} positions are given to rotate a tensor of {} tokens; there must be one for each",
            all.size(), count);
    const auto positions = layouts::rotary_positions(problem.rotary, mask, all);
    Rotation rotation(layouts::rotary_table(problem.rotary, problem.head_dim));
    for (std::size_t t = 0; t < count; ++t) {
        rotation.set_position(positions[t]);
        for (std::size_t b = 0; b < batches; ++b)
            for (std::size_t h = 0; h < heads; ++h) rotation.apply(&tensor(b, t, h, 0), way);
    }
    return tensor;
}

void rotate_shard(std::span<double> shard, std::span<const std::int64_t> tokens, const layouts::Problem& problem,
                  const layouts::Mask& mask, Rotation::Way way) {
    const auto positions = layouts::rotary_positions(problem.rotary, mask, tokens);
    Rotation rotation(layouts::rotary_table(problem.rotary, problem.head_dim));
    const auto dim = static_cast<std::size_t>(problem.head_dim), sequence = tokens.size() * dim;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
        rotation.set_position(positions[t]);
        for (std::size_t begin = t * dim; begin < shard.size(); begin += sequence)
            rotation.apply(shard.data() + begin, way);
    }
}

Inputs with_rotation(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs) {
    using Way = Rotation::Way;
    return {rounded(rotated(inputs.q, problem, mask, Way::ahead, problem.row_positions()), problem.dtype),
            rounded(rotated(inputs.k, problem, mask, Way::ahead), problem.dtype), inputs.v, inputs.dout};
}

}  // namespace ringlab::reference
