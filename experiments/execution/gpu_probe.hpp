#pragma once

#include "experiments/config/case.hpp"
#include "experiments/record/provenance/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Seconds of something, as often as it was timed.
struct Timed {
    double median = 0;
    double spread = 0;  ///< distance of the quartiles over the median
};

struct TimedBusyLink {
    std::int64_t bytes = 0;
    Timed message, call_alone, call_beside;
};

/// What NCCL's kernels take for messages that have time.
struct HiddenMessages {
    std::map<std::int64_t, Timed> by_bytes;
    int blocks = 0;            ///< of a kernel
    double flop_per_byte = 0;  ///< that a message has beside it if it has time
};

/// A call that is repeated without any rest.
struct TimedSustained {
    Timed seconds;
    double clock_hertz = 0;  ///< of the multiprocessors, on average; 0: not known
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
    Timed issue;                             ///< host time until all of it was enqueued, of the slowest rank
    double period = 0;                       ///< from a pass's start to that of the next
    std::vector<TimedOperation> operations;  ///< of passes of which every operation was timed
};

/// Measures parts of a pass on GPUs, none of them a ring.
class GpuProbe {
public:
    virtual ~GpuProbe() = default;

    /// What the kernel of a pass takes up at a time, how many multiprocessors there are for it, and on what memory:
    /// filled in with no times.
    virtual sim::Machine machine(const layouts::Problem& problem) const = 0;

    /// The rows of `rank` against the keys of `block`, by the names of gpu::DeviceAttention: in short runs with rests
    /// in between, at the highest clock.
    virtual std::vector<Timed> attends(const Plan& plan, int rank, int block,
                                       const std::vector<std::string>& calls) = 0;

    /// One of these without any rest, at the clock that the power of GPU `device` then allows.
    virtual TimedSustained sustained(const Plan& plan, const std::string& call, int device) = 0;

    /// Both passes of a plan by the executor: by "loopback" all ranks in turns on the first GPU; by "copy" and "nccl" a
    /// GPU for each.
    virtual std::vector<TimedPass> passes(const Plan& plan, const std::string& transport) = 0;

    /// What rotates q and k, and dq and dk, of a plan of one rank.
    virtual std::vector<Timed> rotations(const Plan& plan) = 0;

    /// Messages between all GPUs at the same time beside attends, and the attends with and without them; nothing where
    /// there is one GPU, or no such transport. Over NCCL a kernel for each direction, as the executor has them;
    /// `hidden`: those that have time.
    virtual std::vector<TimedBusyLink> busy_links(const Plan& plan, const std::string& call,
                                                  const std::string& transport, bool hidden,
                                                  const std::vector<std::int64_t>& message_bytes) = 0;

    /// Messages over NCCL between all GPUs at the same time that have time, and so few blocks, beside nothing; by size.
    /// Nothing where there is one GPU, or no NCCL.
    virtual HiddenMessages hidden_messages(const std::vector<std::int64_t>& message_bytes) = 0;

    /// FLOP/s of large products of 16-bit matrices, repeated without any rest; nothing where there is no cuBLAS.
    virtual std::optional<Timed> matrix_product() = 0;

    /// Transports between GPUs that this program has: none for one GPU.
    virtual std::vector<std::string> transports() const = 0;

    virtual int gpus() const = 0;
    virtual std::string device() const = 0;
    virtual std::string kernels(const layouts::Problem& problem) const = 0;
    virtual void add_provenance(Provenance& provenance) const = 0;
};

/// On the first GPU, or all of them, with a family of kernels by name. Throws Error where there is no GPU, and in a
/// program built without CUDA.
std::unique_ptr<GpuProbe> make_gpu_probe(const std::string& kernels);

}  // namespace ringlab::experiments
