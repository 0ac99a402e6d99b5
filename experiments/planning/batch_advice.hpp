#pragma once

#include "experiments/inputs/packed_documents.hpp"
#include "experiments/planning/advice.hpp"
#include "layouts/batches/ring_search.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What advice for a global batch is asked for.
struct BatchQuestion {
    const Config& config;
    const AdvisedMachine& machine;
    int gpus = 1;                       ///< of all rings together
    std::vector<int> sizes = {};        ///< that a ring may have where sizes differ, ascending
    std::int64_t most_tokens_per_rank;  ///< that any rank of any ring may own
};

/// One way to share a batch among rings, each laid out by `planned`.
struct BatchSharing {
    std::string name;                 ///< "as given", "exchanged", "one ring", "sizes differ"
    layouts::PricedAssignment rings;  ///< priced by plan_cost()
    std::vector<double> simulated;    ///< seconds of both passes, by ring; empty: not simulated
    std::int64_t memory = 0;          ///< of the fullest rank, bytes
    std::int64_t most_tokens = 0;     ///< of a rank, with padding
    bool fits = true;                 ///< whether the memory is there

    /// Time of a step, which waits for the slowest ring: by the simulator, or by the closed form without it.
    double seconds() const;
    /// Slowest ring over the mean of all ranks, by the closed form.
    double balance() const;
};

/// Sharings of one batch; "as given" is the first.
struct BatchAdvice {
    std::vector<std::int64_t> lengths;  ///< of the documents
    std::vector<BatchSharing> sharings;
    std::size_t best = 0;  ///< of those that fit the one with the shortest step; 0 if none fits

    bool fits() const { return sharings[best].fits; }
};

/// Weighs these sharings of a batch:
///   as given      one ring for each packing, all of one size
///   exchanged     the same rings, with documents exchanged among them
///   one ring      of all GPUs
///   sizes differ  rings of any of the sizes
/// Leaves out a sharing for whose tokens there is no room. Simulates all of them, or none if --budget does not allow
/// the operations of one. Throws Error if the mask or the sizes are impossible.
BatchAdvice advise_batch(const BatchQuestion& question, const Batch& batch);

}  // namespace ringlab::experiments
