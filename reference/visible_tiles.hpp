#pragma once

#include "layouts/mask.hpp"
#include "layouts/problem.hpp"
#include "reference/blas.hpp"
#include "reference/tensors.hpp"

#include <functional>
#include <vector>

namespace ringlab::reference {

/// A tile of some head: scores with -inf where hidden, what dropout multiplies p by, and dp, multiplied by it.
struct Pairs {
    std::int64_t batch, query_head, kv_head;
    std::int64_t first_row, first_key;
    Matrix s, dp, dropped;
};

/// Calls `visit` for the visible tiles of rows x keys, which lie at tokens 0, 1, ... of q and dout, and of k and v; the
/// numbers are there until it returns, and may be written over.
void for_each_tile(const layouts::Problem& problem, const layouts::Mask& mask, const std::vector<std::int64_t>& rows,
                   const std::vector<std::int64_t>& keys, const Tensor& q, const Tensor& dout, const Tensor& k,
                   const Tensor& v, const std::function<void(const Pairs&)>& visit);

/// `count` tokens of a head from `first` on, as a matrix (token, dim).
ConstMatrix head_view(const Tensor& tensor, std::int64_t batch, std::int64_t head, std::int64_t first,
                      std::int64_t count);

}  // namespace ringlab::reference
