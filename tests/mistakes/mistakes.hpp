#pragma once

#include "experiments/execution/backend.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/source.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// What a mistake is made on: a case with its plan and inputs, and the results of the correct run.
struct Scene {
    const ExecutionConfig& execution;
    const Case& setup;
    const Plan& plan;
    const Policy& policy;
    const reference::Inputs& inputs;
    Backend& backend;
    const RingRun& right;

    RingRun run(const Plan& plan, const reference::Inputs& inputs) const;

    /// The case's problem under another mask and, if given, of other sizes.
    Plan plan_under(const layouts::Mask& mask) const { return plan_of(plan.problem, mask); }
    Plan plan_of(const layouts::Problem& problem, const layouts::Mask& mask) const;
};

/// The outcome of a mistake: either results, which are compared with fp64, or what another check (gate) says.
struct Consequence {
    std::optional<RingRun> results = {};
    std::string gate = "fp64";       ///< the check that must notice it
    double measured = 0, bound = 0;  ///< measured value and limit of a check other than fp64, in that check's unit
    std::string said = {};           ///< the text of that check, or why the mistake cannot be made here
};

/// A mistake that another system shipped with, numbered as in docs/explanation/mistakes.md.
struct Mistake {
    int number = 0;
    std::string name;
    std::string mask, layout;  ///< mask and layout under which the mistake shows
    std::function<Consequence(const Scene&)> make;
    double rotary = 0;        ///< base; 0: nothing is rotated
    bool decodes = false;     ///< one query row, that of the last token
    std::string policy = {};  ///< of accumulation
    double dropout = 0;       ///< probability
    bool sinks = false;       ///< learned sink logits, drawn for each head
};

/// All of them, for sequences of `tokens` over `ranks`.
std::vector<Mistake> mistakes(std::int64_t tokens, int ranks);

}  // namespace ringlab::experiments
