#pragma once

#include <random>
#include <string>
#include <vector>

namespace ringlab::experiments::tests {

/// Arguments of gradient_equivalence for one run of random sizes, from one token and one dim on: mask, layout,
/// schedule, ranks, heads, inputs, arithmetic and policy. Some do not fit together and are refused.
std::vector<std::string> random_run(std::mt19937_64& random);

}  // namespace ringlab::experiments::tests
