#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/execution/ring_run.hpp"
#include "experiments/record/record.hpp"

namespace ringlab::experiments {

// What the throughput experiment writes about a run, and reads back for its table. Rates are medians in FLOP/s per GPU
// over visible pairs, beside the raw samples; a spread is the distance of the quartiles over the median.

/// Typical seconds of single passes: their last half counts, because the first ones warm up. At least two passes.
Typical typical_of_burst(const std::vector<double>& passes);

/// Typical seconds of calls back to back, given round by round: the median over rounds of each round's median.
Typical typical_of_rounds(const std::vector<std::vector<double>>& rounds);

/// Columns rate_forward, rate_backward, rate_both and their like; raw samples, memory, clocks, the extra pass's spans.
void describe_ring(RunWriter& run, const ThroughputCase& timed, const Plan& plan, const RingRun& ring);

/// The raw samples, and for each call the column rate_CALL, or burst_rate_CALL of single passes.
void describe_device(RunWriter& run, const ThroughputCase& timed, const Plan& plan, const DeviceTimes& times);

/// The column rate_matrix_product, of products of `flop` operations, and by transport and message size
/// "link/TRANSPORT/bandwidth".
void describe_ceilings(RunWriter& run, const DeviceTimes& times, double flop);

/// The experiment's tables, from a record that holds the cases.
std::string throughput_tables(const Record& record, const std::vector<ThroughputCase>& cases);

}  // namespace ringlab::experiments
