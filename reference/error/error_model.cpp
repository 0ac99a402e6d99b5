#include "reference/error/error_model.hpp"

#include "layouts/basics/require.hpp"
#include "reference/error/error_model_state.hpp"
#include "reference/features/latent.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/counts.hpp"

#include <numeric>

namespace ringlab::reference {
namespace {

SampledRows whole_rows(const layouts::Problem& problem, const Outputs& outputs) {
    return {problem.row_positions(), outputs.o, outputs.lse, outputs.dq};
}

}  // namespace

ErrorModel::ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                       const Outputs& expected, const Inputs* made_of, LargestP largest_p)
    : ErrorModel(problem, mask, inputs, whole_rows(problem, expected),
                 {all_positions(problem.tokens), expected.dk, expected.dv},
                 {problem.row_positions(), expected.lse, row_delta(inputs.dout, expected.o)}, made_of, largest_p) {
    if (made_of_ == nullptr) return;
    expected_latent_.dk = expected.dk;
    expected_latent_.dv = expected.dv;
    compress(problem, *made_of, expected_latent_);
    terms_latent_ = compressed_squares(expected.dk * expected.dk, expected.dv * expected.dv);
}

ErrorModel::ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                       const SampledRows& rows, const SampledColumns& columns, RowStatistics statistics,
                       const Inputs* made_of, LargestP largest_p)
    : given_(problem),
      problem_(problem.expanded()),
      mask_(mask),
      made_of_(problem.latent.is_given() ? made_of : nullptr),
      largest_p_(largest_p),
      rows_(rows.rows),
      columns_(columns.columns),
      statistics_(std::move(statistics)) {
    require(!problem.latent.is_given() || made_of != nullptr,
            "the error model of a problem with a latent needs the latent");
    const SingleThreadedBlas guard;  // many small products, which threads would make slower
    measure_expanding(inputs);
    measure_rows(inputs, rows);
    measure_columns(columns);
}

ErrorModel::~ErrorModel() = default;

Errors ErrorModel::errors_of(const ColumnErrors& columns) const {
    const double both = doubled_in_fp64(problem_.dtype);
    Errors errors;
    for (std::size_t at = 0; at < columns.wide.size(); ++at) errors.add(columns.at(at, both));
    for (const double shared : columns.shared) errors.share(both * shared);
    errors.set_own(columns.own);
    errors.set_known(columns.known);
    return errors;
}

Bounds ErrorModel::bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                          bool round_running_output) const {
    const auto accumulator = accumulator_of(problem_.dtype);
    require(forward.options().accumulation == layouts::Accumulation::partials || !round_running_output,
            "the running output can be rounded only with partials, not with carry");
    const SingleThreadedBlas guard;
    auto rows = row_errors(inputs, forward, round_running_output);
    const auto steps = steps_of_expanding(inputs);
    const auto in_the_largest = [](Bound& bound, double step, double largest) {
        if (step > 0) bound.max_to_largest += step / (largest < vanishing ? 1 : largest);
    };
    constexpr double most_steps = 2;  // of all; that there are so many more than the variances expect is unlikely
    rows.o.set_rare(most_steps * steps.all_o);
    rows.o_unrounded.set_rare(most_steps * steps.all_o);
    rows.lse.set_rare(most_steps * steps.all_lse);
    rows.dq.set_rare(most_steps * steps.all_dq);
    Bounds bounds;
    bounds.o = rows.o.bound(rows.o_norm, largest_o_);
    bounds.o_unrounded = rows.o_unrounded.bound(rows.o_norm, largest_o_);
    bounds.lse = rows.lse.bound(rows.lse_norm, largest_lse_);
    in_the_largest(bounds.o, steps.o, largest_o_);
    in_the_largest(bounds.o_unrounded, steps.o, largest_o_);
    in_the_largest(bounds.lse, steps.score, largest_lse_);
    if (backward == nullptr) return bounds;
    bounds.dsinks = sink_bound(rows);
    auto columns = column_errors(inputs, rows);
    if (backward->options().gradient_dtype != accumulator) add_gradient_blocks(inputs, *backward, columns);
    bounds.dq = rows.dq.bound(rows.dq_norm, largest_dq_);
    in_the_largest(bounds.dq, steps.dq, largest_dq_);
    if (made_of_ != nullptr) {
        set_latent_bounds(columns, bounds);
        return bounds;
    }
    bounds.dk = errors_of(columns.dk).bound(std::accumulate(dk_.begin(), dk_.end(), 0.0), largest_dk_);
    bounds.dv = errors_of(columns.dv).bound(std::accumulate(dv_.begin(), dv_.end(), 0.0), largest_dv_);
    return bounds;
}

}  // namespace ringlab::reference
