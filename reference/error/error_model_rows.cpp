#include "reference/attention/visible_tiles.hpp"
#include "reference/error/error_model_parts.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/counts.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

// What the inputs have, row by row: sums over the keys that a row sees.

namespace ringlab::reference {

std::size_t ErrorModel::row_index(std::int64_t batch, std::int64_t head, std::size_t row) const {
    return size(batch * problem_.query_heads + head) * rows_.size() + row;
}

void ErrorModel::measure_rows(const Inputs& inputs, const SampledRows& rows) {
    largest_o_ = largest_of(rows.o.data(), rows.o.size());
    largest_lse_ = largest_of(rows.lse.data(), rows.lse.size());
    largest_dq_ = largest_of(rows.dq.data(), rows.dq.size());
    const auto q = take_rows(problem_, inputs.q, rows_), dout = take_rows(problem_, inputs.dout, rows_);
    const auto heads = size(problem_.query_heads), width = rows.o.shape(3);
    row_.resize(size(problem_.batch) * heads * rows_.size());
    if (is_narrow(problem_.dtype)) o_.resize(row_.size() * width);
    for (std::size_t b = 0; b < size(problem_.batch); ++b)
        for (std::size_t h = 0; h < heads; ++h)
            for (std::size_t r = 0; r < rows_.size(); ++r) {
                const auto at = row_index(static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), r);
                auto& row = row_[at];
                const auto* o = &rows.o(b, r, h, 0);
                const auto* doutput = &dout(b, r, h, 0);
                const auto o_norms = norms_of(o, width), dout_norms = norms_of(doutput, dout.shape(3));
                row.o = o_norms.two;
                row.o4 = o_norms.four;
                row.dout = dout_norms.two;
                row.dout4 = dout_norms.four;
                row.largest_dout = dout_norms.largest;
                row.dq = norms_of(&rows.dq(b, r, h, 0), rows.dq.shape(3)).two;
                row.lse = rows.lse(b, r, h);
                row.delta = std::inner_product(o, o + width, doutput, 0.0);
                if (!o_.empty()) std::copy_n(o, width, &o_[at * width]);
            }
    measure_pairs(inputs, q, dout);
}

void ErrorModel::measure_pairs(const Inputs& inputs, const Tensor& q, const Tensor& dout) {
    const auto q_norms = norms_of(q), k_norms = norms_of(inputs.k), v_norms = norms_of(inputs.v);
    const Roundings roundings{static_cast<double>(problem_.head_dim), static_cast<double>(problem_.value_dim),
                              problem_.soft_cap, square(unit_of(accumulator_of(problem_.dtype)))};
    const double scale = problem_.effective_scale(), step = square(subnormal_to_unit(problem_.dtype));
    const double e2 = roundings.e2;
    const bool narrow = is_narrow(problem_.dtype);
    const Tensor k2 = narrow ? Tensor(inputs.k * inputs.k) : Tensor(),
                 v2 = narrow ? Tensor(inputs.v * inputs.v) : Tensor();
    struct Largest {
        double p = 0, v = 0, dp = 0;
        std::int64_t key = 0;
    };
    struct OwnErrors {  // sums of var(p) (1 - p)^2 |d v|^2, var(p) (1 - p), and var(p) (1 - p) p |d v|^2
        double v = 0, p = 0, pv = 0;
    };
    std::vector<Largest> largest(row_.size());
    std::vector<OwnErrors> own(row_.size());
    const bool drops = problem_.dropout.drops();
    const auto head_dim = problem_.head_dim, value_dim = problem_.value_dim;
    mean_key_.resize(row_.size() * size(head_dim));
    if (narrow) dsk_.resize(mean_key_.size());
    if (narrow) pv_.resize(row_.size() * size(value_dim));
    std::vector<double> p2;  // of a tile, with dropout
    of_keys_.resize(operands_.size());
    // Of each row, so far: where p is rounded it is relative to this one's.
    std::vector<double> largest_score(narrow ? row_.size() : 0, -std::numeric_limits<double>::infinity());
    const auto heads = size(problem_.query_heads), kv_heads = size(problem_.kv_heads);
    for_each_tile(
        problem_, mask_, rows_, all_positions(problem_.tokens), q, dout, inputs.k, inputs.v, [&](const Pairs& tile) {
            p2.assign(narrow ? size(tile.s.rows * tile.s.columns) : 0, 0);
            const Matrix of_p2{p2.data(), tile.s.rows, tile.s.columns, tile.s.columns};
            for (std::int64_t r = 0; r < tile.s.rows; ++r) {
                const auto at = row_index(tile.batch, tile.query_head, size(tile.first_row + r));
                auto& row = row_[at];
                const auto q4 = q_norms[(size(tile.batch) * rows_.size() + size(tile.first_row + r)) * heads +
                                        size(tile.query_head)]
                                    .four;
                double *s = tile.s.row(r), *dps = tile.dp.row(r);
                if (narrow) largest_score[at] = std::max(largest_score[at], *std::max_element(s, s + tile.s.columns));
                for (std::int64_t c = 0; c < tile.s.columns; ++c) {
                    if (std::isinf(s[c])) {
                        s[c] = dps[c] = 0;
                        continue;
                    }
                    const auto key = (size(tile.batch) * size(problem_.tokens) + size(tile.first_key + c)) * kv_heads +
                                     size(tile.kv_head);
                    const auto &k = k_norms[key], &v = v_norms[key];
                    const auto& operands = of_operands(tile.batch, tile.kv_head, tile.first_key + c);
                    const double p = std::exp(s[c] - row.lse), dp = dps[c];
                    const double factor = tile.dropped.row(r)[c], value = square(factor) * v.two;
                    const double slope = slope_of_cap(problem_, s[c]), ahead = dp - row.delta, ds = p * ahead * slope;
                    const double of_score = roundings.of_score(s[c], scale, q4, k.four, operands.k4);
                    const double of_log_p = of_score + roundings.of_exponent(s[c] - row.lse);
                    const double of_p = error_of_p(p, of_log_p), others = std::max(0.0, 1 - p);
                    const double of_dp =
                        square(factor) * roundings.of_dp(of_kept(dp, factor), row.dout4, v.four, operands.v4);
                    if (p > largest[at].p) largest[at] = {p, value, dp, tile.first_key + c};
                    row.keys += 1;
                    row.mass += p;
                    row.mass2 += square(p);
                    row.values += p * value;
                    row.largest_value = std::max(row.largest_value, value);
                    row.all_values += value;
                    row.dp_spread += p * square(ahead);
                    row.dp_walk += square(p * ahead);
                    row.all_dp += square(dp);
                    row.pv_all += square(p) * value;
                    row.pdp += square(p * dp);
                    row.dsk += square(ds) * k.two;
                    row.scores_lse += p * variance_of_exp(of_log_p);
                    row.largest_score = std::max(row.largest_score, of_log_p);
                    own[at].v += of_p * square(others) * value;
                    own[at].p += of_p * others;
                    own[at].pv += of_p * others * p * value;
                    row.scores_o += square(p * factor) * operands.v;
                    row.scores_delta += of_p * square(ahead) + square(p * factor) * row.dout4 * operands.v4;
                    const double of_ds = of_p * square(ahead * slope) + 4 * e2 * square(ds) +
                                         (square(p) + of_p) * (square(slope) * of_dp +
                                                               square(ahead) * roundings.of_slope(s[c], of_score));
                    row.scores_dq += of_ds * k.two + square(ds) * operands.k;
                    row.lost_dq += (1 + square(ahead)) * k.two;
                    if (!of_keys_.empty()) {
                        auto& of_key = of_keys_[operand_index(tile.batch, tile.kv_head, tile.first_key + c)];
                        of_key.p += square(p * factor);
                        of_key.score += square(p * others);
                        of_key.lse += square(p);
                        of_key.ds += square(ds) * k.two;
                    }
                    if (narrow) {
                        const double relative = factor * std::exp(s[c] - largest_score[at]);
                        const double to_p = std::exp(largest_score[at] - row.lse);
                        row.p.add(relative * to_p, rounded(relative, problem_.dtype) * to_p);
                        row.ds.add(ds, rounded(ds, problem_.dtype));
                    }
                    s[c] = p * slope;
                    dps[c] = square(ds) + step;
                    if (narrow) of_p2.row(r)[c] = square(factor * p);
                }
            }
            const auto first = row_index(tile.batch, tile.query_head, size(tile.first_row));
            const auto add_product = [&](const Matrix& of_pairs, const Tensor& of_keys, std::vector<double>& to) {
                const auto dim = static_cast<std::int64_t>(of_keys.shape(3));
                multiply_add(1, of_pairs, head_view(of_keys, tile.batch, tile.kv_head, tile.first_key, tile.s.columns),
                             Matrix{to.data() + first * size(dim), tile.s.rows, dim, dim});
            };
            add_product(tile.s, inputs.k, mean_key_);
            if (!narrow) return;
            add_product(tile.dp, k2, dsk_);
            add_product(of_p2, v2, pv_);
        });
    for (std::size_t at = 0; at < row_.size(); ++at) {
        auto& row = row_[at];
        const auto& exact = drops ? Largest{} : largest[at];  // a factor that is no power of 2 leaves none exact
        row.mean_key = norms_of(mean_key_.data() + at * size(head_dim), size(head_dim)).two;
        row.pdp = std::max(0.0, row.pdp - square(exact.p * exact.dp)) + step * square(largest[at].p) * row.all_dp;
        if (narrow) {
            const auto head = static_cast<std::int64_t>(at / rows_.size());
            const auto h = head % problem_.query_heads / problem_.query_heads_per_kv_head();
            const auto v = head_view(inputs.v, head / problem_.query_heads, h, exact.key, 1),
                       squares = head_view(v2, head / problem_.query_heads, h, exact.key, 1);
            for (std::size_t d = 0; d < size(value_dim); ++d) {
                const auto element = at * size(value_dim) + d;
                pv_[element] = std::max(0.0, pv_[element] - square(exact.p) * squares.data[d]);
                row.o_of_rounded += square(o_[element] - exact.p * v.data[d]);
            }
            row.delta_of_rounded = row.delta - exact.p * exact.dp;
            row.pv_lost = step * square(largest[at].p) * row.all_values;
        }
        // An error of p moves o by that times d v - o = (1 - p) (d v - o'), o' being the mean of all other keys; by
        // Cauchy and Schwarz (1 - p) |o'|^2 is at most the sum of their p |d v|^2.
        row.scores_o += 2 * (own[at].v + std::max(0.0, own[at].p * row.values - own[at].pv));
    }
}

}  // namespace ringlab::reference
