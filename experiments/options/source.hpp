#pragma once

#include "experiments/inputs/inputs.hpp"
#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"

#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// Gives experiments the inputs that the configuration names: "real" (comes with Ringlab), a generator, or a file.
class Source {
public:
    /// With a file as input, every one of the `replicas` gets the same sequence. All arguments must outlive this
    /// object.
    Source(const ProblemConfig& problem, const std::vector<std::string>& inputs, int replicas)
        : config_(problem), inputs_(inputs), replicas_(replicas) {}

    /// Sizes of the whole input, before anything is read; a generator's follow from the configuration, with tokens 0.
    InputData inspect(const std::string& input) const;

    /// Tokens of the shortest input that has a length of its own; 0 if all are generators.
    std::int64_t tokens() const;

    /// Values for a case over the tokens and query rows of `problem`, one for each replica: a generator gives each its
    /// own seed, a file the same sequence. Kept until another is asked for.
    const std::vector<InputData>& get(const Case& setup, const layouts::Problem& problem);

    /// Files that inputs come from, by the name the user gave them.
    std::map<std::string, std::string> files() const;

private:
    std::string path_of(const std::string& input) const;  // "" for a generator
    void apply_overrides(const std::string& input, layouts::Problem& problem) const;

    const ProblemConfig& config_;
    const std::vector<std::string>& inputs_;
    int replicas_;
    mutable std::map<std::string, InputData> inspected_;  // a process of its own looks into a file: once is enough
    std::string held_name_;
    std::vector<InputData> held_;
};

/// Settles what the user left open and the inputs decide: with --preset inputs are generated, as those that come with
/// Ringlab have sizes of their own; a file gives its own number of tokens and its heads; of the default masks those
/// that need documents go if an input has none. `config.notes` says what was settled, and where a file is cut. Throws
/// Error if a file cannot be used.
void fit_to_inputs(Config& config);

}  // namespace ringlab::experiments
