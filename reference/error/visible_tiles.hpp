#pragma once

#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/tensors.hpp"

#include <functional>
#include <vector>

namespace ringlab::reference {

/// A tile of rows x keys of one head: scores s (-inf for hidden pairs), the dropout factors `dropped` of p, and dp =
/// dO.v times these factors.
struct Pairs {
    std::int64_t batch, query_head, kv_head;
    std::int64_t first_row, first_key;
    Matrix s, dp, dropped;
};

/// Calls `visit` for every tile of rows x keys that has a visible pair, for all heads and batch elements. rows[i] (a
/// global position) is token i of q and dout, keys[j] is token j of k and v. The numbers of a tile are valid until
/// `visit` returns; it may overwrite them.
void for_each_tile(const layouts::Problem& problem, const layouts::Mask& mask, const std::vector<std::int64_t>& rows,
                   const std::vector<std::int64_t>& keys, const Tensor& q, const Tensor& dout, const Tensor& k,
                   const Tensor& v, const std::function<void(const Pairs&)>& visit);

}  // namespace ringlab::reference
