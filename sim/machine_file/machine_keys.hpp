#pragma once

#include <string>
#include <vector>

namespace ringlab::sim {

/// One key of a machine file, for people. Kernels other than the main one have the section [kernels.NAME].
struct MachineKey {
    std::string name;      ///< with its section: "attention.forward.launch_us"
    std::string unit;      ///< "us", "GB/s"; of a text its values
    std::string range;     ///< values that the reader accepts
    std::string term;      ///< what uses it: a row of the tables in sim/README.md. Empty: it is no part of a time
    std::string left_out;  ///< "required", the rule by which it is derived, or the optional section that it belongs to
};

/// All keys, in the order of a written file.
std::vector<MachineKey> machine_keys();

}  // namespace ringlab::sim
