#pragma once

#include "layouts/problem/problem.hpp"
#include "reference/tensors/tensors.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// The inputs of attention.
struct InputData {
    layouts::Problem problem;
    reference::Inputs inputs;                    ///< every value is a number of problem.dtype
    std::vector<std::int64_t> document_lengths;  ///< their sum is problem.tokens; empty if the input has none
};

/// A distribution of test inputs.
struct InputKind {
    std::string name;
    std::string help;  ///< one line
};

/// Seeded distributions. All start from independent standard normal numbers n, one for each element; every number
/// depends on (seed, tensor, batch, head, global position, dim) alone, never on rank, layout or the other sizes, and is
/// the same from every compiler and processor. The last step rounds to problem.dtype. dO is always n. With a latent
/// (normal alone) k is the latent, n, and v its matrices, n / sqrt(rank), by (head, row, column).
///
/// - normal:  q, k, v = n.
/// - outlier: as normal, but max(1, dim/64) channels of each head of q, k and v, drawn by the seed for every tensor and
///            head, are 10 n: the outlier channels of large models.
/// - sink:    u is a vector of random signs for each kv head: q = n + u, the key at position 0 is
///            n + 10/(scale |u|^2) u and its value is n/10, so every query scores it higher by 10: an attention sink.
/// - offset:  k = n + 10 w, w a normal vector for each kv head and batch element, equal at all positions. The output
///            does not depend on w, but scores grow by a common 10 scale q.w.
const std::vector<InputKind>& input_kinds();

/// Inputs of the sizes, scale and dtype of `problem`. Throws Error naming the known kinds if `kind` is not one of them.
InputData generate_inputs(const std::string& kind, const layouts::Problem& problem, std::uint64_t seed);

/// dO of standard normal numbers, as of every input kind, not yet rounded.
reference::Tensor normal_dout(const layouts::Problem& problem, std::uint64_t seed);

struct LoadOptions {
    std::int64_t tokens = 0;                   ///< the first so many; 0: all
    std::optional<layouts::DType> dtype = {};  ///< round to this one; without it, q, k, v and do must agree
    std::uint64_t seed = 1;                    ///< of a dO that the file lacks
};

/// Sizes, dtype and documents of a user's file, as load_inputs() would give them, with inputs left empty.
InputData inspect_inputs(const std::filesystem::path& path, const LoadOptions& options);

/// The user's own Q, K, V and perhaps dO: an HDF5 file with datasets `q`, `k`, `v` and optionally `do`, each (batch,
/// token, head, dim), of 16-, 32- or 64-bit floats, or of uint16 with the attribute dtype = "bfloat16" (bit patterns).
/// Optional attributes of the file: scale, soft_cap; optional dataset document_lengths. A dO that is missing is drawn
/// from the normal distribution.
///
/// Throws Error, one line that names file and object, if the file cannot be read, if shapes or types do not fit
/// together, or if a value is not finite in the dtype.
InputData load_inputs(const std::filesystem::path& path, const LoadOptions& options);

/// Extends the data to `tokens` tokens with zeros, at positions that a mask hides. Documents are left as they are.
void pad_inputs(InputData& data, std::int64_t tokens);

/// Keeps the rows of q and dO at these positions only (layouts::Problem::queries); keeps all if none are given.
void keep_queries(InputData& data, const std::vector<layouts::Interval>& queries);

}  // namespace ringlab::experiments
