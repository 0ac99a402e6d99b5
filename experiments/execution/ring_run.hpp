#pragma once

#include "gpu/device/samples.hpp"
#include "layouts/program/timeline.hpp"
#include "reference/tensors/tensors.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

using layouts::PassRun;

/// Memory of a rank in bytes, by what it is for.
struct MemoryShare {
    std::int64_t inputs = 0, results = 0, slots = 0, work = 0;

    std::int64_t scratch() const { return slots + work; }
    std::int64_t total() const { return inputs + results + scratch(); }
};

/// Results and times of a forward and a backward pass of one ring, on whatever devices.
struct RingRun {
    /// Of the last repeat, if they were asked for: o rounded to the problem's dtype; gradients as accumulated.
    reference::Outputs outputs;
    reference::Tensor o_unrounded;  ///< o before its last rounding
    PassRun forward, backward;
    std::vector<MemoryShare> memory;       ///< by rank
    std::int64_t least_free = 0;           ///< bytes of the fullest GPU beside the ring's memory
    std::vector<std::string> devices;      ///< by rank: name of its device
    std::vector<gpu::ClockSample> clocks;  ///< of all GPUs that took part
    double clock_uncertainty = 0;          ///< seconds by which times of different ranks may disagree
    std::string transport, kernels;        ///< how messages travelled; the family that did both passes
    bool takes_turns = false;              ///< ranks share GPUs

    const PassRun& of(layouts::Pass pass) const { return pass == layouts::Pass::forward ? forward : backward; }
};

/// Rings that ran at the same time as one, with their ranks in a row. Timelines are those of the first.
RingRun side_by_side(std::vector<RingRun> rings);

/// The median and the spread of samples, which is the distance of the quartiles over the median.
struct Typical {
    double median = 0;
    double spread = 0;
};
/// There must be a sample.
Typical typical(const std::vector<double>& samples);

/// The slowest rank's seconds in each repeat, from seconds by repeat and rank.
std::vector<double> slowest(const std::vector<std::vector<double>>& seconds);

/// Seconds that each rank spends in attends.
std::vector<double> attend_seconds(const layouts::Timeline& timeline);

/// Per rank the median over repeats of the attends' busy seconds.
std::vector<double> median_attend_seconds(const PassRun& pass);

/// The busiest rank's seconds divided by the mean. NaN if no rank has any, as on systems whose clock of a thread's
/// processor time is too coarse.
double balance_of(const std::vector<double>& busy_seconds);

/// The median over repeats of the slowest rank's time in the pass, over all rings.
double median_pass_seconds(const std::vector<RingRun>& rings, layouts::Pass pass);

using gpu::CallTimes;
using gpu::LinkTimes;

/// What was timed on devices beside passes: kernels, baselines and links.
struct DeviceTimes {
    std::string kernels;  ///< family
    std::vector<CallTimes> calls;
    std::vector<CallTimes> bursts;  ///< single passes apart from each other, all in one round: see gpu::time_bursts()
    std::vector<LinkTimes> links;
    std::vector<std::pair<std::string, std::string>> absent;  ///< what could not be timed, and why
    std::vector<gpu::ClockSample> clocks;
};

/// A forward and a backward pass that were tried while other tensors held most of the memory.
struct MemoryTrial {
    std::string why_not = {};     ///< why memory did not suffice; empty if the passes ran
    std::int64_t least_free = 0;  ///< free bytes of the fullest device
    double forward_seconds = 0, backward_seconds = 0;
};

/// The result of `run`, or the reason why there was too little memory for it. Any other error is thrown, because it
/// says nothing about what fits.
MemoryTrial trial_unless_full(const std::function<MemoryTrial()>& run);

}  // namespace ringlab::experiments
