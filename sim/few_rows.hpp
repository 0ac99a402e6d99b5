#pragma once

#include "sim/cost.hpp"

namespace ringlab::sim {

/// Whether a forward attend is done by the machine's kernel for a few rows, as decoding asks for.
bool has_few_rows(const Schedule& schedule, const Op& attend, const Machine& machine);

/// What it then takes: the longer of reading all K and V, and of what a thread block reads of them. A unit, of up to
/// `rows` rows that read the same keys, is one of the kv heads' with its query heads; as many blocks share one as make
/// turns x share of a unit least.
double few_rows_seconds(const Schedule& schedule, const Op& attend, const Machine& machine);

}  // namespace ringlab::sim
