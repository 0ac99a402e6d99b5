#pragma once

#include "experiments/calibration/fit/cost_fit.hpp"
#include "experiments/calibration/fit/gpu_samples.hpp"
#include "experiments/options/case.hpp"

#include <memory>
#include <vector>

namespace ringlab::experiments {

/// An operation of a pass that the executor ran, and when.
struct ExecutedOperation {
    layouts::Op op;
    int rank = 0;
    double posted = 0, begin = 0, seconds = 0;
};

/// A pass that the executor ran.
struct ExecutedPass {
    std::shared_ptr<const Plan> plan;
    layouts::Pass pass = layouts::Pass::forward;
    std::string transport;
    double seconds = 0;                         ///< of the whole, when its operations are not timed
    double period = 0;                          ///< from its start to that of the next; 0: not known
    double forward_before = 0;                  ///< of a backward pass: seconds of the forward pass before it
    std::vector<ExecutedOperation> operations;  ///< rank by rank

    std::string algorithm() const { return plan->forward->options().schedule; }
    int ranks() const { return plan->layout().ranks(); }

    /// What the host of a rank has to issue: launches that compute, and transfers.
    struct Issued {
        int launches = 0, transfers = 0;
    };
    Issued issued(int rank) const;
};

/// Seconds that the cost model predicts for a pass of ranks that take turns on one GPU.
double seconds_in_turn(const ExecutedPass& pass, const sim::Machine& machine);

/// An attend of one rank that is repeated without rests, at the clock that power then allows. `machine` must outlive
/// the timing.
Timing timing_without_rests(const GpuSample& sample, std::shared_ptr<const Plan> plan, const sim::Machine& machine);

/// All passes that the samples hold.
std::vector<ExecutedPass> executed_passes(const GpuSamples& all);

}  // namespace ringlab::experiments
