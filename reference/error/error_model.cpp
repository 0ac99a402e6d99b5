#include "reference/error/error_model.hpp"

#include "layouts/basics/require.hpp"
#include "reference/error/error_terms.hpp"
#include "reference/features/dropout_factors.hpp"
#include "reference/features/latent.hpp"
#include "reference/tensors/blas.hpp"
#include "reference/tensors/rounding.hpp"

#include <array>
#include <limits>
#include <span>

namespace ringlab::reference {
namespace {

using Measured = ErrorModel::Measured;

/// A tile of rows x keys of one head: scores s (-inf for hidden pairs), the dropout factors `dropped` of p, and dp =
/// dO.v times these factors.
struct Pairs {
    std::int64_t batch, query_head, kv_head;
    std::int64_t first_row, first_key;
    Matrix s, dp, dropped;
};

/// Calls `visit` for every tile of rows x keys that has a visible pair, for all heads and batch elements. rows[i] (a
/// global position) is token i of q and dout, keys[j] is token j of k and v. The numbers of a tile are valid until
/// `visit` returns; it may overwrite them.
template <class Visit>
void for_each_tile(const layouts::Problem& problem, const layouts::Mask& mask, const std::vector<std::int64_t>& rows,
                   const std::vector<std::int64_t>& keys, const Tensor& q, const Tensor& dout, const Tensor& k,
                   const Tensor& v, Visit visit) {
    constexpr std::int64_t side = 256;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto row_count = static_cast<std::int64_t>(rows.size()), key_count = static_cast<std::int64_t>(keys.size());
    std::vector<double> s_storage(size(side * side)), dp_storage(size(side * side)),
        dropped_storage(size(side * side), 1);
    const DropoutFactors dropout_factors(problem.dropout);
    std::vector<char> visible(size(side * side));
    std::vector<char> valid;
    for (const auto key : keys) valid.push_back(mask.key_is_valid(key));
    for (std::int64_t i = 0; i < row_count; i += side)
        for (std::int64_t j = 0; j < key_count; j += side) {
            const auto height = std::min(side, row_count - i), width = std::min(side, key_count - j);
            bool any = false;
            for (std::int64_t r = 0; r < height; ++r) {
                const auto seen = mask.row(rows[size(i + r)]);
                for (std::int64_t c = 0; c < width; ++c) {
                    const bool is = seen.contains(keys[size(j + c)]) && valid[size(j + c)];
                    visible[size(r * side + c)] = is;
                    any |= is;
                }
            }
            if (!any) continue;
            const Matrix s{s_storage.data(), height, width, side}, dp{dp_storage.data(), height, width, side};
            const Matrix dropped{dropped_storage.data(), height, width, side};
            for (std::int64_t b = 0; b < problem.batch; ++b)
                for (std::int64_t h = 0; h < problem.query_heads; ++h) {
                    const auto g = h / problem.query_heads_per_kv_head();
                    multiply(problem.effective_scale(), head_view(q, b, h, i, height),
                             transpose(head_view(k, b, g, j, width)), s);
                    multiply(1, head_view(dout, b, h, i, height), transpose(head_view(v, b, g, j, width)), dp);
                    for (std::int64_t r = 0; r < height; ++r) {
                        if (dropout_factors.drops())
                            dropout_factors.draw(std::span(dropped.row(r), size(width)),
                                                 std::span(keys).subspan(size(j), size(width)),
                                                 {b, h, rows[size(i + r)]});
                        for (std::int64_t c = 0; c < width; ++c) {
                            dp.row(r)[c] *= dropped.row(r)[c];
                            auto& score = s.row(r)[c];
                            if (problem.soft_cap > 0) score = problem.soft_cap * std::tanh(score / problem.soft_cap);
                            if (!visible[size(r * side + c)]) score = -infinity;
                        }
                    }
                    visit(Pairs{b, h, g, i, j, s, dp, dropped});
                }
        }
}

/// Calls visit(pair, operands of the row, row, key, row's largest score in the tile) for all visible pairs, where row
/// and key are indices in the orders (batch, row, query head) and (batch, key, kv head). visit returns three numbers of
/// which end(tile, third) gets matrices, in tile.s, tile.dp and `third`; they are 0 for hidden pairs.
template <class Visit, class End>
void for_each_pair(const Measured& m, const RowStatistics& rows, const Tensor& q, const Tensor& dout,
                   const std::vector<std::int64_t>& keys, const Tensor& k, const Tensor& v, Visit visit, End end) {
    const auto q_norms = norms_of(q), dout_norms = norms_of(dout);
    const auto heads = size(m.problem.query_heads), groups = size(m.problem.kv_heads);
    std::vector<double> storage;
    for_each_tile(m.problem, m.mask, rows.rows, keys, q, dout, k, v, [&](const Pairs& tile) {
        storage.assign(size(tile.s.rows * tile.s.columns), 0);
        const Matrix third{storage.data(), tile.s.rows, tile.s.columns, tile.s.columns};
        const auto batch = size(tile.batch), group = size(tile.kv_head);
        for (std::int64_t r = 0; r < tile.s.rows; ++r) {
            const auto row = (batch * rows.rows.size() + size(tile.first_row + r)) * heads + size(tile.query_head);
            const RowOperands operands{rows.lse.data()[row], rows.delta.data()[row], q_norms[row], dout_norms[row]};
            double *s = tile.s.row(r), *dp = tile.dp.row(r);
            const double largest = *std::max_element(s, s + tile.s.columns);
            for (std::int64_t c = 0; c < tile.s.columns; ++c) {
                const auto key = size(tile.first_key + c);
                const auto token = (batch * size(m.problem.tokens) + size(keys[key])) * groups + group;
                std::array<double, 3> numbers{};
                if (!std::isinf(s[c]))
                    numbers =
                        visit(m.arithmetic.pair(operands, m.k[token], m.v[token], s[c], dp[c], tile.dropped.row(r)[c]),
                              operands, row, (batch * keys.size() + key) * groups + group, largest);
                s[c] = numbers[0];
                dp[c] = numbers[1];
                third.row(r)[c] = numbers[2];
            }
        }
        end(tile, third);
    });
}

/// to += of_pairs * of_keys for the rows of a tile.
void add_to_rows(const Pairs& tile, const Matrix& of_pairs, const Tensor& of_keys, Tensor& to) {
    multiply_add(1, of_pairs, head_view(of_keys, tile.batch, tile.kv_head, tile.first_key, of_pairs.columns),
                 head_view(to, tile.batch, tile.query_head, tile.first_row, of_pairs.rows));
}

/// to += of_pairs^T * of_rows for the keys of a tile.
void add_to_keys(const Pairs& tile, const Matrix& of_pairs, const Tensor& of_rows, Tensor& to) {
    multiply_add(1, transpose(of_pairs), head_view(of_rows, tile.batch, tile.query_head, tile.first_row, of_pairs.rows),
                 head_view(to, tile.batch, tile.kv_head, tile.first_key, of_pairs.columns));
}

/// Variances that the roundings of the accumulator cause in the results of a row.
struct WideErrors {
    double o = 0, lse = 0, delta = 0, dq = 0;
};

WideErrors wide_errors(const Arithmetic& a, const Row& row, double mean_key2, double merges, bool sinks) {
    // How many times the running maximum grows over n keys, so that the sums are rescaled: fewer than n times, and for
    // scores in random order (records) at most log n plus 5 standard deviations, sqrt(log n) each.
    const double records = std::log(row.keys), rescaled = std::min(row.keys - 1, records + 5 * std::sqrt(records));
    // Square of the largest |lse| of any partial result that matters.
    const double size2 = square(std::abs(row.lse) - std::log(std::max(row.mass, 1e-300)) + 1);
    const double sums = a.e2 * a.sum_roundings(row.keys), of_exp = Arithmetic::exp_roundings;
    const double of_total = row.keys / 2 * (1 + row.mass2);  // the softmax's denominator

    // Relative errors of a rescaling or merge, which all keys seen before share, and of a sink. If these keys get more
    // weight and later ones less, o and delta change by at most half of their spread, and for many keys in random order
    // by a random walk.
    const double regrouped = a.e2 * (rescaled * (of_exp + 1) + merges * (2 * size2 + of_exp + 6));
    const double regrouped_o = std::min(row.values / 4, 2 * (row.pv + row.mass2 * row.o.two));
    const double regrouped_delta = std::min(row.dp_spread / 4, row.dp_walk);
    const double by_sink = sinks ? a.e2 * (3 * size2 + of_exp + 3) : 0;

    // Variance of an element of o: sums, division by the denominator, rescaling, merging.
    const double elements = sums * (row.pv + row.o.two) +
                            a.e2 * (row.pv + (of_total + 3) * row.o.two + 2 * rescaled * (row.pv + row.o.two) +
                                    9 * merges * row.largest_value) +
                            a.lost * a.value_dim;
    WideErrors errors;
    errors.o = std::min(row.scores_o + elements + regrouped * regrouped_o + by_sink * row.o.two, 4 * row.largest_value);
    errors.lse = std::min(row.scores_lse, row.largest_score) + regrouped + by_sink +
                 a.e2 * ((2 + 2 * merges) * size2 + of_exp * (1 + square(records)) + of_total);
    errors.delta = row.scores_delta + elements * square(row.dout.largest) + regrouped * regrouped_delta +
                   by_sink * square(row.delta) +
                   a.e2 * a.value_dim / 2 * (square(row.delta) + row.dout.four * row.o.four) + a.lost * a.value_dim;
    errors.dq = a.scale2 * (row.scores_dq + errors.delta * mean_key2) +
                (sums + 2 * a.e2) * (a.scale2 * row.dsk + row.dq.two) + variance_of_exp(errors.lse) * row.dq.two +
                a.lost * (1 + a.scale2) * a.head_dim;
    return errors;
}

/// Errors of the sample's rows, and variances of the delta and lse of all rows of the statistics.
struct RowErrors {
    Errors o, o_unrounded, lse, dq;
    Lse delta_narrow, delta_wide, lse_wide;
    double of_factor = 0;  // known relative error of o
};

/// Variances of dk and dv of all heads: of each element by roundings to 16 bits, of each column by the accumulator.
struct ColumnErrors {
    Tensor dk, dv;
    Lse dk_wide, dv_wide;
};

/// Values of rows of the sample, extended to all rows of the statistics: each gets the value of the nearest sampled
/// row.
Lse at_statistics(const Measured& m, const Lse& of_rows) {
    const auto& from = m.rows.rows;
    Lse result(m.statistics.lse.shape());
    for (std::size_t r = 0; r < m.statistics.rows.size(); ++r) {
        const auto position = m.statistics.rows[r];
        auto after = std::ranges::lower_bound(from, position);
        if (after == from.end() || (after != from.begin() && *after - position > position - *(after - 1))) --after;
        for (std::size_t b = 0; b < result.shape(0); ++b)
            for (std::size_t h = 0; h < result.shape(2); ++h)
                result(b, r, h) = of_rows(b, static_cast<std::size_t>(after - from.begin()), h);
    }
    return result;
}

RowErrors row_errors(const Measured& m, const Inputs& inputs, const layouts::Schedule& forward,
                     bool round_running_output) {
    const auto& a = m.arithmetic;
    const auto arrivals = arrivals_of(m, inputs, forward, round_running_output);
    const bool sinks = !m.problem.sinks.empty(), rounds = arrivals.o.size() > 0;
    const auto mean_keys = norms_of(m.mean_key);
    RowErrors errors;
    Lse delta_narrow(m.rows.lse.shape()), delta_wide(m.rows.lse.shape()), lse_wide(m.rows.lse.shape());
    // If p is rounded, the largest p that a row has seen so far is exactly 1 times the dropout factor. Each result that
    // is merged has such a p, with the same rounding error.
    const double factor = m.problem.dropout.factor();
    const bool merged = rounds || std::ranges::any_of(arrivals.merges, [](double count) { return count > 0; });
    if (a.narrow && merged) errors.of_factor = std::abs(rounded(factor, a.dtype) / factor - 1);
    const double in_common = std::max(m.rounded_p.in_common(a.u) * a.u, errors.of_factor);
    const auto value_dim = size(m.problem.value_dim), head_dim = size(m.problem.head_dim);
    for (std::size_t at = 0; at < m.row.size(); ++at) {
        const auto& row = m.row[at];
        // A row that sees no key has o = 0 and the lse of the sink.
        const double merges = std::min(arrivals.merges.data()[at], row.keys - 1);
        const auto wide = row.keys > 0 ? wide_errors(a, row, mean_keys[at].two, merges, sinks)
                                       : WideErrors{.lse = sinks ? a.e2 * square(row.lse) : 0};
        // A single partial result is the output and is already rounded, and so is a running output. A sink changes
        // them, so its result is rounded again.
        const bool is_rounded = (rounds && arrivals.blocks.data()[at] == 1) || round_running_output;
        const bool arrives = arrivals.as_messages && !is_rounded, is_rounded_last = sinks || !is_rounded;
        const double delta = a.u2 * row.pdp + square(in_common * (std::abs(row.delta) + 3 * std::sqrt(row.pdp))) +
                             (rounds ? arrivals.delta.data()[at] : 0) +
                             arrives * a.u2 * (row.dout.four * row.o.four + row.dout.two * a.step);
        Squares o, o_unrounded, dq;
        for (auto d = at * value_dim; a.narrow && d < (at + 1) * value_dim; ++d) {
            const double of_o = a.u2 * (square(m.o.data()[d]) + a.step);
            const double unrounded = a.u2 * m.pv.data()[d] + (rounds ? arrivals.o.data()[d] : 0) + arrives * of_o;
            o_unrounded.add(unrounded);
            o.add(unrounded + is_rounded_last * of_o);
        }
        for (auto d = at * head_dim; a.narrow && d < (at + 1) * head_dim; ++d)
            dq.add(a.scale2 * (a.u2 * m.dsk.data()[d] + delta * square(m.mean_key.data()[d])));
        errors.o_unrounded.add(o_unrounded, wide.o);
        errors.o.add(o, wide.o);
        errors.lse.add({}, wide.lse);
        errors.dq.add(dq, wide.dq);
        delta_narrow.data()[at] = delta;
        delta_wide.data()[at] = wide.delta;
        lse_wide.data()[at] = wide.lse;
    }
    errors.delta_narrow = at_statistics(m, delta_narrow);
    errors.delta_wide = at_statistics(m, delta_wide);
    errors.lse_wide = at_statistics(m, lse_wide);
    return errors;
}

ColumnErrors column_errors(const Measured& m, const Inputs& inputs, const RowErrors& rows) {
    const auto& a = m.arithmetic;
    const auto q = take_rows(m.problem, inputs.q, m.statistics.rows),
               dout = take_rows(m.problem, inputs.dout, m.statistics.rows);
    const auto k = take_tokens(inputs.k, m.columns), v = take_tokens(inputs.v, m.columns);
    const Tensor q2 = q * q, dout2 = dout * dout;
    const Lse zeros({k.shape(0), k.shape(1), k.shape(2)}, 0.0);
    ColumnErrors columns{Tensor(k.shape(), 0.0), Tensor(v.shape(), 0.0), zeros, zeros};
    struct Sums {  // over the rows that see a column: how many, and squared terms of dk and dv
        double rows = 0, ds2 = 0, p2 = 0;
    };
    std::vector<Sums> sums(zeros.size());
    for_each_pair(
        m, m.statistics, q, dout, m.columns, k, v,
        [&](const Pair& pair, const RowOperands& operands, std::size_t row, std::size_t key, double) {
            const double of_q = a.scale2 * operands.q.two, of_dout = operands.dout.two;
            const double ds2 = square(pair.ds), p2 = square(pair.factor * pair.p),
                         weight2 = square(pair.p * pair.slope);
            const double of_lse = variance_of_exp(rows.lse_wide.data()[row]);
            columns.dk_wide.data()[key] += of_q * (pair.of_ds + ds2 * of_lse + weight2 * rows.delta_wide.data()[row]);
            columns.dv_wide.data()[key] += of_dout * (square(pair.factor) * pair.of_p + p2 * of_lse);
            sums[key].rows += 1;
            sums[key].ds2 += of_q * ds2;
            sums[key].p2 += of_dout * p2;
            return std::array{a.scale2 * (a.u2 * (ds2 + a.step) + weight2 * rows.delta_narrow.data()[row]),
                              pair.factor == 0 ? 0 : a.u2 * (p2 + a.step), 0.0};
        },
        [&](const Pairs& tile, const Matrix&) {
            if (!a.narrow) return;
            add_to_keys(tile, tile.s, q2, columns.dk);
            add_to_keys(tile, tile.dp, dout2, columns.dv);
        });
    const auto dk_norms = norms_of(m.dk), dv_norms = norms_of(m.dv);
    for (std::size_t key = 0; key < sums.size(); ++key) {
        const double of_sum = a.e2 * (a.sum_roundings(sums[key].rows) + 2), lost = sums[key].rows * a.lost;
        columns.dk_wide.data()[key] +=
            of_sum * (sums[key].ds2 + dk_norms[key].two) + lost * (1 + a.scale2) * a.head_dim;
        columns.dv_wide.data()[key] += of_sum * (sums[key].p2 + dv_norms[key].two) + lost * a.value_dim;
    }
    return columns;
}

/// Bound of ds = -sum over rows of exp(s - lse) delta. Rows that are not in the statistics are assumed to be like those
/// that are.
Bound sink_bound(const Measured& m, const RowErrors& rows) {
    const auto& a = m.arithmetic;
    const auto heads = m.problem.sinks.size();
    const auto terms = static_cast<double>(m.statistics.lse.size() / heads);
    Errors errors;
    Squares expected;
    for (std::size_t h = 0; h < heads; ++h) {
        const double sink = m.problem.sinks[h];
        if (std::isinf(sink)) continue;  // the head has none
        double gradient = 0, narrow = 0, wide = 0, squares = 0;
        for (std::size_t at = h; at < m.statistics.lse.size(); at += heads) {
            const double x = sink - m.statistics.lse.data()[at], delta = m.statistics.delta.data()[at];
            const double p = std::exp(x), of_x = 2 * a.e2 * square(sink) + rows.lse_wide.data()[at] + a.of_exponent(x);
            gradient -= p * delta;
            squares += square(p * delta);
            narrow += square(p) * rows.delta_narrow.data()[at];
            wide += square(p) * rows.delta_wide.data()[at] + a.of_p(p, of_x) * square(delta) + terms * a.lost;
        }
        errors.add({narrow, narrow}, wide + a.e2 * (terms / 2 + 1) * (squares + square(gradient)));
        expected.add(square(gradient));
    }
    return errors.bound(expected);
}

/// Bounds of the gradients of the latent and of its matrices, which are sums of products of dk and dv of all heads with
/// the matrices and with the latent. `travelling`: variances of the latent's gradient by roundings of its messages;
/// `of_heads`: errors of dk and dv.
void set_latent_bounds(const Measured& m, const ColumnErrors& columns, const Tensor& travelling, const Errors& of_heads,
                       double in_common, Bounds& bounds) {
    const auto& a = m.arithmetic;
    const auto terms =
        static_cast<double>(std::max(m.problem.kv_heads * m.given.expanded_dim(), m.problem.batch * m.problem.tokens));
    const double sums = a.e2 * (a.sum_roundings(terms) + 1);
    // dk and dv are rounded to 16 bits and summed; errors of the accumulator are divided equally among elements.
    const auto variances = [&](const Tensor& gradient, const Tensor& narrow, const Lse& wide) {
        Tensor elements = narrow + (a.u2 + sums) * gradient * gradient + a.u2 * a.step;
        const auto dim = gradient.shape(3);
        for (std::size_t at = 0; at < elements.size(); ++at)
            elements.data()[at] += wide.data()[at / dim] / static_cast<double>(dim);
        return elements;
    };
    Outputs expected, squares;
    expected.dk = m.dk;
    expected.dv = m.dv;
    compress(m.given, *m.made_of, expected);
    squares.dk = variances(m.dk, columns.dk, columns.dk_wide);
    squares.dv = variances(m.dv, columns.dv, columns.dv_wide);
    compress(m.given, {{}, m.made_of->k * m.made_of->k, m.made_of->v * m.made_of->v, {}}, squares);
    if (travelling.size() > 0) squares.dk += travelling;
    const auto bound_of = [&](const Tensor& result, const Tensor& of_result) {
        Errors errors;
        errors.add(of_result + sums * result * result + a.lost * terms,
                   Lse({result.shape(0), result.shape(1), result.shape(2)}, 0.0));
        errors.share(of_heads);
        return errors.bound(squares_of(result), in_common, a.u);
    };
    bounds.dk = bound_of(expected.dk, squares.dk);
    bounds.dv = bound_of(expected.dv, squares.dv);
}

}  // namespace

ErrorModel::Measured::Measured(const layouts::Problem& of, const layouts::Mask& under, const Inputs& inputs,
                               const SampledRows& sample, const SampledColumns& sampled_columns, RowStatistics all_rows,
                               const Inputs* latent)
    : given(of),
      problem(of.expanded()),
      mask(under),
      made_of(of.latent.is_given() ? latent : nullptr),
      arithmetic(problem),
      columns(sampled_columns.columns),
      statistics(std::move(all_rows)),
      o(sample.o),
      pv(sample.o.shape(), 0.0),
      dsk(sample.dq.shape(), 0.0),
      mean_key(sample.dq.shape(), 0.0),
      expected_dq(squares_of(sample.dq)),
      dk(sampled_columns.dk),
      dv(sampled_columns.dv) {
    require(!given.latent.is_given() || made_of, "the error model of a problem with a latent needs the latent");
    const SingleThreadedBlas guard;  // many small products, which threads would make slower
    const auto& a = arithmetic;
    Tensor of_k, of_v;  // variances of K and V that are made of a latent
    if (made_of) {
        // Each element is a sum of `rank` products. It is rounded to 16 bits, perhaps to the other neighbour.
        auto exact = given;
        exact.dtype = layouts::DType::fp64;
        const auto terms = expanded(exact, {{}, made_of->k * made_of->k, made_of->v * made_of->v, {}});
        const double sums = a.e2 * a.sum_roundings(static_cast<double>(given.latent.rank));
        of_k = (a.u2 + sums) * inputs.k * inputs.k + a.u2 * a.step + sums * terms.k;
        of_v = (a.u2 + sums) * inputs.v * inputs.v + a.u2 * a.step + sums * terms.v;
    }
    k = norms_of(inputs.k, of_k);
    v = norms_of(inputs.v, of_v);
    const auto q = take_rows(problem, inputs.q, sample.rows), dout = take_rows(problem, inputs.dout, sample.rows);
    rows = {sample.rows, sample.lse, row_delta(dout, sample.o)};
    const auto o_norms = norms_of(o), dout_norms = norms_of(dout), dq_norms = norms_of(sample.dq);
    for (std::size_t at = 0; at < rows.lse.size(); ++at) {
        auto& to = row.emplace_back();
        to.lse = rows.lse.data()[at];
        to.delta = rows.delta.data()[at];
        to.o = o_norms[at];
        to.dout = dout_norms[at];
        to.dq = dq_norms[at];
    }
    // The largest p of a row is exactly 1 when it is rounded, unless it is divided by what dropout keeps. Kernels that
    // compute p of a tile relative to the maxima of earlier tiles make it exact only in rows that see no full tile.
    constexpr std::int64_t most_keys = 64;
    std::vector<char> is_exact;
    for (const auto position : rows.rows)
        is_exact.push_back(!problem.dropout.drops() && mask.row(position).count() <= most_keys);
    const Tensor k2 = inputs.k * inputs.k, v2 = inputs.v * inputs.v;
    for_each_pair(
        *this, rows, q, dout, all_positions(problem.tokens), inputs.k, inputs.v,
        [&](const Pair& pair, const RowOperands&, std::size_t at, std::size_t key, double largest) {
            auto& to = row[at];
            to.add(pair, k[key], v[key]);
            if (!a.narrow) return std::array{pair.p * pair.slope, 0.0, 0.0};
            to.largest_so_far = std::max(to.largest_so_far, largest);
            const double relative = pair.factor * std::exp(pair.s - to.largest_so_far), kept = pair.factor * pair.p;
            const double to_p = std::exp(to.largest_so_far - to.lse);
            rounded_p.add(relative * to_p, rounded(relative, a.dtype) * to_p);
            rounded_ds.add(pair.ds, rounded(pair.ds, a.dtype));
            rounded_p_of_row.add(kept, rounded(kept, a.dtype));
            const bool exact =
                pair.s == to.largest_so_far && is_exact[at / size(problem.query_heads) % rows.rows.size()];
            const double p2 = exact ? 0 : square(pair.p) + a.step * square(to_p);
            to.pdp += p2 * square(pair.dp);
            return std::array{pair.p * pair.slope, square(pair.ds) + a.step, square(pair.factor) * p2};
        },
        [&](const Pairs& tile, const Matrix& third) {
            add_to_rows(tile, tile.s, inputs.k, mean_key);
            if (!a.narrow) return;
            add_to_rows(tile, tile.dp, k2, dsk);
            add_to_rows(tile, third, v2, pv);
        });
}

ErrorModel::ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                       const Outputs& expected, const Inputs* made_of)
    : measured_(std::make_unique<const Measured>(
          problem, mask, inputs, SampledRows{problem.row_positions(), expected.o, expected.lse, expected.dq},
          SampledColumns{all_positions(problem.tokens), expected.dk, expected.dv},
          RowStatistics{problem.row_positions(), expected.lse, row_delta(inputs.dout, expected.o)}, made_of)) {}

ErrorModel::ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
                       const SampledRows& rows, const SampledColumns& columns, RowStatistics statistics)
    : measured_(
          std::make_unique<const Measured>(problem, mask, inputs, rows, columns, std::move(statistics), nullptr)) {}

ErrorModel::~ErrorModel() = default;

Bounds ErrorModel::bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                          bool round_running_output) const {
    require(forward.options().accumulation == layouts::Accumulation::partials || !round_running_output,
            "the running output can be rounded only with partials, not with carry");
    const SingleThreadedBlas guard;
    const auto& m = *measured_;
    const double u = m.arithmetic.u, of_ds = m.rounded_ds.in_common(u), of_p = m.rounded_p_of_row.in_common(u);
    const auto rows = row_errors(m, inputs, forward, round_running_output);
    Bounds bounds;
    bounds.o = rows.o.bound(squares_of(m.o), m.rounded_p.in_common(u), u);
    bounds.o_unrounded = rows.o_unrounded.bound(squares_of(m.o), m.rounded_p.in_common(u), u);
    for (auto* bound : {&bounds.o, &bounds.o_unrounded}) {
        bound->relative_rms += rows.of_factor;
        bound->max_to_largest += rows.of_factor;
    }
    bounds.lse = rows.lse.bound(squares_of(m.rows.lse));
    if (backward == nullptr) return bounds;
    bounds.dq = rows.dq.bound(m.expected_dq, of_ds, u);
    if (!m.problem.sinks.empty()) bounds.dsinks = sink_bound(m, rows);
    auto columns = column_errors(m, inputs, rows);
    Tensor travelling;
    add_travelling_gradients(m, inputs, *backward, columns.dk, columns.dv, travelling);
    Errors dk, dv;
    dk.add(columns.dk, columns.dk_wide);
    dv.add(columns.dv, columns.dv_wide);
    for (auto* errors : {&dk, &dv}) errors->share(rows.dq);
    if (m.made_of) {
        set_latent_bounds(m, columns, travelling, dk, std::max(of_ds, of_p), bounds);
    } else {
        bounds.dk = dk.bound(squares_of(m.dk), of_ds, u);
        bounds.dv = dv.bound(squares_of(m.dv), of_p, u);
    }
    return bounds;
}

}  // namespace ringlab::reference
