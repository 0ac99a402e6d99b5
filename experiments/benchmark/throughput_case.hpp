#pragma once

#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "layouts/basics/ring_group.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// One thing that the throughput experiment times.
struct ThroughputCase {
    enum class Kind {
        ceilings,   ///< matrix products and links, nothing of ours
        device,     ///< kernels alone on one GPU, ours and the baselines in turns
        same_work,  ///< a sequence on one GPU, as much work as a rank of the rings has; all GPUs do so at the same time
        ring,
    };
    Kind kind = Kind::ring;
    std::string shape = {};      ///< "32:8/128/bf16"
    Case setup = {};             ///< layout, mask, schedule, ranks, tokens
    std::string transport = {};  ///< of rings
    std::string kernels = {};    ///< family asked for
    int gpus = 1;                ///< that are busy

    /// Unique within an experiment, the name of the run in the record.
    std::string name() const;
    layouts::RingGroup group() const { return {setup.ranks, gpus / setup.ranks, {}}; }
};

/// Whether kernels alone are timed by this protocol, "sustained" or "burst".
bool asks_protocol(const TimingConfig& config, const std::string& protocol);

/// Heads, dims and arithmetic of a shape: "32:8/128", "32:8/192-128", "16/64/fp16". What it leaves open stays as it is
/// in `config`. Throws Error on anything else.
ProblemConfig with_shape(const std::string& shape, ProblemConfig config);

/// The plan of a case that has a shape; what the shape leaves open is as in `config`. Throws Error as make_plan() of a
/// Case does.
Plan make_plan(const ThroughputCase& timed, const ProblemConfig& config = {});

/// The shape of a configuration in full, "32:8/192-128/bf16".
std::string shape_text(const layouts::Problem& problem);

/// Tokens of a sequence on one GPU that give it as much work as each of `ranks` has with `tokens` in all: work grows
/// with the square of the tokens under the masks full and causal. Other masks have no such rule: the whole sequence.
std::int64_t same_work_tokens(const std::string& mask, std::int64_t tokens, int ranks);

/// The cases in the order in which they run. Upper limits of the machine come first. Then, for each size: kernels
/// alone, if a ring of one rank is asked for; otherwise as much work on one GPU, followed by the rings.
std::vector<ThroughputCase> throughput_cases(const ProblemConfig& problem, const SweepConfig& sweep,
                                             const TimingConfig& timing);

}  // namespace ringlab::experiments
