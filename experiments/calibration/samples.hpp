#pragma once

#include "experiments/calibration/cost_fit.hpp"
#include "experiments/execution/ring_run.hpp"
#include "experiments/files/written_file.hpp"
#include "experiments/record/provenance.hpp"
#include "sim/machine/machine.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What `calibrate` times on GPUs.
enum class SampleKind {
    attend,     ///< one call of a kernel or what surrounds it, in short runs with rests
    sustained,  ///< the same without rests
    pass,       ///< a pass by the executor
    period,     ///< from its start to that of the next
    operation,  ///< one operation of a pass by the executor, of which every operation was timed
    few_rows,   ///< a split-KV attend, of few query rows, of one rank
    dropout,    ///< an attend of one rank with dropout
    product,    ///< FLOP/s of matrix products, in place of seconds
    rotation,   ///< of q and k ("forward"), or of dq and dk, of one rank
    message,    ///< between all GPUs at once beside attends
    alone,      ///< those attends without messages
    beside,     ///< and with them
    unknown,    ///< in earlier records; not read
};
const char* to_string(SampleKind kind);

/// One thing that was timed.
struct GpuSample {
    SampleKind kind = SampleKind::attend;
    std::string call = "";                                   ///< of a kernel; or "forward", "backward": the pass
    std::string mask = "", layout = "", schedule_name = "";  ///< of the ring that it is taken from
    std::string transport = "";
    int ranks = 1, rank = 0, block = 0;  ///< of what is sustained: `rank` is the GPU
    std::int64_t tokens_per_rank = 0;
    std::int64_t queries = 0;                  ///< tokens that have a query row; 0: all
    std::int64_t op = -1;                      ///< of an operation: its index in the rank's schedule
    std::int64_t bytes = 0;                    ///< of a message
    double seconds = 0, spread = 0;            ///< median, and distance of the quartiles over it
    double posted = 0, begin = 0;              ///< of an operation: since the start of the pass
    double clock_hertz = 0;                    ///< of what is sustained; 0: not known
    std::int64_t head_dim = 0, value_dim = 0;  ///< of another kernel than the machine's own; 0: of its own
    double soft_cap = 0;                       ///< 0: none

    void take(const Typical& timed) { seconds = timed.median, spread = timed.spread; }
};

/// Everything that is needed to fit a machine file: with this, nothing is measured on a ring, and no GPU is needed.
struct GpuSamples {
    sim::Machine machine;  ///< with no times
    std::string device;
    std::string kernels;  ///< family
    std::string heads, arithmetic;
    std::int64_t head_dim = 0, value_dim = 0;
    int gpus = 1;
    std::vector<GpuSample> samples;

    /// The samples of a kind, and of a call if one is given; of attends by the machine's own kernels.
    std::vector<const GpuSample*> of(SampleKind kind, const std::string& call = "") const;

    /// The plan from which a sample is taken; the same for samples of one plan.
    std::shared_ptr<const Plan> plan(const GpuSample& sample) const;

private:
    mutable std::map<std::string, std::shared_ptr<const Plan>> plans_;
};

/// Writes the samples as a record of `calibrate` with one run, in place of the file or, if somebody has put another
/// file there since, beside it. Returns where it is.
WrittenFile write_samples(const WrittenFile& file, const GpuSamples& samples, const std::string& configuration,
                          const Provenance& provenance);

/// Throws Error if the file is no such record.
GpuSamples read_samples(const std::filesystem::path& file);

/// The attend that a sample of a kernel's call has timed. Nothing if the call timed what surrounds attends.
struct SampledAttend {
    layouts::Pass pass = layouts::Pass::forward;
    TimedAttend attend;
};
std::optional<SampledAttend> sampled_attend(const GpuSample& sample, std::shared_ptr<const Plan> plan);

/// An operation of a pass that was executed, and when.
struct ExecutedOperation {
    layouts::Op op;
    int rank = 0;
    layouts::OpIndex index = 0;    ///< in the rank's schedule
    double posted = 0, begin = 0;  ///< seconds since the start of the pass, medians
    Typical seconds = {};          ///< on CPU ranks processor time
};

/// A pass that was executed.
struct ExecutedPass {
    std::shared_ptr<const Plan> plan;
    layouts::Pass pass = layouts::Pass::forward;
    std::string transport;
    double seconds = 0;                         ///< of the whole, when its operations are not timed
    double period = 0;                          ///< from its start to that of the next; 0: not known
    double forward_before = 0;                  ///< of a backward pass: seconds of the forward pass before it
    std::vector<ExecutedOperation> operations;  ///< rank by rank

    const layouts::Schedule& schedule() const { return *plan->schedule(pass); }
    std::string schedule_name() const { return plan->forward->options().schedule; }
    int ranks() const { return plan->layout().ranks(); }

    /// What the host of a rank has to issue: launches that compute, and transfers.
    struct Issued {
        int launches = 0, transfers = 0;
    };
    Issued issued(int rank) const;
};

/// The operations of a pass in all of its timelines.
std::vector<ExecutedOperation> executed_operations(const layouts::Schedule& schedule, const PassRun& pass);

/// All passes that the samples hold.
std::vector<ExecutedPass> executed_passes(const GpuSamples& all);

}  // namespace ringlab::experiments
