#include "reference/attention/visible_tiles.hpp"
#include "reference/error/error_model_state.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/counts.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

// Sums over the keys that a row sees, for each row of the inputs.

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

inline void ErrorModel::Row::add(const Pair& pair, double value, double k2, const OperandErrors& operands) {
    const double weight = pair.p, ahead = pair.ahead;
    keys += 1;
    mass += weight;
    mass2 += square(weight);
    values += weight * value;
    largest_value = std::max(largest_value, value);
    all_values += value;
    dp_spread += weight * square(ahead);
    dp_walk += square(weight * ahead);
    all_dp += square(pair.dp);
    pv_all += square(weight) * value;
    pdp += square(weight * pair.dp);
    dsk += square(pair.ds) * k2;
    scores_lse += weight * variance_of_exp(pair.of_log_p);
    largest_score = std::max(largest_score, pair.of_log_p);
    scores_o += square(weight * pair.factor) * operands.v;
    scores_delta += pair.of_p * square(ahead) + square(weight * pair.factor) * dout4 * operands.v4;
    scores_dq += pair.of_ds * k2 + square(pair.ds) * operands.k;
    lost_dq += (1 + square(ahead)) * k2;
}

inline void ErrorModel::RowSums::add(const Pair& pair, double value, std::int64_t key) {
    const double p = pair.p, of_p = pair.of_p, others = std::max(0.0, 1 - p);
    if (p > largest.p) largest = {p, pair.dp, key};
    own_v += of_p * square(others) * value;
    own_p += of_p * others;
    own_pv += of_p * others * p * value;
}

inline void ErrorModel::Key::add(const Pair& pair, double k2) {
    p += square(pair.p * pair.factor);
    score += square(pair.p * std::max(0.0, 1 - pair.p));
    lse += square(pair.p);
    ds += square(pair.ds) * k2;
}

void ErrorModel::measure_pairs(const Inputs& inputs, const Tensor& q, const Tensor& dout) {
    const auto q_norms = norms_of(q), k_norms = norms_of(inputs.k), v_norms = norms_of(inputs.v);
    const auto roundings = accumulator_roundings();
    const double scale = problem_.effective_scale(), step = square(subnormal_to_unit(problem_.dtype));
    const bool narrow = is_narrow(problem_.dtype);
    const Tensor k2 = narrow ? Tensor(inputs.k * inputs.k) : Tensor(),
                 v2 = narrow ? Tensor(inputs.v * inputs.v) : Tensor();
    std::vector<RowSums> sums(row_.size());
    mean_key_.resize(row_.size() * size(problem_.head_dim));
    if (narrow) dsk_.resize(mean_key_.size());
    if (narrow) pv_.resize(row_.size() * size(problem_.value_dim));
    std::vector<double> p2;  // of a tile, with dropout
    of_keys_.resize(operands_.size());
    const auto heads = size(problem_.query_heads), kv_heads = size(problem_.kv_heads);
    for_each_tile(
        problem_, mask_, rows_, all_positions(problem_.tokens), q, dout, inputs.k, inputs.v, [&](const Pairs& tile) {
            p2.assign(narrow ? size(tile.s.rows * tile.s.columns) : 0, 0);
            const Matrix of_p2{p2.data(), tile.s.rows, tile.s.columns, tile.s.columns};
            for (std::int64_t r = 0; r < tile.s.rows; ++r) {
                const auto at = row_index(tile.batch, tile.query_head, size(tile.first_row + r));
                auto& row = row_[at];
                auto& largest_score = sums[at].largest_score;
                const auto q4 = q_norms[(size(tile.batch) * rows_.size() + size(tile.first_row + r)) * heads +
                                        size(tile.query_head)]
                                    .four;
                const RowOperands operands_of_row{scale, row.lse, row.delta, q4, row.dout4};
                double *s = tile.s.row(r), *dps = tile.dp.row(r);
                if (narrow) largest_score = std::max(largest_score, *std::max_element(s, s + tile.s.columns));
                for (std::int64_t c = 0; c < tile.s.columns; ++c) {
                    if (std::isinf(s[c])) {
                        s[c] = dps[c] = 0;
                        continue;
                    }
                    const auto token = tile.first_key + c;
                    const auto key =
                        (size(tile.batch) * size(problem_.tokens) + size(token)) * kv_heads + size(tile.kv_head);
                    const auto &k = k_norms[key], &v = v_norms[key];
                    const auto& operands = of_operands(tile.batch, tile.kv_head, token);
                    const auto pair =
                        pair_of(roundings, operands_of_row, k, v, operands, s[c], dps[c], tile.dropped.row(r)[c]);
                    const double value = square(pair.factor) * v.two;
                    row.add(pair, value, k.two, operands);
                    sums[at].add(pair, value, token);
                    if (!of_keys_.empty()) of_keys_[operand_index(tile.batch, tile.kv_head, token)].add(pair, k.two);
                    if (narrow) {
                        const double relative = pair.factor * std::exp(s[c] - largest_score);
                        const double to_p = std::exp(largest_score - row.lse);
                        row.p.add(relative * to_p, rounded(relative, problem_.dtype) * to_p);
                        row.ds.add(pair.ds, rounded(pair.ds, problem_.dtype));
                        of_p2.row(r)[c] = square(pair.factor * pair.p);
                    }
                    s[c] = pair.p * pair.slope;
                    dps[c] = square(pair.ds) + step;
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
    for (std::size_t at = 0; at < row_.size(); ++at) finish_row(at, sums[at], inputs, v2);
}

/// Removes the largest p of a row from the sums over all of its keys if it is not changed by rounding.
void ErrorModel::finish_row(std::size_t at, const RowSums& sums, const Inputs& inputs, const Tensor& v2) {
    auto& row = row_[at];
    const double step = square(subnormal_to_unit(problem_.dtype));
    // With dropout no p is exact, because the dropout factor need not be a power of 2.
    constexpr double most_keys = 64;  // of rows that see no full tile of 80 keys or more
    const bool is_exact = !problem_.dropout.drops() && (largest_p_ == LargestP::exact || row.keys <= most_keys);
    const auto exact = is_exact ? sums.largest : RowSums::Largest{};
    const auto head_dim = size(problem_.head_dim), value_dim = size(problem_.value_dim);
    row.mean_key = norms_of(mean_key_.data() + at * head_dim, head_dim).two;
    row.pdp = std::max(0.0, row.pdp - square(exact.p * exact.dp)) + step * square(sums.largest.p) * row.all_dp;
    if (is_narrow(problem_.dtype)) {
        const auto head = static_cast<std::int64_t>(at / rows_.size());
        const auto h = head % problem_.query_heads / problem_.query_heads_per_kv_head();
        const auto v = head_view(inputs.v, head / problem_.query_heads, h, exact.key, 1),
                   squares = head_view(v2, head / problem_.query_heads, h, exact.key, 1);
        for (std::size_t d = 0; d < value_dim; ++d) {
            const auto element = at * value_dim + d;
            pv_[element] = std::max(0.0, pv_[element] - square(exact.p) * squares.data[d]);
            row.o_of_rounded += square(o_[element] - exact.p * v.data[d]);
        }
        row.delta_of_rounded = row.delta - exact.p * exact.dp;
        row.pv_lost = step * square(sums.largest.p) * row.all_values;
    }
    // An error e of p changes o by e (d v - o) = e (1 - p) (d v - o'), where o' is the mean over all other keys. By
    // Cauchy and Schwarz (1 - p) |o'|^2 is at most the sum of p |d v|^2 over these keys.
    row.scores_o += 2 * (sums.own_v + std::max(0.0, sums.own_p * row.values - sums.own_pv));
}

}  // namespace ringlab::reference
