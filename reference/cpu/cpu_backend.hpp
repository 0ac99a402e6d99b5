#pragma once

#include "layouts/schedule.hpp"
#include "layouts/timeline.hpp"
#include "reference/cpu/cpu_attention.hpp"
#include "reference/cpu/transport.hpp"
#include "reference/tensors.hpp"

#include <span>
#include <vector>

namespace ringlab::reference {

struct CpuOptions {
    TileSizes tiles;
    bool round_running_output = false;  ///< with Accumulation::partials: the merged output is rounded to the dtype each
                                        ///< time, as where a ring keeps no fp32 output
    std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for other ranks without progress
};

/// What a pass, or a forward and a backward pass, of one ring gave.
struct CpuRun {
    Outputs outputs;     ///< o in the problem's dtype; dq, dk and dv as accumulated; no gradients without a backward
                         ///< pass
    Tensor o_unrounded;  ///< o before its last rounding; what the backward pass takes delta from
    layouts::Timeline forward, backward;      ///< measured; busy of compute operations is CPU time of the rank's thread
    std::vector<std::int64_t> own_bytes;      ///< by rank: slot 0 of every pool, inputs and results
    std::vector<std::int64_t> scratch_bytes;  ///< by rank: slots, the larger of both passes; what its SlotGroups make
    std::vector<std::int64_t> workspace_bytes;  ///< by rank: what the arithmetic needs beside them, tiles,
                                                ///< messages, operands widened to the accumulator's type
    double clock_uncertainty = 0;               ///< seconds by which times of different ranks may disagree
    /// By pass and rank, processor time of what rotates q and k before the forward pass, and dq and dk behind the
    /// backward pass: no part of either. Empty where nothing is rotated.
    std::array<std::vector<double>, 2> rotation_seconds{};
};

/// CPU seconds of each rank's attends: the measured workload.
std::vector<double> attend_seconds(const layouts::Timeline& timeline);

/// Executes schedules on the ranks of `world`, messages and all, replica by replica at the same time.
///
/// The arithmetic follows from Problem::dtype. fp64: everything in double. fp32: everything in float. bf16 or fp16,
/// emulated: q, k, v, dout, p and ds are rounded before each product, sums are float, and so are lse and delta; with
/// Accumulation::partials each block's o is rounded too. ScheduleOptions::gradient_dtype is that of dK and dV on the
/// wire and in scratch; a rank's own sum stays in the accumulator's type.
///
/// `forward` is a forward schedule; `backward`, if not null, one of the same problem, mask and layout. `inputs` has one
/// entry per replica, the same on every process, of which a process reads those of its own replicas. Returns one result
/// per replica on the root process, nothing on others.
///
/// Throws Error if these do not fit together, and what World::run() throws; a schedule that uses a buffer before it
/// holds what the operation needs is found and named.
std::vector<CpuRun> run(World& world, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const Inputs> inputs, const CpuOptions& options);

/// The same for a world of one replica; on a process that is not root the result is empty.
CpuRun run(World& world, const layouts::Schedule& forward, const layouts::Schedule* backward, const Inputs& inputs,
           const CpuOptions& options);

}  // namespace ringlab::reference
