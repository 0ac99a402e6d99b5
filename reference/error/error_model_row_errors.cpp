#include "reference/error/error_model_state.hpp"
#include "reference/tensors/counts.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <cmath>

// Errors of o, lse, delta and dq, row by row, from what error_model_rows.cpp has measured.

namespace ringlab::reference {

/// The error of o from roundings to 16 bits: those of p, those of partial results, and `roundings` roundings of o
/// itself.
RowError ErrorModel::narrow_o(std::size_t at, int roundings, const Blocks& blocks) const {
    if (!is_narrow(problem_.dtype)) return {};
    const auto& row = row_[at];
    const auto width = size(problem_.value_dim);
    const double u2 = square(unit_of(problem_.dtype)), step = square(subnormal_to_unit(problem_.dtype));
    RowError error{.narrow = u2 * row.pv_lost};
    for (auto element = at * width; element < (at + 1) * width; ++element) {
        const double by_p = u2 * pv_[element], by_blocks = blocks.o.empty() ? 0 : blocks.o[element];
        const double own = roundings * u2 * (square(o_[element]) + step);
        error.narrow += by_p + by_blocks + own;
        Peak peak;
        peak.add(by_p + u2 * row.pv_lost, row.keys);
        if (by_blocks > 0) peak.add(by_blocks, 2 * blocks.count[at]);  // each block rounds a part and a sum
        peak.add(own, roundings);
        error.peak = std::max(error.peak, peak.squared());
    }
    return error;
}

/// The error of dq from roundings to 16 bits. `delta` is the variance of delta that such roundings cause.
RowError ErrorModel::narrow_dq(std::size_t at, double delta) const {
    if (!is_narrow(problem_.dtype)) return {};
    const auto width = size(problem_.head_dim);
    const double u2 = square(unit_of(problem_.dtype)), scale2 = square(problem_.effective_scale());
    RowError error;
    for (auto element = at * width; element < (at + 1) * width; ++element) {
        const double by_ds = scale2 * u2 * dsk_[element], by_delta = scale2 * delta * square(mean_key_[element]);
        error.narrow += by_ds + by_delta;
        Peak peak;
        peak.add(by_ds, row_[at].keys);
        error.peak = std::max(error.peak, peak.squared() + square(normal_tail) * by_delta);
    }
    return error;
}

ErrorModel::WideErrors ErrorModel::wide_errors(const Row& row, double merges) const {
    const auto accumulator = accumulator_of(problem_.dtype);
    const double e2 = square(unit_of(accumulator)), lost = square(smallest_of(accumulator));
    const double scale2 = square(problem_.effective_scale()), sinks = problem_.sinks.empty() ? 0 : 1;
    const auto value_dim = static_cast<double>(problem_.value_dim), head_dim = static_cast<double>(problem_.head_dim);
    // Square of the largest |lse| of any partial result that matters.
    const double size2 = square(std::abs(row.lse) - std::log(std::max(row.mass, 1e-300)) + 1);
    const double rescaled = rescalings(row.keys), sums = e2 * sum_roundings(row.keys, problem_.dtype);
    const double of_total = row.keys / 2 * (1 + row.mass2);  // the softmax's denominator

    // Relative errors of a rescaling, merge or sink, which all keys seen before share.
    const double regrouped = e2 * (rescaled * (exp_roundings + 1) + merges * (2 * size2 + exp_roundings + 6));
    const double by_sink = sinks * e2 * (3 * size2 + exp_roundings + 3);

    // Variance of an element of o: sums, division by the denominator, rescaling, merging.
    const double elements = sums * (row.pv_all + row.o) +
                            e2 * (row.pv_all + (of_total + 3) * row.o + 2 * rescaled * (row.pv_all + row.o) +
                                  9 * merges * row.largest_value) +
                            lost * square(2 * row.keys + merges + 4) * (row.largest_value + value_dim);
    WideErrors errors;
    errors.o =
        std::min(row.scores_o + elements + regrouped * row.regrouped_o() + by_sink * row.o, 4 * row.largest_value);
    errors.lse = std::min(row.scores_lse, row.largest_score) + regrouped + by_sink +
                 e2 * ((2 + 2 * merges) * size2 + exp_roundings * (1 + square(std::log(row.keys))) + of_total);
    errors.delta = row.scores_delta + elements * square(row.largest_dout) + regrouped * row.regrouped_delta() +
                   by_sink * square(row.delta) + e2 * value_dim / 2 * (square(row.delta) + row.dout4 * row.o4) +
                   lost * square(value_dim);
    errors.dq = scale2 * (row.scores_dq + errors.delta * row.mean_key) + (sums + 2 * e2) * (scale2 * row.dsk + row.dq) +
                variance_of_exp(errors.lse) * row.dq +
                lost * row.keys * (scale2 * row.lost_dq + row.keys * (1 + scale2) * head_dim);
    return errors;
}

ErrorModel::RowErrors ErrorModel::row_errors(const Inputs& inputs, const layouts::Schedule& forward,
                                             bool round_running_output) const {
    const auto dtype = problem_.dtype;
    const double u2 = is_narrow(dtype) ? square(unit_of(dtype)) : 0, step = square(subnormal_to_unit(dtype));
    const bool partials = forward.options().accumulation == layouts::Accumulation::partials;
    // Without partials, a result that another rank normalises is rounded only if messages are.
    const bool arrives = is_narrow(dtype) && output_arrives(forward);
    const bool rounds_results = is_narrow(dtype) && (partials || arrives);
    const auto blocks = rounds_results ? forward_blocks(inputs, forward, round_running_output) : Blocks{};
    const auto merges = merges_of(forward);
    const double both = doubled_in_fp64(dtype);
    const bool sinks = !problem_.sinks.empty();

    RowErrors errors;
    KnownErrors known_o(unit_of(dtype), largest_o_), known_dq(unit_of(dtype), largest_dq_);
    // If p is rounded, the largest p that a row has seen so far is exactly 1 times the dropout factor. Each result that
    // is merged has such a p, with the same rounding error. A state that is carried from block to block has the row's
    // largest p and few others, which row.p contains.
    const double factor = problem_.dropout.factor();
    const bool merged = rounds_results || std::ranges::any_of(merges, [](int count) { return count > 0; });
    const double of_factor = is_narrow(dtype) && merged ? std::abs(rounded(factor, dtype) / factor - 1) : 0;
    KnownRoundings of_delta;
    const auto part_of_delta = [](const Row& row) { return part_of(square(row.delta_of_rounded), row.pdp); };
    for (const auto& row : row_) of_delta.add(part_of_delta(row), row.p);
    for (std::size_t at = 0; at < row_.size(); ++at) {
        const auto& row = row_[at];
        const double lse2 = std::isfinite(row.lse) ? square(row.lse) : 0;
        // A row that sees no key has o = 0 and the lse of the sink.
        const auto wide = row.keys > 0 ? wide_errors(row, std::min<double>(merges[at % rows_.size()], row.keys - 1))
                                       : WideErrors{.lse = sinks * square(unit_of(accumulator_of(dtype))) * lse2};
        // A single partial result is the output and is already rounded, and so is a running output. A sink changes
        // them, so its result is rounded again.
        const bool is_rounded = (rounds_results && blocks.count[at] == 1) || round_running_output;
        const bool arrival = arrives && !is_rounded;  // the output is a sum of partials that arrives as a message
        auto o_unrounded = narrow_o(at, arrival, blocks), o = narrow_o(at, arrival + (sinks || !is_rounded), blocks);
        o_unrounded.wide = o.wide = both * wide.o;
        const double in_common =
            std::max({row.p.in_common(unit_of(dtype)), of_delta.in_common(unit_of(dtype)), of_factor});
        const double delta = u2 * row.pdp + square(in_common) * part_of_delta(row) +
                             (rounds_results ? blocks.delta[at] : 0) +
                             arrival * u2 * (row.dout4 * row.o4 + row.dout * step);
        auto dq = narrow_dq(at, delta);
        dq.wide = both * wide.dq;
        errors.o_unrounded.add(o_unrounded);
        errors.o.add(o);
        errors.lse.add({.wide = both * wide.lse});
        errors.dq.add(dq);
        // Numbers with equal roundings need not be neighbours in a sum. So their part of it is taken as the larger of
        // the whole sum and a random walk of its terms.
        known_o.add(row.p, part_of(row.o_of_rounded, row.pv_all));
        known_dq.add(row.ds, part_of(row.dq, square(problem_.effective_scale()) * row.dsk));
        errors.delta_narrow.push_back(delta);
        errors.delta_wide.push_back(wide.delta);
        errors.var_lse.push_back(wide.lse);
        errors.o_norm += row.o;
        errors.lse_norm += lse2;
        errors.dq_norm += row.dq;
    }
    auto known = known_o.error(errors.o_norm);
    known.at_least({square(of_factor) * errors.o_norm, of_factor});
    for (auto* of_o : {&errors.o, &errors.o_unrounded}) of_o->set_known(known);
    errors.dq.set_known(known_dq.error(errors.dq_norm));
    return errors;
}

}  // namespace ringlab::reference
