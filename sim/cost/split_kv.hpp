#pragma once

#include "sim/cost/cost.hpp"

namespace ringlab::sim {

/// Whether a forward attend runs on the machine's split-KV kernel, which is for few query rows, or a batch of sequences
/// with few each, as in decoding.
bool uses_split_kv(const Schedule& schedule, const Op& attend, const Machine& machine);

/// Whether the split-KV kernel does a rank's whole pass in one launch, see Schedule::is_one_launch(): if copy engines
/// connect the GPUs, because then a GPU can also store in a peer's memory. To be used for ranks of one host.
bool passes_are_one_launch(const Schedule& schedule, const Machine& machine);

/// Seconds of that kernel: its launch, and the longer of two times: reading all K and V, and what the busiest thread
/// block reads of them. A work tile is up to `rows` rows of the query heads of one kv head. Thread blocks may share a
/// work tile; the number of them is chosen so that (waves) x (share of a work tile) is least.
double split_kv_seconds(const Schedule& schedule, const Op& attend, const Machine& machine);

}  // namespace ringlab::sim
