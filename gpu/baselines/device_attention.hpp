#pragma once

#include "gpu/baselines/timed_call.hpp"
#include "gpu/kernels/attention.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"

#include <memory>
#include <span>
#include <string>

namespace ringlab::gpu {

/// Our own kernels on the current device, on normally distributed numbers, with nothing around them. They attend from
/// query rows to one block of keys, as a rank of a ring does, or over a whole sequence.
class DeviceAttention {
public:
    DeviceAttention(const layouts::Problem& problem, const layouts::Mask& mask, std::span<const layouts::Run> rows,
                    std::span<const layouts::Run> keys, const KernelFamily* kernels);
    ~DeviceAttention();

    /// By name; valid while this object lives.
    /// - "forward": one launch, o in the problem's dtype, and lse. "forward_first", "forward_carried": of a row's
    /// blocks
    ///   the first, and one in the middle, with (o, m, l) read and written in fp32. "forward_kept" and
    ///   "forward_last_kept": the only block, and the last, with o in fp32 as well, as a pass keeps it for the next
    ///   one.
    /// - "backward_kernel": the attend alone, with dk and dv in the problem's dtype; "backward_block" in fp32.
    ///   "backward_prepare": what goes before all blocks; "backward_add": dk and dv of a block added to others;
    ///   "backward_round": gradients from fp32. "backward": all that a whole sequence needs, with dk and dv as in
    ///   "backward_kernel"; "backward_deterministic" likewise.
    /// "forward" and "backward" can be refreshed.
    TimedCall call(const std::string& name);

private:
    struct Work;
    std::unique_ptr<Work> work_;
};

}  // namespace ringlab::gpu
