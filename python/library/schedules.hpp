#pragma once

#include "layouts/schedules/schedule.hpp"
#include "python/library/ringlab_cpu.h"

#include <array>
#include <memory>

// From the structs of the C interface to what they describe. All functions throw Error where that means nothing.

namespace ringlab::python {

layouts::DType dtype_from(int dtype);
layouts::Mask mask_from(const ringlab_choices& choices);
layouts::Layout layout_from(const ringlab_choices& choices, const layouts::Mask& mask);
void require_rank(int rank, int ranks);

/// By pass; with `sinks` a logit of 0 for each query head stands for those that calls bring.
using Schedules = std::array<std::unique_ptr<layouts::Schedule>, 2>;
Schedules schedules_from(const ringlab_problem& problem, const ringlab_choices& choices, bool sinks = false);

}  // namespace ringlab::python
