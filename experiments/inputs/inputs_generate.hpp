#pragma once

#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <cstdint>

namespace ringlab::experiments {

/// dO of standard normal numbers, as of every input kind, not yet rounded.
reference::Tensor normal_dout(const layouts::Problem& problem, std::uint64_t seed);

}  // namespace ringlab::experiments
