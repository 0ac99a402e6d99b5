#pragma once

#include "experiments/config/case.hpp"
#include "experiments/config/config.hpp"
#include "experiments/study/judge.hpp"
#include "reference/tensors/tensors.hpp"

#include <map>
#include <vector>

namespace ringlab::experiments {

/// Sequences that were prefilled, padded and sharded, and that grow by one token each at every step. Keys and values
/// are stored at the places of layouts::cache_layout(). A new token is written to its own place, and nothing else
/// changes. Places that are not written yet hold garbage.
class Decoding {
public:
    /// Starts with sequences of lengths_of(tokens, sequences). Values are seeded normal numbers.
    Decoding(const ProblemConfig& problem, const DecodingConfig& growth, std::int64_t tokens);

    const std::vector<std::int64_t>& lengths() const { return lengths_; }
    std::int64_t tokens() const { return tokens_; }

    /// The forward pass of the newest tokens' rows at a step, from 0.
    Plan plan(const Case& which, int step) const;

    /// Makes all appended tokens garbage again.
    void restart();

    /// Writes the tokens of a step into the cache.
    void append(int step);

    /// After append(): K and V of all places; Q of the newest tokens, by sequence.
    const reference::Inputs& inputs() const { return inputs_; }

    /// Expected results of the newest token of every sequence: attention over its own sequence alone, without cache,
    /// mask or padding, in fp64. To be called after append().
    const reference::Outputs& expected(int step);

    /// Largest errors of o, o_unrounded and lse that pass, by the error model.
    Tolerance tolerance(const layouts::Schedule& forward, int step, bool round_running_output);

private:
    std::int64_t position(std::size_t sequence, int step) const;
    layouts::Problem problem(int step) const;
    void write(int step, bool garbage);

    const ProblemConfig sizes_;
    const int steps_;
    std::int64_t tokens_;
    std::vector<std::int64_t> lengths_;
    reference::Inputs appended_;  // tokens of sequence 0 by step, then of sequence 1
    reference::Inputs inputs_;
    std::map<int, reference::Outputs> expected_;
};

/// Lengths of sequences before they grow: sequence s of N has (N - s) / N of `tokens`. Throws Error if one had none.
std::vector<std::int64_t> lengths_of(std::int64_t tokens, int sequences);

/// Bytes of all messages of a pass.
std::int64_t bytes_between_ranks(const layouts::Schedule& schedule);

}  // namespace ringlab::experiments
