#pragma once

#include "layouts/mask.hpp"
#include "layouts/problem.hpp"
#include "reference/tensors.hpp"

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::reference {

/// Rotary embedding in fp64, of the rows of one position after another.
class Rotation {
public:
    enum class Way {
        ahead,  ///< as q and k are rotated
        back,   ///< the transpose of that, as gradients by what was rotated become gradients by what it was before
        back_undone,  ///< the inverse of `back`
    };

    explicit Rotation(layouts::RotaryTable table) : table_(std::move(table)), turns_(table_.frequencies.size()) {}

    /// For rows of this position, which apply() is called for next.
    void set_position(std::int64_t position);

    /// Rotates the dims of one head of one token, in place.
    void apply(double* dims, Way way) const;

private:
    layouts::RotaryTable table_;
    std::vector<std::complex<double>> turns_;  // amplitude * exp(i * position * frequency), of each pair
};

/// A tensor of tokens in global order or, if `tokens` is not empty, of those at these positions: rotated.
Tensor rotated(Tensor tensor, const layouts::Problem& problem, const layouts::Mask& mask, Rotation::Way way,
               std::span<const std::int64_t> tokens = {});

/// What a rank keeps, as scatter() orders it: queries or keys, rotated in place.
void rotate_shard(std::span<double> shard, std::span<const std::int64_t> tokens, const layouts::Problem& problem,
                  const layouts::Mask& mask, Rotation::Way way);

/// Inputs as they are attended to: q and k rotated and rounded to the problem's dtype.
Inputs with_rotation(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs);

}  // namespace ringlab::reference
