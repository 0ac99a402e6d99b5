#include "reference/error_model.hpp"

#include "layouts/require.hpp"
#include "reference/blas.hpp"
#include "reference/counts.hpp"
#include "reference/error_terms.hpp"
#include "reference/latent.hpp"
#include "reference/visible_tiles.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ringlab::reference {
namespace {

using layouts::DType;

/// do.v of a pair that is not dropped out, from dp; of another one nothing is asked.
double of_kept(double dp, double factor) { return factor == 0 ? 0 : dp / factor; }

double slope_of_cap(const layouts::Problem& problem, double s) {
    return problem.soft_cap > 0 ? 1 - square(s / problem.soft_cap) : 1;
}

SampledRows whole_rows(const layouts::Problem& problem, const Outputs& outputs) {
    return {problem.row_positions(), outputs.o, outputs.lse, outputs.dq};
}

}  // namespace

ErrorModel::ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                       const Outputs& expected, const Inputs* made_of)
    : ErrorModel(problem, mask, inputs, whole_rows(problem, expected),
                 {all_positions(problem.tokens), expected.dk, expected.dv},
                 {problem.row_positions(), expected.lse, row_delta(inputs.dout, expected.o)}) {
    if (!problem.latent.is_given()) return;
    require(made_of != nullptr, "an error model of a latent wants the latent");
    made_of_ = made_of;
    expected_latent_.dk = expected.dk;
    expected_latent_.dv = expected.dv;
    compress(problem, *made_of, expected_latent_);
}

ErrorModel::ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                       const SampledRows& rows, const SampledColumns& columns, RowStatistics statistics)
    : given_(problem),
      problem_(problem.expanded()),
      mask_(mask),
      rows_(rows.rows),
      columns_(columns.columns),
      statistics_(std::move(statistics)) {
    const SingleThreadedBlas guard;  // many small products, which threads would make slower
    measure_rows(inputs, rows);
    measure_columns(columns);
}

std::size_t ErrorModel::row_index(std::int64_t batch, std::int64_t head, std::size_t row) const {
    return size(batch * problem_.query_heads + head) * rows_.size() + row;
}

void ErrorModel::measure_rows(const Inputs& inputs, const SampledRows& rows) {
    largest_o_ = largest_of(rows.o.data(), rows.o.size());
    largest_lse_ = largest_of(rows.lse.data(), rows.lse.size());
    largest_dq_ = largest_of(rows.dq.data(), rows.dq.size());
    const auto q = take_rows(problem_, inputs.q, rows_), dout = take_rows(problem_, inputs.dout, rows_);
    const auto heads = size(problem_.query_heads);
    row_.resize(size(problem_.batch) * heads * rows_.size());
    for (std::size_t b = 0; b < size(problem_.batch); ++b)
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t r = 0; r < rows_.size(); ++r) {
                auto& row = row_[row_index(static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), r)];
                const auto* o = &rows.o(b, r, h, 0);
                const auto* doutput = &dout(b, r, h, 0);
                const auto o_norms = norms_of(o, rows.o.shape(3)), dout_norms = norms_of(doutput, dout.shape(3));
                row.o = o_norms.two;
                row.o4 = o_norms.four;
                row.dout = dout_norms.two;
                row.dout4 = dout_norms.four;
                row.dq = norms_of(&rows.dq(b, r, h, 0), rows.dq.shape(3)).two;
                row.lse = rows.lse(b, r, h);
                row.delta = std::inner_product(o, o + rows.o.shape(3), doutput, 0.0);
            }
    measure_pairs(inputs, q, dout);
}

void ErrorModel::measure_pairs(const Inputs& inputs, const Tensor& q, const Tensor& dout) {
    const auto q_norms = norms_of(q), k_norms = norms_of(inputs.k), v_norms = norms_of(inputs.v);
    const Roundings roundings{static_cast<double>(problem_.head_dim), static_cast<double>(problem_.value_dim),
                              problem_.soft_cap,
                              error_of_expanding() / square(unit_of(accumulator_of(problem_.dtype)))};
    const double scale = problem_.effective_scale(), step = square(subnormal_to_unit(problem_.dtype));
    struct Largest {
        double p = 0, v = 0, dp = 0;
    };
    std::vector<Largest> largest(row_.size());
    // Of a key that dropout takes out, its p still takes o and delta back: all of them, rather than what is left by it.
    const bool drops = problem_.dropout.drops();
    const double taken_back = drops ? 1 : 0;
    std::vector<double> mean_key(row_.size() * size(problem_.head_dim));
    const auto heads = size(problem_.query_heads), kv_heads = size(problem_.kv_heads);
    for_each_tile(
        problem_, mask_, rows_, all_positions(problem_.tokens), q, dout, inputs.k, inputs.v, [&](const Pairs& tile) {
            for (std::int64_t r = 0; r < tile.s.rows; ++r) {
                const auto at = row_index(tile.batch, tile.query_head, size(tile.first_row + r));
                auto& row = row_[at];
                const auto q4 = q_norms[(size(tile.batch) * rows_.size() + size(tile.first_row + r)) * heads +
                                        size(tile.query_head)]
                                    .four;
                double* s = tile.s.row(r);
                for (std::int64_t c = 0; c < tile.s.columns; ++c) {
                    if (std::isinf(s[c])) {
                        s[c] = 0;
                        continue;
                    }
                    const auto key = (size(tile.batch) * size(problem_.tokens) + size(tile.first_key + c)) * kv_heads +
                                     size(tile.kv_head);
                    const auto &k = k_norms[key], &v = v_norms[key];
                    const double p = std::exp(s[c] - row.lse), dp = tile.dp.row(r)[c];
                    const double factor = tile.dropped.row(r)[c];
                    const double ds = p * (dp - row.delta) * slope_of_cap(problem_, s[c]);
                    const double score = roundings.of_score(s[c], scale, q4, k.four);
                    if (p > largest[at].p) largest[at] = {p, v.two, dp};
                    const double pv = factor * p, own = drops ? p : p * (1 - p);
                    row.keys += 1;
                    row.pv_all += square(pv) * v.two;
                    row.pdp += square(p * dp);
                    row.dsk += (square(ds) + step) * k.two;
                    row.scores_lse += p * score;
                    row.scores_o += square(own) * (square(factor) * v.two + taken_back * row.o) * score;
                    row.scores_delta += square(own) * (square(dp) + taken_back * square(row.delta)) * score;
                    row.scores_dq +=
                        (square(ds) * score + square(pv) * roundings.of_dp(of_kept(dp, factor), row.dout4, v.four)) *
                        k.two;
                    s[c] = p;
                }
                const Matrix mean{mean_key.data() + at * size(problem_.head_dim), 1, problem_.head_dim,
                                  problem_.head_dim};
                multiply_add(1, ConstMatrix{s, 1, tile.s.columns, tile.s.stride},
                             head_view(inputs.k, tile.batch, tile.kv_head, tile.first_key, tile.s.columns), mean);
            }
        });
    for (std::size_t at = 0; at < row_.size(); ++at) {
        auto& row = row_[at];
        const auto& exact = drops ? Largest{} : largest[at];  // a factor that is no power of 2 leaves none exact
        row.pv = std::max(0.0, row.pv_all - square(exact.p) * exact.v);
        row.pdp = std::max(0.0, row.pdp - square(exact.p * exact.dp));
        row.mean_key = norms_of(mean_key.data() + at * size(problem_.head_dim), size(problem_.head_dim)).two;
    }
}

void ErrorModel::measure_columns(const SampledColumns& columns) {
    largest_dk_ = largest_of(columns.dk.data(), columns.dk.size());
    largest_dv_ = largest_of(columns.dv.data(), columns.dv.size());
    for (std::size_t b = 0; b < size(problem_.batch); ++b)
        for (std::size_t g = 0; g < size(problem_.kv_heads); ++g)
            for (std::size_t c = 0; c < columns_.size(); ++c) {
                dk_.push_back(norms_of(&columns.dk(b, c, g, 0), columns.dk.shape(3)).two);
                dv_.push_back(norms_of(&columns.dv(b, c, g, 0), columns.dv.shape(3)).two);
            }
}

/// What rows of the sample have, for every row of the statistics: that of the nearest row of the sample.
std::vector<double> ErrorModel::at_statistics(const std::vector<double>& of_rows) const {
    std::vector<double> result;
    for (std::int64_t head = 0; head < problem_.batch * problem_.query_heads; ++head)
        for (const auto position : statistics_.rows) {
            auto after = std::lower_bound(rows_.begin(), rows_.end(), position);
            if (after == rows_.end() || (after != rows_.begin() && *after - position > position - *(after - 1)))
                --after;
            result.push_back(of_rows[row_index(0, head, static_cast<std::size_t>(after - rows_.begin()))]);
        }
    return result;
}

ErrorModel::Columns ErrorModel::measure_columns(const Inputs& inputs, const std::vector<double>& var_delta,
                                                const std::vector<double>& var_lse) const {
    const auto& rows = statistics_.rows;
    const auto q = take_rows(problem_, inputs.q, rows), dout = take_rows(problem_, inputs.dout, rows);
    const auto k = take_tokens(inputs.k, columns_), v = take_tokens(inputs.v, columns_);
    const auto q_norms = norms_of(q), dout_norms = norms_of(dout), k_norms = norms_of(k), v_norms = norms_of(v);
    const auto delta_errors = at_statistics(var_delta), lse_errors = at_statistics(var_lse);
    const Roundings roundings{static_cast<double>(problem_.head_dim), static_cast<double>(problem_.value_dim),
                              problem_.soft_cap,
                              error_of_expanding() / square(unit_of(accumulator_of(problem_.dtype)))};
    const double scale = problem_.effective_scale(), step = square(subnormal_to_unit(problem_.dtype));
    const bool narrow = is_narrow(problem_.dtype);
    const double u2 = narrow ? square(unit_of(problem_.dtype)) : 0;
    const double e2 = square(unit_of(problem_.dtype == DType::fp64 ? DType::fp64 : DType::fp32));
    const auto kv_heads = size(problem_.kv_heads), heads = size(problem_.query_heads);
    const auto count = size(problem_.batch) * kv_heads * columns_.size();
    std::vector<double> terms(count), dsq(count), pdo(count);
    Columns columns{.dk = std::vector<double>(count),
                    .dv = std::vector<double>(count),
                    .dk_parts = std::vector<double>(count),
                    .dv_parts = std::vector<double>(count),
                    .latent_parts = {}};
    for_each_tile(problem_, mask_, rows, columns_, q, dout, k, v, [&](const Pairs& tile) {
        for (std::int64_t r = 0; r < tile.s.rows; ++r) {
            const auto row = size(tile.first_row + r);
            const auto b = size(tile.batch), h = size(tile.query_head);
            const double lse = statistics_.lse(b, row, h), delta = statistics_.delta(b, row, h);
            const auto& qn = q_norms[(b * rows.size() + row) * heads + h];
            const auto& don = dout_norms[(b * rows.size() + row) * heads + h];
            const auto head_row = (b * heads + h) * rows.size() + row;
            for (std::int64_t c = 0; c < tile.s.columns; ++c) {
                const double s = tile.s.row(r)[c];
                if (std::isinf(s)) continue;
                const auto column = size(tile.first_key + c);
                const auto key = (b * columns_.size() + column) * kv_heads + size(tile.kv_head);
                const auto at = (b * kv_heads + size(tile.kv_head)) * columns_.size() + column;
                const double p = std::exp(s - lse), dp = tile.dp.row(r)[c];
                const double factor = tile.dropped.row(r)[c];
                const double ds = p * (dp - delta) * slope_of_cap(problem_, s);
                const double score =
                    e2 * roundings.of_score(s, scale, qn.four, k_norms[key].four) + lse_errors[head_row];
                const double dp_error =
                    e2 * square(factor) * roundings.of_dp(of_kept(dp, factor), don.four, v_norms[key].four) +
                    delta_errors[head_row];
                columns.dk[at] +=
                    square(scale) * qn.two * (u2 * (square(ds) + step) + square(ds) * score + square(p) * dp_error);
                columns.dv[at] += don.two * (u2 * (square(factor * p) + step) + square(factor * p) * score);
                terms[at] += 1;
                dsq[at] += square(scale * ds) * qn.two;
                pdo[at] += square(factor * p) * don.two;
            }
        }
    });
    for (std::size_t at = 0; at < count; ++at) {
        const double sums = e2 * sum_roundings(terms[at], problem_.dtype);
        columns.dk[at] += sums * (dsq[at] + dk_[at]);
        columns.dv[at] += sums * (pdo[at] + dv_[at]);
    }
    return columns;
}

/// Of ds = -sum over rows of exp(s - lse) delta. Rows that are not in the statistics are taken to be as those that are.
Bound ErrorModel::sink_bound(const std::vector<double>& var_delta, const std::vector<double>& var_lse,
                             double e2) const {
    Errors errors;
    if (problem_.sinks.empty()) return errors.bound(0, 0, 1, 1);
    const auto delta_errors = at_statistics(var_delta), lse_errors = at_statistics(var_lse);
    const auto rows = statistics_.rows.size(), heads = problem_.sinks.size();
    double norm = 0, largest = 0;
    for (std::size_t h = 0; h < heads; ++h) {
        double gradient = 0, variance = 0, squares = 0;
        for (std::size_t b = 0; b < size(problem_.batch); ++b)
            for (std::size_t r = 0; r < rows; ++r) {
                const double p = std::exp(problem_.sinks[h] - statistics_.lse(b, r, h));
                const double part = p * statistics_.delta(b, r, h);
                const auto at = (b * heads + h) * rows + r;
                gradient -= part;
                squares += square(part);
                variance += square(p) * delta_errors[at] + square(part) * (lse_errors[at] + 4 * e2);
            }
        const auto terms = static_cast<double>(rows * size(problem_.batch));
        errors.add(variance + e2 * terms / 2 * (squares + square(gradient)));
        norm += square(gradient);
        largest = std::max(largest, std::abs(gradient));
    }
    // Of so few numbers a root mean square has no normal tail: it is within this but for once in 3 million, by the
    // bound of Laurent and Massart (Annals of Statistics 28, 2000, lemma 1) on a sum of squares of normal numbers.
    auto bound = errors.bound(norm, largest, 1, 1);
    const double independent = square(errors.sum) / errors.sum_of_squares, tail = 15;
    if (errors.sum > 0)
        bound.relative_rms =
            bound.expected * worst_mantissa * std::sqrt(1 + 2 * std::sqrt(tail / independent) + 2 * tail / independent);
    return bound;
}

/// Of the sample's rows.
struct ErrorModel::RowErrors {
    Errors o, o_unrounded, lse, dq;
    double o_norm = 0, lse_norm = 0, dq_norm = 0;  // squared
    std::vector<double> var_delta, var_lse;        // by row
};

ErrorModel::RowErrors ErrorModel::row_errors(const Inputs& inputs, const layouts::Schedule& forward,
                                             bool round_running_output) const {
    const auto dtype = problem_.dtype;
    const double u2 = is_narrow(dtype) ? square(unit_of(dtype)) : 0, e2 = square(unit_of(accumulator_of(dtype)));
    const double scale2 = square(problem_.effective_scale());
    const auto value_dim = static_cast<double>(problem_.value_dim);
    const bool partials = forward.options().accumulation == layouts::Accumulation::partials;
    // Without them, what is normalised elsewhere is rounded only if messages are.
    const bool arrives = is_narrow(dtype) && output_arrives(forward);
    const bool rounds_results = partials || arrives;
    const auto blocks = rounds_results ? forward_blocks(inputs, forward, round_running_output) : Blocks{};
    const double both = doubled_in_fp64(dtype);

    RowErrors errors;
    for (std::size_t at = 0; at < row_.size(); ++at) {
        const auto& row = row_[at];
        if (row.keys == 0) {
            errors.var_delta.push_back(0);
            errors.var_lse.push_back(0);
            continue;
        }
        const double sums = e2 * sum_roundings(row.keys, dtype);
        const int merged = rounds_results ? blocks.count[at] : 0;
        const bool sinks = !problem_.sinks.empty();
        const double own_lse = e2 * (row.scores_lse + (2 + merged + (sinks ? 2 : 0)) * square(row.lse) + square(7.0));
        const double exact_o = e2 * row.scores_o + sums * (row.pv_all + row.o) + error_of_expanding() * row.pv_all +
                               (sinks ? own_lse * row.o : 0);
        const double var_o = u2 * row.pv + exact_o + (rounds_results ? blocks.o[at] : 0);
        // A single partial is the output, and rounded already; so is a running one.
        const bool rounds = merged != 1 && !round_running_output;
        const double arrival = arrives && rounds ? u2 : 0;  // of a sum of partials that comes as a message
        errors.o_unrounded.add(both * (var_o + arrival * row.o));
        errors.o.add(both * (var_o + (rounds ? u2 * row.o : 0)));
        errors.var_delta.push_back(u2 * row.pdp + (rounds_results ? blocks.delta[at] : 0) +
                                   arrival * row.dout4 * row.o4 + e2 * row.scores_delta +
                                   exact_o * row.dout4 / std::sqrt(value_dim) +
                                   e2 * value_dim / 2 * (square(row.delta) + row.dout4 * row.o4));
        errors.var_lse.push_back(own_lse);
        errors.lse.add(both * errors.var_lse.back());
        errors.dq.add(both * (scale2 * ((u2 + error_of_expanding()) * row.dsk + errors.var_delta.back() * row.mean_key +
                                        e2 * row.scores_dq) +
                              sums * (scale2 * row.dsk + row.dq) + errors.var_lse.back() * row.dq));
        errors.o_norm += row.o;
        errors.lse_norm += square(row.lse);
        errors.dq_norm += row.dq;
    }
    return errors;
}

Bounds ErrorModel::bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                          bool round_running_output) const {
    const auto accumulator = accumulator_of(problem_.dtype);
    const double e2 = square(unit_of(accumulator)), both = doubled_in_fp64(problem_.dtype);
    const auto head_dim = static_cast<double>(problem_.head_dim), value_dim = static_cast<double>(problem_.value_dim);
    require(forward.options().accumulation == layouts::Accumulation::partials || !round_running_output,
            "a running output is rounded with partials alone, not with carry");
    const SingleThreadedBlas guard;
    const auto rows = row_errors(inputs, forward, round_running_output);
    const double v_crest = crest_of(inputs.v);
    const auto steps = steps_of_expanding(inputs);
    const auto in_the_largest = [](Bound& bound, double step, double largest) {
        if (step > 0) bound.max_to_largest += step / largest;
    };
    Bounds bounds;
    bounds.o = rows.o.bound(rows.o_norm, largest_o_, value_dim, v_crest);
    bounds.o_unrounded = rows.o_unrounded.bound(rows.o_norm, largest_o_, value_dim, v_crest);
    bounds.lse = rows.lse.bound(rows.lse_norm, largest_lse_, 1, 1);
    in_the_largest(bounds.o, steps.o, largest_o_);
    in_the_largest(bounds.o_unrounded, steps.o, largest_o_);
    in_the_largest(bounds.lse, steps.score, largest_lse_);
    if (backward == nullptr) return bounds;
    bounds.dsinks = sink_bound(rows.var_delta, rows.var_lse, both * e2);
    auto columns = measure_columns(inputs, rows.var_delta, rows.var_lse);
    if (backward->options().gradient_dtype != accumulator) add_gradient_blocks(inputs, *backward, columns);
    bounds.dq = rows.dq.bound(rows.dq_norm, largest_dq_, head_dim, crest_of(inputs.k));
    in_the_largest(bounds.dq, steps.dq, largest_dq_);
    if (made_of_ != nullptr) {
        set_latent_bounds(columns, bounds);
        return bounds;
    }
    Errors dk, dv;
    for (std::size_t at = 0; at < columns.dk.size(); ++at) {
        dk.add(both * columns.dk[at], both * columns.dk_parts[at]);
        dv.add(both * columns.dv[at], both * columns.dv_parts[at]);
    }
    dk.own = both * columns.dk_own;
    dv.own = both * columns.dv_own;
    bounds.dk = dk.bound(std::accumulate(dk_.begin(), dk_.end(), 0.0), largest_dk_, head_dim, crest_of(inputs.q));
    bounds.dv = dv.bound(std::accumulate(dv_.begin(), dv_.end(), 0.0), largest_dv_, value_dim, crest_of(inputs.dout));
    return bounds;
}

}  // namespace ringlab::reference
