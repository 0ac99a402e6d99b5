#pragma once

#include "layouts/schedules/schedule.hpp"
#include "python/library/ringlab_cpu.h"

#include <array>
#include <memory>

// Converts the structs of the C interface to the objects that they describe. All functions throw Error if a value is
// invalid.

namespace ringlab::python {

layouts::Mask mask_from(const ringlab_choices& choices);
layouts::Layout layout_from(const ringlab_choices& choices, const layouts::Mask& mask);
void require_rank(int rank, int ranks);
void require_ring(int rank, int ranks, double timeout);  // timeout in seconds

/// The schedules by pass. With `sinks`, each query head has a logit of 0 for now; every call gives the real ones.
using Schedules = std::array<std::unique_ptr<layouts::Schedule>, 2>;
Schedules schedules_from(const ringlab_problem& problem, const ringlab_choices& choices, bool sinks = false);

}  // namespace ringlab::python
