#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringlab::gpu {

/// (batch, tokens, heads, dim) in host memory, row-major, tokens in global order.
template <class Element>
struct HostTensor {
    std::array<std::int64_t, 4> shape{};
    std::vector<Element> values;

    std::size_t row(std::int64_t batch, std::int64_t token) const {
        return static_cast<std::size_t>((batch * shape[1] + token) * shape[2] * shape[3]);
    }
};

template <class Element>
HostTensor<Element> make_tensor(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    return {{batch, tokens, heads, dim}, std::vector<Element>(static_cast<std::size_t>(batch * tokens * heads * dim))};
}

/// Q, K, V and dO as bit patterns of the problem's dtype, shapes as in layouts::Problem. `dout` may be empty where
/// there is no backward pass.
struct HostInputs {
    HostTensor<std::uint16_t> q, k, v, dout;
};

/// Results as numbers. lse has dim 1. Without a backward pass dq, dk and dv are empty, and dsinks without sinks.
struct HostOutputs {
    HostTensor<float> o, lse, dq, dk, dv;
    std::vector<double> dsinks = {};  ///< by query head, the sum over ranks
};

}  // namespace ringlab::gpu
