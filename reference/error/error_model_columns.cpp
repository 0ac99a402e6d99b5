#include "reference/attention/visible_tiles.hpp"
#include "reference/error/error_model_state.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/counts.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

// Errors of dk and dv, column by column, and of the gradient of sinks.

namespace ringlab::reference {

using layouts::DType;

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

/// Values of rows of the sample, extended to all rows of the statistics: each gets the value of the nearest sampled
/// row.
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

/// Squared errors that roundings to 16 bits cause in each element: in dk by rounded ds and by delta, in dv by rounded
/// p. Not used for other types.
struct ErrorModel::NarrowColumns {
    DType dtype;
    bool used;
    double u2, step;                                // squared RMS of a rounding, and that of subnormals
    Tensor q2, dout2;                               // squares
    Tensor dk, dk_by_delta, dv;                     // like k, k and v of the columns
    std::vector<double> of_ds, of_delta, of_p;      // of a tile's pairs
    std::vector<KnownRoundings> known_ds, known_p;  // by row

    NarrowColumns(DType type, std::size_t rows, const Tensor& q, const Tensor& dout, const Tensor& k, const Tensor& v)
        : dtype(type), used(is_narrow(type)), u2(square(unit_of(type))), step(square(subnormal_to_unit(type))) {
        if (!used) return;
        q2 = q * q;
        dout2 = dout * dout;
        dk = dk_by_delta = Tensor(k.shape(), 0.0);
        dv = Tensor(v.shape(), 0.0);
        known_ds.resize(rows);
        known_p.resize(rows);
    }

    void begin(const Pairs& tile) {
        if (!used) return;
        for (auto* of_pairs : {&of_ds, &of_delta, &of_p}) of_pairs->assign(size(tile.s.rows * tile.s.columns), 0);
    }

    void add(std::size_t row, std::size_t at, const Pair& pair, double scale, double delta_narrow) {
        if (!used) return;
        const double kept_p = pair.factor * pair.p;
        of_ds[at] = square(scale) * u2 * (square(pair.ds) + step);
        of_delta[at] = square(scale * pair.p * pair.slope) * delta_narrow;
        of_p[at] = pair.factor == 0 ? 0 : u2 * (square(kept_p) + step);
        known_ds[row].add(pair.ds, rounded(pair.ds, dtype));
        known_p[row].add(kept_p, rounded(kept_p, dtype));
    }

    void end(const Pairs& tile) {
        if (!used) return;
        const auto add_product = [&](std::vector<double>& of_pairs, const Tensor& of_rows, Tensor& to) {
            const auto dim = static_cast<std::int64_t>(to.shape(3)), heads = static_cast<std::int64_t>(to.shape(2));
            const ConstMatrix pairs{of_pairs.data(), tile.s.rows, tile.s.columns, tile.s.columns};
            multiply_add(1, transpose(pairs),
                         head_view(of_rows, tile.batch, tile.query_head, tile.first_row, tile.s.rows),
                         Matrix{&to(size(tile.batch), size(tile.first_key), size(tile.kv_head), 0), tile.s.columns, dim,
                                heads * dim});
        };
        add_product(of_ds, q2, dk);
        add_product(of_delta, q2, dk_by_delta);
        add_product(of_p, dout2, dv);
    }
};

/// Sums over the rows that see a column.
struct ErrorModel::ColumnSums {
    std::vector<double> terms, ds2, p2;    // how many; of squared terms of dk and dv
    std::vector<double> lost_dk, lost_dv;  // by numbers too small for the accumulator

    explicit ColumnSums(std::size_t columns)
        : terms(columns), ds2(columns), p2(columns), lost_dk(columns), lost_dv(columns) {}
};

ErrorModel::Columns ErrorModel::column_errors(const Inputs& inputs, const RowErrors& of_rows) const {
    const auto& rows = statistics_.rows;
    const auto q = take_rows(problem_, inputs.q, rows), dout = take_rows(problem_, inputs.dout, rows);
    const auto k = take_tokens(inputs.k, columns_), v = take_tokens(inputs.v, columns_);
    const auto q_norms = norms_of(q), dout_norms = norms_of(dout), k_norms = norms_of(k), v_norms = norms_of(v);
    const auto delta_narrow = at_statistics(of_rows.delta_narrow), delta_wide = at_statistics(of_rows.delta_wide),
               var_lse = at_statistics(of_rows.var_lse);
    const auto roundings = accumulator_roundings();
    const double scale = problem_.effective_scale();
    const auto kv_heads = size(problem_.kv_heads), heads = size(problem_.query_heads);
    const auto count = size(problem_.batch) * kv_heads * columns_.size();
    ColumnSums sums(count);
    Columns columns{ColumnErrors(count, delta_narrow.size()), ColumnErrors(count, delta_narrow.size()), {}};
    NarrowColumns narrow(problem_.dtype, delta_narrow.size(), q, dout, k, v);
    for_each_tile(problem_, mask_, rows, columns_, q, dout, k, v, [&](const Pairs& tile) {
        narrow.begin(tile);
        for (std::int64_t r = 0; r < tile.s.rows; ++r) {
            const auto row = size(tile.first_row + r);
            const auto b = size(tile.batch), h = size(tile.query_head);
            const auto& qn = q_norms[(b * rows.size() + row) * heads + h];
            const auto& don = dout_norms[(b * rows.size() + row) * heads + h];
            const RowOperands operands_of_row{scale, statistics_.lse(b, row, h), statistics_.delta(b, row, h), qn.four,
                                              don.four};
            const auto head_row = (b * heads + h) * rows.size() + row;
            const double of_lse = variance_of_exp(var_lse[head_row]);
            for (std::int64_t c = 0; c < tile.s.columns; ++c) {
                const double s = tile.s.row(r)[c];
                if (std::isinf(s)) continue;
                const auto column = size(tile.first_key + c);
                const auto key = (b * columns_.size() + column) * kv_heads + size(tile.kv_head);
                const auto at = (b * kv_heads + size(tile.kv_head)) * columns_.size() + column;
                const auto pair = pair_of(roundings, operands_of_row, k_norms[key], v_norms[key],
                                          of_operands(tile.batch, tile.kv_head, columns_[column]), s, tile.dp.row(r)[c],
                                          tile.dropped.row(r)[c]);
                const auto [p, ds, dp, ahead, factor, slope, of_log_p, of_p, of_ds] = pair;
                const double q2 = square(scale) * qn.two, do2 = don.two;
                // Errors of the row's delta and lse are shared by all of its columns.
                const double row_dk = q2 * (square(ds) * of_lse + square(p * slope) * delta_wide[head_row]);
                const double row_dv = do2 * square(factor * p) * of_lse;
                columns.dk.wide[at] += q2 * of_ds + row_dk;
                columns.dk.shared[head_row] += row_dk + q2 * square(p * slope) * delta_narrow[head_row];
                columns.dv.wide[at] += do2 * square(factor) * of_p + row_dv;
                columns.dv.shared[head_row] += row_dv;
                sums.terms[at] += 1;
                sums.ds2[at] += q2 * square(ds);
                sums.p2[at] += do2 * square(factor * p);
                sums.lost_dk[at] += (1 + square(ahead)) * q2;
                sums.lost_dv[at] += square(factor) * do2;
                narrow.add(head_row, size(r * tile.s.columns + c), pair, scale, delta_narrow[head_row]);
            }
        }
        narrow.end(tile);
    });
    add_sum_roundings(sums, columns);
    if (!narrow.used) return columns;
    columns.dk.set_narrow(std::move(narrow.dk), &narrow.dk_by_delta, sums.terms);
    columns.dv.set_narrow(std::move(narrow.dv), nullptr, sums.terms);
    const double unit = unit_of(problem_.dtype);
    columns.dk.set_known(narrow.known_ds, q, square(scale), {unit, largest_dk_},
                         std::accumulate(dk_.begin(), dk_.end(), 0.0));
    columns.dv.set_known(narrow.known_p, dout, 1, {unit, largest_dv_}, std::accumulate(dv_.begin(), dv_.end(), 0.0));
    return columns;
}

/// Adds the errors of summing dk and dv in the accumulator, and of what it loses near 0.
void ErrorModel::add_sum_roundings(const ColumnSums& sums, Columns& columns) const {
    const auto roundings = accumulator_roundings();
    const double scale = problem_.effective_scale(), lost = square(smallest_of(accumulator_of(problem_.dtype)));
    for (std::size_t at = 0; at < sums.terms.size(); ++at) {
        const double terms = sums.terms[at], of_sum = roundings.e2 * (sum_roundings(terms, problem_.dtype) + 2);
        columns.dk.wide[at] += of_sum * (sums.ds2[at] + dk_[at]) +
                               lost * terms * (sums.lost_dk[at] + terms * (1 + square(scale)) * roundings.head_dim);
        columns.dv.wide[at] +=
            of_sum * (sums.p2[at] + dv_[at]) + lost * terms * (sums.lost_dv[at] + terms * roundings.value_dim);
    }
}

ErrorModel::ColumnErrors::ColumnErrors(std::size_t columns, std::size_t rows)
    : narrow(columns), wide(columns), parts(columns), peak(columns), shared(rows) {}

void ErrorModel::ColumnErrors::set_narrow(Tensor by_pairs, const Tensor* common, const std::vector<double>& terms) {
    elements = std::move(by_pairs);
    const auto [batches, tokens, heads, dims] = elements.shape();
    for (std::size_t b = 0; b < batches; ++b)
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t h = 0; h < heads; ++h) {
                const auto column = (b * heads + h) * tokens + t;
                for (std::size_t d = 0; d < dims; ++d) {
                    auto& element = elements(b, t, h, d);
                    const double by_row = common == nullptr ? 0 : (*common)(b, t, h, d);
                    Peak by_terms;
                    by_terms.add(element, terms[column]);
                    peak[column] = std::max(peak[column], by_terms.squared() + square(normal_tail) * by_row);
                    element += by_row;
                    narrow[column] += element;
                }
            }
}

void ErrorModel::ColumnErrors::set_known(const std::vector<KnownRoundings>& roundings, const Tensor& of_rows,
                                         double scale2, KnownErrors errors, double norm) {
    const auto norms = norms_of(of_rows);
    const auto rows = of_rows.shape(1), heads = of_rows.shape(2);
    for (std::size_t at = 0; at < roundings.size(); ++at) {
        const auto b = at / rows / heads, h = at / rows % heads, row = at % rows;
        errors.add(roundings[at], scale2 * norms[(b * rows + row) * heads + h].two * roundings[at].squares());
    }
    known = errors.error(norm);
}

/// Bound of ds = -sum over rows of exp(s - lse) delta. Rows that are not in the statistics are assumed to be like those
/// that are.
Bound ErrorModel::sink_bound(const RowErrors& of_rows) const {
    if (problem_.sinks.empty()) return {};
    const auto accumulator = accumulator_of(problem_.dtype);
    const Roundings roundings{0, 0, 0, square(unit_of(accumulator))};
    const double both = doubled_in_fp64(problem_.dtype), e2 = roundings.e2;
    const auto delta_narrow = at_statistics(of_rows.delta_narrow), delta_wide = at_statistics(of_rows.delta_wide),
               var_lse = at_statistics(of_rows.var_lse);
    const auto rows = statistics_.rows.size(), heads = problem_.sinks.size();
    const auto terms = static_cast<double>(rows * size(problem_.batch));
    Errors errors;
    double norm = 0, largest = 0;
    for (std::size_t h = 0; h < heads; ++h) {
        double gradient = 0, narrow = 0, wide = 0, squares = 0;
        for (std::size_t b = 0; b < size(problem_.batch); ++b)
            for (std::size_t r = 0; r < rows; ++r) {
                const double lse = statistics_.lse(b, r, h), delta = statistics_.delta(b, r, h);
                const auto at = (b * heads + h) * rows + r;
                const double p = std::exp(problem_.sinks[h] - lse), part = p * delta;
                const double of_p = error_of_p(p, 2 * e2 * square(problem_.sinks[h]) + var_lse[at] +
                                                      roundings.of_exponent(problem_.sinks[h] - lse));
                gradient -= part;
                squares += square(part);
                narrow += square(p) * delta_narrow[at];
                wide += square(p) * delta_wide[at] + of_p * square(delta) +
                        square(smallest_of(accumulator)) * terms * (1 + square(delta));
            }
        wide += e2 * (terms / 2 + 1) * (squares + square(gradient));
        errors.add({.narrow = narrow, .wide = both * wide, .peak = square(normal_tail) * narrow});
        norm += square(gradient);
        largest = std::max(largest, std::abs(gradient));
    }
    return errors.bound(norm, largest);
}

}  // namespace ringlab::reference
