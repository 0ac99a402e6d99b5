#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What must fit into the memory of a device.
struct MemoryConfig {
    double device_gigabytes = 0;    ///< of one device; 0: the machine file says
    double resident_gigabytes = 0;  ///< part of it that is always in use, such as weights
    int model_layers = 1;           ///< layers whose activations are kept until the backward pass
    std::int64_t beside_bytes = 0;  ///< kept for each token and layer by other parts than attention
    /// What is kept of each layer for its backward pass: "everything", "output", "kv", "checkpoint" or
    /// "cache".
    std::vector<std::string> keep;
};

}  // namespace ringlab::experiments
