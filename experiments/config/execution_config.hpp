#pragma once

#include "layouts/basics/ring_group.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

class BackendKind;

/// What executes schedules, and how.
struct ExecutionConfig {
    std::string backend = "cpu";
    std::map<std::string, std::shared_ptr<BackendKind>> backends;  ///< by name, with their own options
    bool mpi = false;                                              ///< a process per rank, under mpirun
    int replicas = 1;                                              ///< data-parallel copies of the ring
    std::string placement = "consecutive";  ///< of rings: or "strided", "file:PATH" with the GPU of each rank
    int repeats = 5;                        ///< executions of both passes of a case
    double timeout_seconds = 300;           ///< longest wait for other ranks without progress
    bool keeps_results = true;              ///< on the root process, where they are judged or saved
    std::string fault;                      ///< fault of the machine to make on purpose, as "stop:1"; empty: none
};

/// How results are compared with fp64.
struct JudgingConfig {
    bool judge = true;
    std::int64_t limit = 16384;       ///< tokens up to which every element is judged; above, a sample
    std::optional<double> tolerance;  ///< without it, derived from the arithmetic
};

/// The rings of `ranks` ranks that run at the same time, one for each replica. Reads `placement` only as far as it says
/// "consecutive"; everything else counts as strided, see gpu_placement().
layouts::RingGroup ring_group(const ExecutionConfig& config, int ranks);

/// GPU of each rank of all replicas, ring by ring, as --placement says; empty: in order. Throws Error if it says
/// nothing known, or a file that it names does not hold that many numbers.
std::vector<int> gpu_placement(const ExecutionConfig& config, int ranks);

}  // namespace ringlab::experiments
