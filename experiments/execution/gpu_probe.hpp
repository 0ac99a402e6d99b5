#pragma once

#include "experiments/options/case.hpp"
#include "experiments/record/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Seconds of one thing that was timed several times.
struct Timed {
    double median = 0;
    double spread = 0;  ///< distance of the quartiles over the median
};

/// Messages of one size between all GPUs, beside attends.
struct TimedBusyLink {
    std::int64_t bytes = 0;  ///< of a message
    Timed message;           ///< a message beside attends
    Timed call_alone;        ///< an attend without messages
    Timed call_beside;       ///< an attend beside messages
};

/// A call that is repeated without any rest.
struct TimedSustained {
    Timed seconds;
    double clock_hertz = 0;  ///< mean clock of the SMs; 0: not known
};

/// An operation of a pass that the executor ran.
struct TimedOperation {
    int rank = 0;
    layouts::OpIndex op = 0;
    double posted = 0, begin = 0;  ///< seconds since the start of the pass, medians
    Timed seconds;
};

/// A pass that the executor ran.
struct TimedPass {
    Timed seconds;                           ///< from its start to its end on the slowest rank
    double period = 0;                       ///< from a pass's start to that of the next
    std::vector<TimedOperation> operations;  ///< from passes in which every operation was timed
};

/// Measures parts of a pass on GPUs, none of them a ring.
class GpuProbe {
public:
    virtual ~GpuProbe() = default;

    /// The work tiles of the kernel of a pass, its SMs and its memory, without times.
    virtual sim::Machine machine(const layouts::Problem& problem) const = 0;

    /// The rows of `rank` against the keys of `block`, by the names of gpu::DeviceAttention: in short runs with rests
    /// in between, at the highest clock.
    virtual std::vector<Timed> attends(const Plan& plan, int rank, int block,
                                       const std::vector<std::string>& calls) = 0;

    /// Times one of these calls without any rest, at the clock that the power of GPU `device` then allows.
    virtual TimedSustained sustained(const Plan& plan, const std::string& call, int device) = 0;

    /// Both passes of a plan by the executor: by "loopback" all ranks in turns on the first GPU; by "copy" and "nccl" a
    /// GPU for each.
    virtual std::vector<TimedPass> passes(const Plan& plan, const std::string& transport) = 0;

    /// Times rotary embedding of q and k, and of dq and dk, in a plan of one rank.
    virtual std::vector<Timed> rotations(const Plan& plan) = 0;

    /// Times messages between all GPUs at the same time beside attends, and the attends with and without them. Empty if
    /// there is one GPU, or no such transport. Over NCCL there is a kernel for each direction, as in the executor.
    virtual std::vector<TimedBusyLink> busy_links(const Plan& plan, const std::string& call,
                                                  const std::string& transport,
                                                  const std::vector<std::int64_t>& message_bytes) = 0;

    /// FLOP/s of large products of 16-bit matrices, repeated without any rest. Empty if there is no cuBLAS.
    virtual std::optional<Timed> matrix_product() = 0;

    /// Transports between GPUs that this program has; none if there is one GPU.
    virtual std::vector<std::string> transports() const = 0;

    virtual int gpus() const = 0;            ///< number of GPUs of this process
    virtual std::string device() const = 0;  ///< name of the first one
    /// Name of the kernel family that computes the problem.
    virtual std::string kernels(const layouts::Problem& problem) const = 0;
    virtual void add_provenance(Provenance& provenance) const = 0;
};

}  // namespace ringlab::experiments
