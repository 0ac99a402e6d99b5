#pragma once

#include "experiments/config/case.hpp"
#include "experiments/config/config.hpp"
#include "experiments/record/provenance/provenance.hpp"
#include "gpu/device/nvml.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/basics/ring_group.hpp"
#include "layouts/timeline/timeline.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// One pass of all ranks of a ring, or of rings beside each other.
struct PassSamples {
    std::vector<std::vector<double>> seconds;  ///< by repeat and rank: from the pass's start to its end on this one
    std::vector<std::vector<double>> issue;    ///< likewise: host time until everything was enqueued
    double period = 0;                         ///< seconds from a pass's start to the next one's; of the first ring
    layouts::Timeline timeline;                ///< of an extra pass; of the first ring
};

/// Memory of a rank in bytes, by what it is for.
struct MemoryShare {
    std::int64_t inputs = 0, results = 0, slots = 0, work = 0;
};

/// The kernel family that did each pass.
struct KernelsUsed {
    std::string forward, backward;
};

struct RingSamples {
    KernelsUsed kernels;
    PassSamples forward, backward;
    std::vector<MemoryShare> memory;  ///< by rank
    std::vector<std::string> devices;
    std::vector<gpu::ClockSample> clocks;
    double clock_uncertainty = 0;
};

/// Device seconds of one call by round and repeat.
struct CallSamples {
    std::string name;
    std::vector<std::vector<double>> seconds;
    std::optional<double> watts = {};  ///< mean power while it runs back to back
};

struct DeviceSamples {
    KernelsUsed kernels;
    std::vector<CallSamples> calls;
    std::vector<CallSamples> bursts;  ///< single passes apart from each other, all in one round: see gpu::time_bursts()
    std::vector<std::pair<std::string, std::string>> absent;  ///< what could not be timed, and why
    std::vector<gpu::ClockSample> clocks;
};

struct LinkSamples {
    std::string transport;
    std::int64_t bytes = 0;
    std::vector<double> seconds;  ///< of a message, slowest device, by repeat
};

struct CeilingSamples {
    DeviceSamples products;
    double flop = 0;  ///< of one matrix product
    std::vector<LinkSamples> links;
};

/// How one pass of each kind went where others hold most of the memory.
struct Fit {
    std::string why_not;          ///< why memory did not suffice; empty: it ran
    std::int64_t least_free = 0;  ///< bytes of the fullest device
    double forward_seconds = 0, backward_seconds = 0;
};

/// What `run` gives, or that memory did not suffice for it. Anything else that ends it says nothing of what fits and is
/// thrown.
Fit fit_unless_full(const std::function<Fit()>& run);

/// Times rings of a backend.
class RingBench {
public:
    virtual ~RingBench() = default;

    /// As in Backend.
    virtual bool is_root() const = 0;
    virtual bool agree(bool root_says) = 0;
    virtual void add_provenance(Provenance& provenance) const = 0;

    /// Passes of a plan over a device per rank; with several replicas all at the same time. On processes that are not
    /// root the samples are empty.
    virtual RingSamples ring(const Plan& plan, const layouts::RingGroup& group, const std::string& transport,
                             const std::string& kernels) = 0;
};

/// Times GPUs for the throughput experiment. All random inputs are made on the devices.
class Bench : public RingBench {
public:
    /// Our kernels and the baselines in turns, on the root process's first GPU; the plan has one rank.
    virtual DeviceSamples device(const Plan& plan, const std::string& kernels) = 0;

    /// One pass of a plan over copy engines, no warm-up, beside `occupied` bytes of each device; see fit_unless_full().
    virtual Fit fit(const Plan& plan, std::int64_t occupied) = 0;

    /// What the machine can do at most: matrix products, and links between its first `devices` GPUs.
    virtual CeilingSamples ceilings(int devices) = 0;
};

/// Throws Error in a program built without CUDA, and where there are fewer GPUs than the most ranks asked for.
std::unique_ptr<Bench> make_bench(const Config& config);

/// What times rings of one backend, and the transports that it has, the usual one first.
struct RingBenchKind {
    std::vector<std::string> transports;
    std::function<std::unique_ptr<RingBench>(const Config&)> make;
};
layouts::Registry<RingBenchKind>& ring_benches();

/// A namespace-scope object of this type makes one known by its backend's name.
struct RingBenchRegistration {
    RingBenchRegistration(std::string backend, std::string help, RingBenchKind kind) {
        ring_benches().add(backend, {backend, std::move(help), std::move(kind)});
    }
};

/// Of the configuration's backend; its usual transport is chosen where the user names none. Throws Error if it lacks
/// one that is asked for.
void settle_transports(Config& config);
std::unique_ptr<RingBench> make_ring_bench(const Config& config);

}  // namespace ringlab::experiments
