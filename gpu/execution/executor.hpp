#pragma once

#include "gpu/device/nvml.hpp"
#include "gpu/elements/host_tensors.hpp"
#include "gpu/execution/ring_setup.hpp"
#include "layouts/program/timeline.hpp"
#include "layouts/schedules/schedule.hpp"

#include <span>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// How run() executes schedules, and what it measures and keeps.
struct GpuOptions {
    TransportKind transport = TransportKind::loopback;
    layouts::RingGroup group;  ///< ring: ranks of the schedule
    /// CUDA devices of this process; empty: all. Loopback puts rank r on the r-th modulo their number; the others want
    /// one entry per rank (one process per rank takes the one of its place on the host).
    std::vector<int> devices;

    bool round_running_output = false;  ///< with Accumulation::partials: the merged output is kept in the problem's
                                        ///< dtype, as where a ring keeps no fp32 output
    bool round_results = false;         ///< results in the problem's dtype; fp32 otherwise
    bool deterministic = false;         ///< backward: dq in a fixed order too
    const KernelFamily* kernels = nullptr;
    bool poison = false;       ///< NaN in scratch and results before every pass
    bool keep_results = true;  ///< bring the results to the host
    layouts::Timelines timelines = layouts::Timelines::all;
    int warm_up = 0;             ///< least number of passes before those that are kept
    double warm_up_seconds = 0;  ///< device time before those that are kept, and until they are steady; see Steady
    int repeats = 1;             ///< least number of passes that are kept; results are those of the last one
    double repeat_seconds = 0;   ///< device time to keep passes of, at most 200
    /// A run fails if no operation ends for this long, or if another rank takes longer to start up. Where all ranks
    /// meet, they wait twice as long.
    Clock::duration timeout = std::chrono::minutes(2);
};

/// Results and times of one ring.
struct GpuRun {
    HostOutputs outputs;
    /// Times are everything from the pass's start on the first rank to its end on each. Host times include waits for
    /// peers.
    layouts::PassRun forward, backward;
    std::vector<MemoryUse> memory;     ///< by rank
    std::int64_t least_free = 0;       ///< bytes of the fullest device, with all of the ring's memory taken
    std::vector<std::string> devices;  ///< by rank: name of its GPU
    std::vector<ClockSample> clocks;   ///< samples of all GPUs that took part
    /// Seconds by which times of different ranks may disagree; 0 within one GPU.
    double clock_uncertainty = 0;
};

/// Executes schedules on CUDA devices: replica by replica and rank by rank, all at the same time. Knows operations
/// only, no schedule, layout or mask by name.
///
/// `forward` is a forward schedule; `backward`, if not null, one of the same problem, mask and layout, and then runs
/// after it. bf16 and fp16 problems. `inputs` has one entry per replica, the same on every process; none: normal
/// numbers made on the devices, for timing. `team` must have team_size() members. `make_fabric` is called when the
/// routes are known; without it the fabric is that of the transport. Returns one result per replica on the root
/// process, nothing on others.
///
/// Throws Error if these do not fit together, and what Issuer::enqueue() throws; where members are processes, an error
/// of one ends all of them, see Team::give_up().
std::vector<GpuRun> run(Team& team, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options,
                        const FabricFactory& make_fabric = {});

/// Number of issuing threads of a run in one process.
int team_size(const GpuOptions& options);

/// A CUDA device.
struct DeviceInfo {
    std::string name;
    std::string bus_id;
    int multiprocessors = 0;
};

/// All CUDA devices of this process; none if there is no driver.
std::vector<DeviceInfo> devices();

}  // namespace ringlab::gpu
