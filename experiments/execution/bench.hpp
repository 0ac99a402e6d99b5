#pragma once

#include "experiments/options/case.hpp"
#include "experiments/record/provenance.hpp"
#include "gpu/device/nvml.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/timeline/timeline.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// One pass of all ranks of a ring, or of rings beside each other.
struct PassSamples {
    std::vector<std::vector<double>> seconds;  ///< by repeat and rank: from the pass's start to its end on this one
    std::vector<std::vector<double>> issue;    ///< likewise: host time until everything was enqueued
    double period = 0;                         ///< seconds from a pass's start to the next one's; of the first ring
    layouts::Timeline timeline;                ///< of the median extra pass; of the first ring
};

/// Memory of a rank in bytes, by what it is for.
struct MemoryShare {
    std::int64_t inputs = 0, results = 0, slots = 0, work = 0;
};

/// Bytes of the gradients of a rank's tokens in the problem's dtype.
std::int64_t gradient_bytes(const Plan& plan, int rank);

/// The kernel family that did each pass.
struct KernelsUsed {
    std::string forward, backward;
};

/// What Bench::ring() measured of both passes.
struct RingSamples {
    KernelsUsed kernels;
    PassSamples forward, backward;
    const PassSamples& of(layouts::Pass pass) const { return pass == layouts::Pass::forward ? forward : backward; }

    std::vector<MemoryShare> memory;       ///< by rank
    std::vector<std::string> devices;      ///< by rank: name of its device
    std::vector<gpu::ClockSample> clocks;  ///< of all GPUs that took part
    double clock_uncertainty = 0;          ///< seconds by which times of different ranks may disagree
};

/// Device seconds of one call by round and repeat.
struct CallSamples {
    std::string name;
    std::vector<std::vector<double>> seconds;
};

/// What was timed on one device: kernels and baselines, in turns.
struct DeviceSamples {
    KernelsUsed kernels;
    std::vector<CallSamples> calls;
    std::vector<CallSamples> bursts;  ///< single passes apart from each other, all in one round: see gpu::time_bursts()
    std::vector<std::pair<std::string, std::string>> absent;  ///< what could not be timed, and why
    std::vector<gpu::ClockSample> clocks;
};

/// Messages of one size from each device to its neighbour, all at the same time.
struct LinkSamples {
    std::string transport;
    std::int64_t bytes = 0;
    std::vector<double> seconds;  ///< of a message, slowest device, by repeat
};

/// What Bench::ceilings() measured.
struct CeilingSamples {
    DeviceSamples products;
    double flop = 0;  ///< of one matrix product
    std::vector<LinkSamples> links;
};

/// A forward and a backward pass that were tried while other tensors held most of the memory.
struct MemoryTrial {
    std::string why_not;          ///< why memory did not suffice; empty if the passes ran
    std::int64_t least_free = 0;  ///< free bytes of the fullest device
    double forward_seconds = 0, backward_seconds = 0;
};

/// The result of `run`, or the reason why there was too little memory for it. Any other error is thrown, because it
/// says nothing about what fits.
MemoryTrial trial_unless_full(const std::function<MemoryTrial()>& run);

/// Times rings on a device for each rank, and the devices themselves.
class Bench {
public:
    virtual ~Bench() = default;

    /// As in Backend.
    virtual bool is_root() const = 0;
    virtual bool agree(bool root_says) = 0;
    virtual void add_provenance(Provenance& provenance) const = 0;

    /// Passes of a plan over a device per rank; with several replicas all at the same time. On processes that are not
    /// root the samples are empty.
    virtual RingSamples ring(const Plan& plan, const layouts::RingGroup& group, const std::string& transport,
                             const std::string& kernels) = 0;

    // Only for accelerators; other backends throw Error. Random inputs are made on the devices.

    /// Kernels and baselines in turns, on the root process's first device; the plan has one rank.
    virtual DeviceSamples device(const Plan& plan, const std::string& kernels);

    /// One pass of a plan, no warm-up, beside `occupied` bytes of each device; see trial_unless_full().
    virtual MemoryTrial trial(const Plan& plan, std::int64_t occupied);

    /// Upper limits of the machine: matrix products, and links between its first `devices` devices.
    virtual CeilingSamples ceilings(int devices);
};

}  // namespace ringlab::experiments
