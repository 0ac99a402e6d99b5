#pragma once

namespace ringlab::gpu {

/// Parameters of kernels that drop p out: see dropout_params.hpp.
template <class Params>
concept DropsOut = requires(const Params& params) {
    params.dropout;
};

}  // namespace ringlab::gpu
