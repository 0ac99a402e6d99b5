#pragma once

#include "gpu/device/nvml.hpp"
#include "gpu/elements/host_tensors.hpp"
#include "gpu/ranks/rank.hpp"
#include "gpu/team/team.hpp"
#include "gpu/transports/transport.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/schedules/schedule.hpp"
#include "layouts/timeline/timeline.hpp"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// How bytes move between ranks, and so who issues them.
enum class TransportKind {
    loopback,  ///< copies; one thread issues all ranks, on any number of GPUs: virtual ranks, and the ring on one GPU
    copy,      ///< copy engines with peer access; a thread or process per rank: one host
    nccl,      ///< a thread or process per rank, NCCL send/recv: any number of hosts
};

constexpr const char* to_string(TransportKind kind) {
    switch (kind) {
        case TransportKind::loopback: return "loopback";
        case TransportKind::copy: return "copy";
        case TransportKind::nccl: return "nccl";
    }
    return "?";
}

/// Which passes have every operation timed. That takes two events with a time stamp for each, which short passes show.
enum class Timelines {
    none,
    extra,  ///< one more pass after the timed ones
    all,
};

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
    KernelFamily kernels = KernelFamily::automatic;
    bool check_finite = false;  ///< look at what every operation writes; slow
    bool poison = false;        ///< NaN in scratch and results before every pass
    bool keep_results = true;   ///< bring the results to the host
    Timelines timelines = Timelines::all;
    int warm_up = 0;             ///< passes before those that are kept, at least
    double warm_up_seconds = 0;  ///< device time before those that are kept, and until they are steady; see Steady
    int repeats = 1;             ///< passes that are kept, at least; the results are the last one's
    double repeat_seconds = 0;   ///< device time to keep passes of, at most 200
    /// Without any operation ending, or for others to start up; twice as long where all meet.
    Clock::duration timeout = std::chrono::minutes(2);
};

/// What one pass gave, over repeats.
struct PassRun {
    std::vector<layouts::Timeline> timelines;  ///< by repeat, one of an extra pass, or none: GpuOptions::timelines
    /// By repeat, then rank: from the pass's start on the first rank to its end on this one, everything included.
    std::vector<std::vector<double>> rank_seconds;
    /// By repeat, then rank: host time until the whole pass was enqueued, waiting for peers included.
    std::vector<std::vector<double>> issue_seconds;
    /// By repeat, then rank: device time of what rotates Q and K before a forward pass, or dQ and dK behind a backward
    /// pass; no part of it. Empty where nothing is rotated.
    std::vector<std::vector<double>> rotation_seconds;
    /// From a pass's start to that of the next, on average; 0 for a single one. What is longer than a pass is a pause.
    double period_seconds = 0;
};

/// What one ring gave.
struct GpuRun {
    HostOutputs outputs;
    PassRun forward, backward;
    std::vector<MemoryUse> memory;     ///< by rank
    std::vector<std::string> devices;  ///< by rank: name of its GPU
    std::vector<ClockSample> clocks;   ///< of all GPUs that took part
    /// By how much times of different ranks may disagree, seconds; 0 within one GPU.
    double clock_uncertainty = 0;
};

/// Executes schedules on CUDA devices: replica by replica and rank by rank, all at the same time. Knows operations
/// only, no schedule, layout or mask by name.
///
/// `forward` is a forward schedule; `backward`, if not null, one of the same problem, mask and layout, and then runs
/// after it. bf16 and fp16 problems. `inputs` has one entry per replica, the same on every process; none: normal
/// numbers made on the devices, for timing. `team` must have team_size() members. Returns one result per replica on the
/// root process, nothing on others.
///
/// Throws Error if these do not fit together, and what Issuer::run() throws; where members are processes, an error of
/// one ends all of them, see Team::give_up().
std::vector<GpuRun> run(Team& team, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options);

/// The same over a fabric of the caller's own, made by `make_fabric` when the programs are known.
using FabricFactory = std::function<std::unique_ptr<Fabric>(Team&, const FabricOptions&, const PassPrograms&)>;
std::vector<GpuRun> run(Team& team, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options,
                        const FabricFactory& make_fabric);

/// Issuing threads that a run in one process wants.
int team_size(const GpuOptions& options);

/// What there is to run on.
struct DeviceInfo {
    std::string name;
    std::string bus_id;
    int multiprocessors = 0;
    int major = 0, minor = 0;  ///< compute capability
    std::int64_t memory_bytes = 0;
};

/// All CUDA devices of this process; none if there is no driver.
std::vector<DeviceInfo> devices();

}  // namespace ringlab::gpu
