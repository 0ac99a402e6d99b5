#pragma once

#include "layouts/schedules/schedule.hpp"
#include "layouts/program/timeline.hpp"
#include "reference/ranks/cpu_attention.hpp"
#include "reference/ranks/transport.hpp"
#include "reference/tensors/tensors.hpp"

#include <span>
#include <vector>

namespace ringlab::reference {

/// Options of the CPU backend.
struct CpuOptions {
    TileSizes tiles;
    /// With Accumulation::partials: round the merged output to the problem's dtype after each merge, like a ring that
    /// keeps no fp32 output.
    bool round_running_output = false;
    std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for other ranks without progress
    int slow_rank = -1;  ///< global: takes four times as long for all that it computes, on purpose
};

/// Results and measurements of a forward pass, or of a forward and a backward pass, of one ring.
struct CpuRun {
    Outputs outputs;     ///< o in the problem's dtype; dq, dk and dv as accumulated; no gradients without backward pass
    Tensor o_unrounded;  ///< o before its last rounding, from which the backward pass computes delta
    layouts::Timeline forward, backward;      ///< measured; busy of compute operations is CPU time of the rank's thread
    std::vector<std::int64_t> own_bytes;      ///< by rank: slot 0 of every pool, inputs and results
    std::vector<std::int64_t> scratch_bytes;  ///< by rank: Schedule::scratch_bytes(), the larger of both passes
    /// By rank: memory beyond these two: tiles, messages, operands widened to the accumulator's type.
    std::vector<std::int64_t> workspace_bytes;
    double clock_uncertainty = 0;  ///< seconds by which times of different ranks may disagree
    /// By pass and rank: CPU seconds of rotating q and k before the forward pass, and dq and dk after the backward
    /// pass. They are part of neither timeline. Empty if nothing is rotated.
    std::array<std::vector<double>, 2> rotation_seconds{};
};

/// CPU seconds of each rank's attends: the measured workload.
std::vector<double> attend_seconds(const layouts::Timeline& timeline);

/// Executes schedules on the ranks of `world` with real messages, for all replicas at the same time.
///
/// Problem::dtype determines the arithmetic. fp64: everything in double. fp32: everything in float. bf16 or fp16
/// (emulated): q, k, v, dout, p and ds are rounded before each product; sums, lse and delta are float; with
/// Accumulation::partials the o of each block is rounded, too. ScheduleOptions::gradient_dtype is the type of dK and dV
/// in messages and scratch slots; a rank's own sum stays in the accumulator's type.
///
/// `forward` is a forward schedule; `backward`, if not null, a backward schedule of the same problem, mask and layout.
/// `inputs` has one entry per replica, the same on every process; a process reads those of its own replicas. Returns
/// one result per replica on the root process, and nothing on others.
///
/// Throws Error if the arguments do not fit together or a schedule breaks a rule (see layouts::resolve()), and whatever
/// World::run() throws.
std::vector<CpuRun> run(World& world, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const Inputs> inputs, const CpuOptions& options);

/// The same for a world of one replica; on a process that is not root the result is empty.
CpuRun run(World& world, const layouts::Schedule& forward, const layouts::Schedule* backward, const Inputs& inputs,
           const CpuOptions& options);

}  // namespace ringlab::reference
