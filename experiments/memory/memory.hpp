#pragma once

#include "experiments/execution/ring_run.hpp"
#include "experiments/options/case.hpp"
#include "experiments/record/run_writer.hpp"
#include "layouts/schedules/schedule.hpp"

#include <array>
#include <cstdint>
#include <string>

namespace ringlab::experiments {

/// What one rank holds at a time in a forward pass and the backward pass behind it, bytes.
struct MemoryNeed {
    std::int64_t inputs = 0;                                ///< q, k, v and do of its shard
    std::int64_t results = 0;                               ///< o, lse, dq, dk, dv, sums in the accumulator's type too
    std::array<std::int64_t, layouts::pool_count> slots{};  ///< scratch slots by pool, of the pass that has more
    std::int64_t statistics = 0;  ///< of rows, converted arrivals; on CPU ranks tiles of scores
    std::int64_t lists = 0;       ///< the mask for kernels: work lists, bounds of rows, positions of keys
    std::int64_t staging = 0;     ///< messages in transit, if the transport copies them

    std::int64_t scratch() const;  ///< beyond inputs and results
    std::int64_t total() const { return inputs + results + scratch(); }
};

/// Who executes a plan, as far as memory goes.
struct MemoryModel {
    enum class Executor { cpu, gpu };
    Executor executor = Executor::gpu;
    bool round_results = true;          ///< GPUs: results in the problem's dtype as well, as a model wants them
    bool round_running_output = false;  ///< see Policy
};

/// The memory model of GPUs that leave results in the types that a model wants.
MemoryModel memory_on_gpus(const Policy& policy);

/// That of a plan whose results `backend` makes to be judged.
MemoryModel memory_when_judged(const std::string& backend, const Policy& policy);

/// Memory of one rank. `backward` may be null: a forward pass alone. Reads the rank's operations.
MemoryNeed memory_need(const layouts::Schedule& forward, const layouts::Schedule* backward, int rank,
                       const MemoryModel& model);

/// Memory of the rank that needs most. With up to 64 ranks all are looked at, with more only the first rank, the last
/// one and the first one of those with most tokens.
MemoryNeed most_memory(const layouts::Schedule& forward, const layouts::Schedule* backward, const MemoryModel& model);

/// Writes what is predicted: datasets predicted/memory/..., column memory_predicted.
MemoryNeed describe_predicted_memory(RunWriter& run, const Plan& plan, const MemoryModel& model);

/// Writes what the backend counted beside the prediction: columns memory_measured and prediction_error_memory.
void describe_memory_error(RunWriter& run, const MemoryNeed& predicted, const RingRun& measured);

/// "412 MiB", "1.25 GiB".
std::string memory_text(std::int64_t bytes);

}  // namespace ringlab::experiments
