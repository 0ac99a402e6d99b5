#pragma once

#include "experiments/options/case.hpp"
#include "experiments/options/config.hpp"
#include "experiments/study/judge.hpp"
#include "reference/tensors/tensors.hpp"

#include <map>
#include <vector>

namespace ringlab::experiments {

/// Sequences that were prefilled, padded and sharded, and that grow by a few tokens each at every step: as many as a
/// sequence has query rows, more than one as in speculative decoding. Keys and values are stored at the places of
/// layouts::cache_layout(). A new token is written to its own place, and nothing else changes. Places that are not
/// written yet hold garbage. The rows of a sequence belong to the owner of its newest token.
class Decoding {
public:
    /// Of `size` counts how many sequences there are, their tokens and query rows: see lengths_of(). Values are seeded
    /// normal numbers, or none are made; then inputs(), expected() and tolerance() must not be called.
    enum class Values { made, none };
    Decoding(const ProblemConfig& problem, const DecodingConfig& growth, const Case& size, Values values);

    const std::vector<std::int64_t>& lengths() const { return lengths_; }
    /// Whether a case has the same sequences and rows.
    bool is_of(const Case& other) const;

    /// The forward pass of the newest tokens' rows at a step, from 0.
    Plan plan(const Case& setup, int step) const;

    /// Makes all appended tokens garbage again.
    void restart();

    /// Writes the tokens of a step into the cache.
    void append(int step);

    /// After append(): K and V of all places; Q of the newest tokens, by sequence and position.
    const reference::Inputs& inputs() const { return inputs_; }

    /// Expected results of the newest tokens of every sequence: causal attention over its own sequence alone, without
    /// cache or padding, in fp64. To be called after append().
    const reference::Outputs& expected(int step);

    /// Bytes of K and V that rows of a step see, on the rank that has most.
    double bytes_read(const Plan& plan, int step) const;

    /// Largest errors of o, o_unrounded and lse that pass, by the error model.
    Tolerance tolerance(const layouts::Schedule& forward, int step, bool round_running_output);

private:
    std::int64_t appended() const { return steps_ * rows_; }
    /// Of the first of a step's tokens.
    std::int64_t position(std::size_t sequence, int step) const;
    layouts::Problem problem(int step) const;
    std::vector<std::int64_t> rows_of(int step) const;  // in appended_
    void write(int step, bool garbage);

    const ProblemConfig sizes_;
    const std::int64_t steps_, rows_;
    const Case size_;
    std::vector<std::int64_t> lengths_;
    reference::Inputs appended_;  // tokens of sequence 0 by step, then of sequence 1
    reference::Inputs inputs_;
    std::map<int, reference::Outputs> expected_;
};

/// Lengths of sequences before they grow. `lengths` is "equal" (each has `tokens`), or "falling": sequence s of N has
/// (N - s) / N of `tokens`. Throws Error if one had none.
std::vector<std::int64_t> lengths_of(std::int64_t tokens, int sequences, const std::string& lengths);

/// Bytes of all messages of a pass.
std::int64_t bytes_between_ranks(const layouts::Schedule& schedule);

}  // namespace ringlab::experiments
