#pragma once

#include "reference/tensors/tensors.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace ringlab::reference {

/// The tokens at `positions` of a global tensor, in the order in which a rank stores them: (heads, batch, local tokens,
/// dim).
std::vector<double> scatter(const Tensor& global, std::span<const std::int64_t> positions);

/// The reverse: writes a rank's part into the global tensor. Throws Error if the shard has another size.
void gather(std::span<const double> shard, std::span<const std::int64_t> positions, Tensor& global);

/// The same for one number per row: (heads, batch, local tokens).
void gather(std::span<const double> shard, std::span<const std::int64_t> positions, Lse& global);

}  // namespace ringlab::reference
