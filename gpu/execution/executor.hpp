#pragma once

#include "gpu/device/nvml.hpp"
#include "gpu/elements/host_tensors.hpp"
#include "gpu/ranks/rank.hpp"
#include "gpu/team/team.hpp"
#include "gpu/transports/transport.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/program/program.hpp"
#include "layouts/schedules/schedule.hpp"
#include "layouts/program/timeline.hpp"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// How bytes move between ranks. This decides which threads issue the work.
enum class TransportKind {
    loopback,  ///< copies; one thread issues all ranks, any number of which may share a GPU
    copy,      ///< copy engines with peer access; a thread or process per rank: one host
    nccl,      ///< NCCL send/recv; a thread or process per rank, each with a GPU of its own: any number of hosts
    mixed,     ///< copy inside a host, nccl between hosts
};

constexpr const char* to_string(TransportKind kind) {
    switch (kind) {
        case TransportKind::loopback: return "loopback";
        case TransportKind::copy: return "copy";
        case TransportKind::nccl: return "nccl";
        case TransportKind::mixed: return "mixed";
    }
    return "?";
}

/// The kind with this name. Throws Error if there is none.
TransportKind transport_kind(const std::string& name);

/// In which passes every operation is timed. This takes two events with a time stamp for each operation, which makes
/// short passes slower.
enum class Timelines {
    none,
    extra,  ///< of five more passes after the timed ones that with the median time is kept
    all,
};

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
    bool check_finite = false;  ///< look at what every operation writes; slow
    bool poison = false;        ///< NaN in scratch and results before every pass
    bool keep_results = true;   ///< bring the results to the host
    Timelines timelines = Timelines::all;
    int warm_up = 0;             ///< least number of passes before those that are kept
    double warm_up_seconds = 0;  ///< device time before those that are kept, and until they are steady; see Steady
    int repeats = 1;             ///< least number of passes that are kept; results are those of the last one
    double repeat_seconds = 0;   ///< device time to keep passes of, at most 200
    /// A run fails if no operation ends for this long, or if another rank takes longer to start up. Where all ranks
    /// meet, they wait twice as long.
    Clock::duration timeout = std::chrono::minutes(2);
};

/// Times of one pass, by repeat.
struct PassRun {
    std::vector<layouts::Timeline> timelines;  ///< by repeat, one of extra passes, or none: GpuOptions::timelines
    /// Seconds by repeat, then rank: from the pass's start on the first rank to its end on this one, everything
    /// included.
    std::vector<std::vector<double>> rank_seconds;
    /// Host seconds by repeat, then rank, until the whole pass was enqueued, including waits for peers.
    std::vector<std::vector<double>> issue_seconds;
    /// Device seconds by repeat, then rank, of rotating Q and K before a forward pass, or dQ and dK after a backward
    /// pass. They are no part of rank_seconds. Empty if nothing is rotated.
    std::vector<std::vector<double>> rotation_seconds;
    /// From a pass's start to that of the next, on average; 0 for a single one. The time beyond the
    /// pass itself is a pause.
    double period_seconds = 0;
};

/// Results and times of one ring.
struct GpuRun {
    HostOutputs outputs;
    PassRun forward, backward;
    std::vector<MemoryUse> memory;     ///< by rank
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
/// numbers made on the devices, for timing. `team` must have team_size() members. Returns one result per replica on the
/// root process, nothing on others.
///
/// Throws Error if these do not fit together, and what Issuer::run() throws; where members are processes, an error of
/// one ends all of them, see Team::give_up().
std::vector<GpuRun> run(Team& team, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options);

/// The same over a fabric that `make_fabric` makes when the routes are known.
std::vector<GpuRun> run(Team& team, const layouts::Schedule& forward, const layouts::Schedule* backward,
                        std::span<const HostInputs> inputs, const GpuOptions& options,
                        const FabricFactory& make_fabric);

/// The fabric of a transport. That of loopback is that of copy.
FabricFactory fabric_factory(TransportKind kind);

/// Between which ranks copies reach: all for copy and loopback, those of a host for mixed, none for nccl. All members
/// call it, where they are processes.
RankHosts reach_of_copies(TransportKind kind, Team& team, Clock::duration timeout);

/// The programs of schedules for ranks between which copies reach as `hosts` says. NCCL cannot read a peer's memory, so
/// the owners of fetched blocks send them if a ring has several hosts.
layouts::Program program_of(const layouts::Schedule& schedule, const layouts::RingGroup& group, const RankHosts& hosts);

/// Number of issuing threads of a run in one process.
int team_size(const GpuOptions& options);

/// A CUDA device.
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
