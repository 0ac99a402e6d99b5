#pragma once

#include <string>
#include <vector>

namespace ringlab::experiments {

/// A value of TimingConfig::measured: all records that come with Ringlab.
inline constexpr const char* all_records = "all";

/// What is timed, and for how long.
struct TimingConfig {
    std::vector<std::string> shapes;                     ///< "HEADS/DIMS[/ARITHMETIC]"; empty: the one of the problem
    std::vector<std::string> transports;                 ///< of rings: "copy", "nccl", "mixed"; on CPUs "threads"
    std::vector<std::string> kernels;                    ///< kernel families, or "auto"
    std::vector<std::string> protocols = {"sustained"};  ///< how kernels alone are timed: also "burst"
    std::vector<std::string> beside;                     ///< what is timed for comparison: work, ceilings
    std::string cudnn;                                   ///< path of the library; empty: the system's
    std::string measured;                                ///< record of an earlier run, or all_records: nothing is timed
    bool deterministic = false;
    double warm_up_seconds = 0.5;
    double repeat_seconds = 0.75;
};

}  // namespace ringlab::experiments
