#pragma once

#include "fuzz.hpp"

#include <ostream>
#include <string>

namespace ringlab::cli::test {

struct Invocation {
    std::string program;
    Words arguments;
};

/// With what cannot be printed as \xNN.
std::ostream& operator<<(std::ostream& out, const Invocation& one);

/// A small run of some experiment, of which a few options are changed, taken away or added: sensible values, others,
/// and bytes of either mutated. Files that it reads are named fuzz.*.
Invocation random_invocation(Random& random);

}  // namespace ringlab::cli::test
