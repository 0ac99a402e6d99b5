#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/execution/bench.hpp"
#include "experiments/record/record.hpp"

namespace ringlab::experiments {

// What the throughput experiment writes about a run, and reads back for its table. Rates are medians in FLOP/s per GPU
// over visible pairs, beside the raw samples; a spread is the distance of the quartiles over the median.

/// The median and the spread of samples; there must be one.
struct Typical {
    double median = 0;
    double spread = 0;
};
Typical typical(const std::vector<double>& samples);

/// Typical seconds of single passes: their last half counts, because the first ones warm up. At least two passes.
Typical typical_of_burst(const std::vector<double>& passes);

/// Typical seconds of calls back to back, given round by round: the median over rounds of each round's median.
Typical typical(const std::vector<std::vector<double>>& rounds);

/// The slowest rank's seconds in each repeat, from seconds by repeat and rank.
std::vector<double> slowest(const std::vector<std::vector<double>>& seconds);

/// Columns rate_forward, rate_backward, rate_both and their like; raw samples, memory, clocks, the extra pass's spans.
void describe_ring(RunWriter& run, const ThroughputCase& which, const Plan& plan, const RingSamples& samples);

/// The raw samples, and columns for each call: rate_CALL; for our kernels also ratio_CALL, which is rate_CALL divided
/// by cuDNN's rate. Single passes have burst_rate_CALL and burst_ratio_CALL instead.
void describe_device(RunWriter& run, const ThroughputCase& which, const Plan& plan, const DeviceSamples& samples);

/// The column rate_matrix_product and, by transport and message size, "link/TRANSPORT/bandwidth".
void describe_ceilings(RunWriter& run, const CeilingSamples& samples);

/// The experiment's tables, from a record that holds the cases.
std::string throughput_tables(const Record& record, const std::vector<ThroughputCase>& cases);

}  // namespace ringlab::experiments
