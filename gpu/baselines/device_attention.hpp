#pragma once

#include "gpu/baselines/timed_call.hpp"
#include "gpu/kernels/attention.hpp"
#include "layouts/mask.hpp"
#include "layouts/problem.hpp"

#include <memory>
#include <vector>

namespace ringlab::gpu {

/// Our own kernels over a whole sequence on the current device, on normal numbers, with nothing else around them.
class DeviceAttention {
public:
    DeviceAttention(const layouts::Problem& problem, const layouts::Mask& mask, KernelFamily kernels);
    ~DeviceAttention();

    /// "forward": one launch, o in the problem's dtype, and lse. "forward_carried": the same with (o, m, l) read and
    /// written in fp32, as in the middle of a ring. "backward": from o and dO to gradients in the problem's dtype,
    /// everything included; "backward_deterministic" likewise. "backward_kernel": of that the attend alone. Valid while
    /// this object lives.
    std::vector<TimedCall> calls();

private:
    struct Work;
    std::unique_ptr<Work> work_;
};

}  // namespace ringlab::gpu
