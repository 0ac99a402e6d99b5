#pragma once

#include "layouts/planned/planned.hpp"
#include "layouts/problem/problem.hpp"
#include "layouts/schedules/schedule.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// In the order in which they are executed.
inline constexpr std::array both_passes{layouts::Pass::forward, layouts::Pass::backward};

/// The cases that an experiment runs: the product of these lists.
struct SweepConfig {
    std::vector<std::int64_t> tokens;           ///< of the whole sequence; empty: as many as the input has
    std::vector<std::int64_t> tokens_per_rank;  ///< instead of tokens
    std::vector<std::int64_t> queries;  ///< number of last tokens of every sequence that have a query row; 0: all
    std::vector<int> sequences;         ///< that grow together, in decoding
    std::vector<std::string> inputs;    ///< "real", a generator's name, or an HDF5 file
    std::vector<std::string> layouts, masks, schedules;
    std::vector<int> ranks;
    /// Of accumulation: "carry", "gradients", "partials" or "running", see policy_from().
    std::vector<std::string> policies;
    bool pad = false;  ///< round tokens up to what the layout divides
};

/// One combination of a sweep, as the user wrote its parts.
struct Case {
    std::string input = {}, mask = {}, layout = {}, schedule = {}, policy = {};
    int ranks = 1;
    std::int64_t tokens = 0;   ///< of the whole sequence, before padding
    std::int64_t queries = 0;  ///< number of last tokens of every sequence that have a query row; 0: all
    bool pad = false;          ///< round tokens up to what the layout divides
    int sequences = 1;         ///< that grow together, in decoding

    /// "causal zigzag P=8 S=2048 ring carry real": unique within an experiment, the name of the run in the record.
    std::string name() const;
};

/// The product of all lists: by mask, tokens, sequences, input, ranks, schedule, policy and last by layout, so that
/// layouts to be compared stand side by side and an input and its fp64 reference serve many cases in a row. Lists an
/// experiment has no use for may be empty. The layout "planned" is made for each of the `machines`, if there are any.
/// `input_tokens` are used where the user gave none.
std::vector<Case> all_cases(const SweepConfig& sweep, const std::vector<std::string>& machines,
                            std::int64_t input_tokens);

/// Lengths of the whole sequence over `ranks` ranks, before padding.
std::vector<std::int64_t> sequence_lengths(const SweepConfig& sweep, int ranks, std::int64_t input_tokens);

/// A case with everything in place to run it.
struct Plan {
    layouts::Problem problem;  ///< tokens include padding
    std::unique_ptr<layouts::Schedule> forward;
    std::unique_ptr<layouts::Schedule> backward;  ///< null where none is wanted

    const layouts::Schedule* schedule(layouts::Pass pass) const {
        return pass == layouts::Pass::forward ? forward.get() : backward.get();
    }
    /// Those that there are, forward first.
    std::vector<const layouts::Schedule*> schedules() const {
        std::vector<const layouts::Schedule*> all{forward.get()};
        if (backward) all.push_back(backward.get());
        return all;
    }
    const layouts::Mask& mask() const { return forward->mask(); }
    const layouts::Layout& layout() const { return forward->layout(); }
};

/// Whether a layout is made for prices: "planned", or "planned:MACHINE" with the name or path of a machine file.
bool is_planned(const std::string& layout);

/// The prices that such a layout is made for under a schedule: those of its machine, or the default ones. Throws Error
/// if there is no such machine.
layouts::LayoutPrices prices_of(const std::string& layout, const std::string& schedule, const layouts::Problem& problem,
                                int ranks, layouts::DType gradient_dtype);

/// The layout that a user typed, of any kind, for a schedule.
layouts::Layout laid_out(const std::string& layout, const std::string& schedule, const layouts::Mask& mask, int ranks,
                         const layouts::Problem& problem, layouts::DType gradient_dtype);

/// The layouts, with "planned" replaced by one for each of the machines, if there are any.
std::vector<std::string> for_machines(const std::vector<std::string>& layouts,
                                      const std::vector<std::string>& machines);

/// What a policy name means to a schedule and to a backend.
struct Policy {
    layouts::Accumulation accumulation = layouts::Accumulation::carry;
    bool running_output_rounded = false;  ///< with partials: the merged output is rounded after each merge
    layouts::DType gradient_dtype = layouts::DType::fp32;  ///< of dK and dV in messages
};

/// "carry" (or empty): (o, m, l) and gradients stay in the accumulator's type. "gradients": dK and dV travel in 16
/// bits. "partials": partial results are 16-bit too. "running": so is the merged output. With fp64 and fp32 arithmetic
/// these types are the accumulator's. Throws Error for any other name.
Policy policy_from(const std::string& name, layouts::DType arithmetic);

/// Lays out `problem`, with the tokens of the case. `document_lengths` stand for "documents:input" in masks. Throws
/// Error where sizes do not divide or names are unknown.
Plan make_plan(const Case& setup, layouts::Problem problem, const std::vector<std::int64_t>& document_lengths = {});

/// The mask that a user typed, with the input's documents put in, cut to `tokens`, and lengths from files written out:
/// what it says then depends on nothing else.
std::string expand_mask(const std::string& mask, std::int64_t tokens,
                        const std::vector<std::int64_t>& document_lengths);

}  // namespace ringlab::experiments
