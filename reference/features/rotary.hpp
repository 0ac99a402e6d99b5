#pragma once

#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::reference {

/// Rotary embedding in fp64. Set a position, then apply it to the rows of that position.
class Rotation {
public:
    enum class Way {
        ahead,  ///< forward, as q and k are rotated
        back,   ///< the transpose of that: turns gradients of rotated tensors into those of the tensors before it
        inverse_of_back,  ///< the inverse of `back`
    };

    explicit Rotation(layouts::RotaryTable table) : table_(std::move(table)), rotations_(table_.frequencies.size()) {}

    /// Sets the position for the following calls of apply().
    void set_position(std::int64_t position);

    /// Rotates the dims of one head of one token, in place.
    void apply(double* dims, Way way) const;

private:
    layouts::RotaryTable table_;
    std::vector<std::complex<double>> rotations_;  // amplitude * exp(i * position * frequency), by pair
};

/// Rotates a tensor of all tokens in global order or, if `tokens` is not empty, of the tokens at these positions.
/// Throws Error if the number of positions is not that of the tensor's tokens.
Tensor rotated(Tensor tensor, const layouts::Problem& problem, const layouts::Mask& mask, Rotation::Way way,
               std::span<const std::int64_t> tokens = {});

/// Rotates a rank's queries or keys, in the order of scatter(), in place. `tokens`: their global positions.
void rotate_shard(std::span<double> shard, std::span<const std::int64_t> tokens, const layouts::Problem& problem,
                  const layouts::Mask& mask, Rotation::Way way);

/// The inputs with q and k rotated and rounded to the problem's dtype, as attention uses them.
Inputs with_rotation(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs);

}  // namespace ringlab::reference
