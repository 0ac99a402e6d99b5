#pragma once

#include "sim/machine.hpp"

#include <string>

namespace ringlab::experiments {

/// How far predicted times of passes on a machine were from measured ones, without sign.
struct Uncertainty {
    bool known = false;
    double mean = 0, largest = 0;
    std::string source;  ///< who says so
};

/// By the machine file; or else by the records of `validate` among the results that come with Ringlab, if one of them
/// has scored a machine of this name; or else not known.
Uncertainty uncertainty_of(const sim::Machine& machine);

}  // namespace ringlab::experiments
