#pragma once

#include "sim/machine/machine.hpp"

#include <span>
#include <string>

namespace ringlab::sim {

/// A term of the cost model that a machine can be without: what its keys describe then costs nothing.
struct Term {
    const char* name;
    const char* effect;  ///< what is not modelled any more, for people
    void (*remove)(Machine&);
};

/// In the order of sim/README.md.
std::span<const Term> terms();

/// Throws Error that lists the known terms if there is none of this name.
const Term& find_term(const std::string& name);

}  // namespace ringlab::sim
