#pragma once

#include "layouts/problem/problem.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// The attention that is computed, without its number of tokens.
struct ProblemConfig {
    std::int64_t batch = 1;
    std::string heads;                     ///< "QUERY:KV"; empty: those of the input
    std::int64_t head_dim = 0;             ///< 0: that of the input
    std::int64_t value_dim = 0;            ///< 0: head_dim
    double scale = 0;                      ///< factor of q.k; 0: that of the input, or 1/sqrt(head_dim)
    std::optional<double> soft_cap;        ///< 0: none; not given: that of the input
    std::string arithmetic;                ///< "fp64", "fp32", "bf16" or "fp16"
    std::string latent_spec, rotary_spec;  ///< as they were typed
    layouts::Latent latent;
    layouts::Rotary rotary;
    layouts::Dropout dropout;
    std::vector<std::string> sinks;  ///< logits: one for all query heads, one for each, or "normal"
    std::uint64_t seed = 1;          ///< seed of everything random
};

/// The type of a word of --arithmetic: "fp64", "fp32", "bf16" or "fp16". Throws Error for any other.
layouts::DType dtype_from(const std::string& arithmetic);

/// The problem that the configuration describes by itself, with no tokens; 4:2 heads of 128 where it is silent.
layouts::Problem problem_from(const ProblemConfig& config);

}  // namespace ringlab::experiments
