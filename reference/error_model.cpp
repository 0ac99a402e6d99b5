#include "reference/error_model.hpp"

#include "layouts/require.hpp"
#include "reference/blas.hpp"
#include "reference/counts.hpp"
#include "reference/dropping.hpp"
#include "reference/latent.hpp"
#include "reference/rounding.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

namespace ringlab::reference {
namespace {

using layouts::DType;

constexpr double square(double x) { return x * x; }
bool is_narrow(DType dtype) { return layouts::bytes_of(dtype) == 2; }

/// RMS of the rounding of a number near 0 to fp16, whose step there is 2^-24, relative to unit_of(fp16). bf16 has
/// fp32's exponents.
double subnormal_to_unit(DType dtype) {
    return dtype == DType::fp16 ? std::exp2(-24) / std::sqrt(12.0) / unit_of(DType::fp16) : 0;
}

struct Norms {
    double two;      // sum of squares
    double four;     // root of the sum of fourth powers
    double largest;  // magnitude
};

Norms norms_of(const double* x, std::size_t count) {
    Norms norms{0, 0, 0};
    for (std::size_t i = 0; i < count; ++i) {
        norms.two += square(x[i]);
        norms.four += square(square(x[i]));
        norms.largest = std::max(norms.largest, std::abs(x[i]));
    }
    norms.four = std::sqrt(norms.four);
    return norms;
}

/// Of every token of every batch element and head, in the tensor's order.
std::vector<Norms> norms_of(const Tensor& tensor) {
    std::vector<Norms> norms;
    const auto dim = tensor.shape(3);
    for (std::size_t at = 0; at < tensor.size(); at += dim) norms.push_back(norms_of(tensor.data() + at, dim));
    return norms;
}

/// How far a token's largest element stands out of its RMS, at most.
double crest_of(const Tensor& tensor) {
    double crest = 1;
    for (const auto& norms : norms_of(tensor))
        if (norms.two > 0)
            crest = std::max(crest, norms.largest * std::sqrt(static_cast<double>(tensor.shape(3)) / norms.two));
    return crest;
}

double largest_of(const double* x, std::size_t count) {
    double largest = 0;
    for (std::size_t i = 0; i < count; ++i)
        if (std::isfinite(x[i])) largest = std::max(largest, std::abs(x[i]));
    return largest;
}

ConstMatrix tokens_view(const Tensor& tensor, std::int64_t batch, std::int64_t head, std::int64_t first,
                        std::int64_t count) {
    const auto dim = static_cast<std::int64_t>(tensor.shape(3));
    const auto stride = static_cast<std::int64_t>(tensor.shape(2)) * dim;
    return {tensor.data() + (batch * static_cast<std::int64_t>(tensor.shape(1)) + first) * stride + head * dim, count,
            dim, stride};
}

/// Positions of `from` that rank owns, as indices into `from` and as positions.
struct Owned {
    std::vector<std::size_t> indices;
    std::vector<std::int64_t> positions;
};
Owned owned(const std::vector<std::int64_t>& positions, const std::vector<std::int64_t>& from) {
    Owned result;
    for (std::size_t i = 0; i < from.size(); ++i)
        if (std::binary_search(positions.begin(), positions.end(), from[i])) {
            result.indices.push_back(i);
            result.positions.push_back(from[i]);
        }
    return result;
}

/// Tokens of a part, without its heads: roundings are taken to be alike for all of them.
using TokensOf = std::tuple<int, std::int64_t, std::int64_t>;

TokensOf tokens_of(const layouts::Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }

/// Their global positions, sorted.
std::vector<std::int64_t> positions_of(const layouts::Schedule& schedule, const TokensOf& tokens) {
    const auto [block, begin, end] = tokens;
    std::vector<std::int64_t> positions;
    for (const auto& run : schedule.runs({block, {}, {begin, end}}))
        for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(run.at(i));
    std::sort(positions.begin(), positions.end());
    return positions;
}

/// Calls visit(rank, operation) for all operations of all ranks.
template <class Visit>
void for_each_op(const layouts::Schedule& schedule, Visit visit) {
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next()) visit(rank, *op);
    }
}

/// By rows: the keys of each normalised part result that is rounded, in the order in which they are merged; no keys
/// stand for all.
std::map<TokensOf, std::vector<std::optional<TokensOf>>> rounded_results(const layouts::Schedule& forward) {
    using layouts::Pool;
    std::map<TokensOf, std::set<std::pair<int, std::optional<TokensOf>>>> by_step;
    for_each_op(forward, [&](int, const layouts::Op& op) {
        if (op.kind != layouts::OpKind::attend || !op.ends || op.slot(Pool::output) == 0) return;
        by_step[tokens_of(op.rows())].emplace(op.step, op.begins ? std::optional(tokens_of(op.part)) : std::nullopt);
    });
    std::map<TokensOf, std::vector<std::optional<TokensOf>>> results;
    for (const auto& [rows, keys] : by_step)
        for (const auto& [step, tokens] : keys) results[rows].push_back(tokens);
    return results;
}

bool output_arrives(const layouts::Schedule& forward) {
    bool arrives = false;
    for_each_op(forward, [&](int, const layouts::Op& op) {
        arrives |= op.kind == layouts::OpKind::receive && op.pool == layouts::Pool::output && op.slot() == 0;
    });
    return arrives;
}

/// Roundings of a sum of `terms` numbers in the accumulator, in units of e^2 times the square of a partial sum.
double sum_roundings(double terms, DType dtype) { return terms / 2 + (is_narrow(dtype) ? square(0.07 * terms) : 0); }

/// Squared errors of a score and of dp, in units of e^2.
struct Roundings {
    double head_dim, value_dim, soft_cap;
    double operands;  // of elements of K and V themselves

    double of_score(double s, double scale, double q4, double k4) const {
        return square(s) + head_dim / 2 * (square(s) + square(scale) * q4 * k4) + square(5.0) +
               of_tanh * square(soft_cap) + operands * square(scale) * q4 * k4;
    }
    // The cap's tanh as 1 - 2 / (1 + e^2x), whose terms are near 1 however small the result: the exponential, within 2
    // units in the last place, counts half at x = 0; then a sum, a quotient within 2 units, a difference.
    // Added after kernels on a device had exceeded the bound of lse without it; the number is not fitted to them.
    static constexpr double of_tanh = 1 + 1 + 4 + 1;
    double of_dp(double dp, double dout4, double v4) const {
        return value_dim / 2 * (square(dp) + dout4 * v4) + operands * dout4 * v4;
    }
};

DType accumulator_of(DType dtype) { return dtype == DType::fp64 ? DType::fp64 : DType::fp32; }

/// A tile of some head: scores with -inf where hidden, what dropout multiplies p by, and dp, multiplied by it.
struct Pairs {
    std::int64_t batch, query_head, kv_head;
    std::int64_t first_row, first_key;
    Matrix s, dp, dropped;
};

/// Calls visit(Pairs) for the visible tiles of rows x keys, which lie at tokens 0, 1, ... of q and dout, and of k and
/// v.
template <class Visit>
void for_each_tile(const layouts::Problem& problem, const layouts::Mask& mask, const std::vector<std::int64_t>& rows,
                   const std::vector<std::int64_t>& keys, const Tensor& q, const Tensor& dout, const Tensor& k,
                   const Tensor& v, Visit visit) {
    constexpr std::int64_t side = 256;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto row_count = static_cast<std::int64_t>(rows.size()), key_count = static_cast<std::int64_t>(keys.size());
    std::vector<double> s_storage(size(side * side)), dp_storage(size(side * side)),
        dropped_storage(size(side * side), 1);
    const Dropping dropping(problem.dropout);
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
                    multiply(problem.effective_scale(), tokens_view(q, b, h, i, height),
                             transpose(tokens_view(k, b, g, j, width)), s);
                    multiply(1, tokens_view(dout, b, h, i, height), transpose(tokens_view(v, b, g, j, width)), dp);
                    for (std::int64_t r = 0; r < height; ++r) {
                        if (dropping.drops())
                            dropping.draw(std::span(dropped.row(r), size(width)),
                                          std::span(keys).subspan(size(j), size(width)), {b, h, rows[size(i + r)]});
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

/// do.v of a pair that is not dropped out, from dp; of another one nothing is asked.
double of_kept(double dp, double factor) { return factor == 0 ? 0 : dp / factor; }

double slope_of_cap(const layouts::Problem& problem, double s) {
    return problem.soft_cap > 0 ? 1 - square(s / problem.soft_cap) : 1;
}

/// How much more than on average a rounding is off at a binade's lower end.
constexpr double worst_mantissa = 1.37;

/// The bound of one result from the expected squared errors of its rows, of `width` elements each.
struct Errors {
    double sum = 0, sum_of_squares = 0, largest = 0;
    double own = 0;  // the largest of one element by roundings of the result's own parts, in proportion to them

    void add(double row) { add(row, 0); }
    /// `of_parts` beside `row`: by the roundings that `own` is of.
    void add(double row, double of_parts) {
        sum += row + of_parts;
        sum_of_squares += square(row + of_parts);
        largest = std::max(largest, row);
    }
    Bound bound(double norm, double largest_expected, double width, double crest) const {
        if (sum == 0) return {};
        if (largest_expected == 0) norm = largest_expected = 1;  // as deviations are counted
        constexpr double largest_of_one_rounding = 2.4, normal_tail = 5.5;
        const double independent = square(sum) / sum_of_squares;
        Bound bound;
        bound.expected = std::sqrt(sum / norm);
        bound.relative_rms = bound.expected * worst_mantissa * (1 + 3 / std::sqrt(2 * independent));
        bound.max_to_largest = (std::max(normal_tail, largest_of_one_rounding * crest) * std::sqrt(largest / width) +
                                normal_tail * std::sqrt(own)) /
                               largest_expected;
        return bound;
    }
};

SampledRows whole_rows(const layouts::Problem& problem, const Outputs& outputs) {
    return {problem.row_positions(), outputs.o, outputs.lse, outputs.dq};
}

}  // namespace

double unit_of(DType dtype) {
    // Mean square of 2^-n/sqrt(3) / x over x in [1, 2) spread evenly in the logarithm: 3 / (8 ln 2).
    const int bits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : dtype == DType::fp32 ? 24 : 53;
    return std::exp2(-bits) * std::sqrt(1 / (8 * std::log(2.0)));
}

/// By (batch, kv head, column): squared norms of expected gradients, and the expected squared errors.
struct ErrorModel::Columns {
    std::vector<double> dk, dv;
    std::vector<double> dk_parts, dv_parts;  // by roundings of gradients that travel, beside the above
    std::vector<double> latent_parts;        // the same of a latent's that travels, by (batch, column)
    double dk_own = 0, dv_own = 0;           // of those, the largest of one element
};

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
                             tokens_view(inputs.k, tile.batch, tile.kv_head, tile.first_key, tile.s.columns), mean);
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

ErrorModel::Blocks ErrorModel::forward_blocks(const Inputs& inputs, const layouts::Schedule& forward,
                                              bool round_running_output) const {
    Blocks blocks{std::vector<double>(row_.size()), std::vector<double>(row_.size()), std::vector<int>(row_.size())};
    const double u2 = square(unit_of(problem_.dtype));
    // Half a step, relative to the number: between 2^-n and 2^-n-1 for n significant bits; 2^-n is 2.36 u.
    const double half_step = 2.36 * unit_of(problem_.dtype) / std::sqrt(2.0);
    const auto width = size(problem_.value_dim);
    std::vector<std::int64_t> all(size(problem_.tokens));
    std::iota(all.begin(), all.end(), 0);
    for (const auto& [rows, results] : rounded_results(forward)) {
        const auto mine = owned(positions_of(forward, rows), rows_);
        if (mine.positions.empty()) continue;
        const auto q = take_rows(problem_, inputs.q, mine.positions),
                   dout = take_rows(problem_, inputs.dout, mine.positions);
        // Of every row: the sum of contributions and of weights so far, and what a running output has lost.
        Tensor total(dout.shape(), 0.0), lost(dout.shape(), 0.0);
        Lse weights({dout.shape(0), dout.shape(1), dout.shape(2)}, 0.0);
        for (const auto& result : results) {
            const auto keys = result ? positions_of(forward, *result) : all;
            const auto k = take_tokens(inputs.k, keys), v = take_tokens(inputs.v, keys);
            Tensor o;
            Lse lse;
            patch_forward({problem_, mask_, mine.positions, keys, q, k, v}, o, lse, {});
            for (std::size_t b = 0; b < o.shape(0); ++b)
                for (std::size_t i = 0; i < o.shape(1); ++i)
                    for (std::size_t h = 0; h < o.shape(2); ++h) {
                        if (std::isinf(lse(b, i, h))) continue;
                        const auto at =
                            row_index(static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), mine.indices[i]);
                        const double weight = std::exp(lse(b, i, h) - row_[at].lse);
                        auto& weight_so_far = weights(b, i, h);
                        const bool first = blocks.count[at]++ == 0;
                        for (std::size_t d = 0; d < width; ++d) {
                            const double part = weight * o(b, i, h, d), before = total(b, i, h, d);
                            const double sum = total(b, i, h, d) = before + part;
                            double variance = square(part);
                            if (round_running_output && !first) {
                                const double move = part - before * weight / weight_so_far;
                                if (std::abs(move) < half_step * std::abs(sum))
                                    lost(b, i, h, d) += move;
                                else
                                    variance += square(sum);
                            }
                            blocks.o[at] += u2 * variance;
                            blocks.delta[at] += u2 * variance * square(dout(b, i, h, d));
                        }
                        weight_so_far += weight;
                    }
        }
        for (std::size_t b = 0; b < lost.shape(0); ++b)
            for (std::size_t i = 0; i < lost.shape(1); ++i)
                for (std::size_t h = 0; h < lost.shape(2); ++h) {
                    const auto at =
                        row_index(static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), mine.indices[i]);
                    const auto* row = &lost(b, i, h, 0);
                    blocks.o[at] += norms_of(row, width).two;
                    blocks.delta[at] += square(std::inner_product(row, row + width, &dout(b, i, h, 0), 0.0));
                }
    }
    return blocks;
}

void ErrorModel::add_gradient_blocks(const Inputs& inputs, const layouts::Schedule& backward, Columns& columns) const {
    const bool latent_travels = made_of_ != nullptr && !backward.keeps(layouts::Pool::dkv);
    const auto travels = latent_travels ? layouts::Pool::dlatent : layouts::Pool::dkv;
    struct Contribution {
        int step;
        TokensOf rows;
        bool rounded;  // leaves its rank in the gradient's dtype
    };
    std::map<TokensOf, std::vector<Contribution>> contributions;  // by keys
    std::set<std::pair<TokensOf, int>> rounded_sums;              // (keys, step) whose sum travels on
    std::set<std::pair<TokensOf, TokensOf>> seen;
    TokensOf attending;  // of the last attend, which a compress comes behind
    for_each_op(backward, [&](int, const layouts::Op& op) {
        const auto keys = tokens_of(op.part);
        if (op.kind == layouts::OpKind::attend) attending = tokens_of(op.rows());
        const bool contributes = op.kind == (latent_travels ? layouts::OpKind::compress : layouts::OpKind::attend);
        if (contributes && seen.emplace(attending, keys).second)
            contributions[keys].push_back({op.step, attending, !op.adds && op.slot(travels) != 0});
        const bool adds = (contributes && op.adds) || (op.kind == layouts::OpKind::add && op.pool == travels);
        if (adds && op.slot(travels) != 0) rounded_sums.emplace(keys, op.step);
    });
    if (latent_travels) columns.latent_parts.resize(size(problem_.batch) * columns_.size());
    const double u2 = square(unit_of(backward.options().gradient_dtype));
    for (auto& [keys, parts] : contributions) {
        const auto mine = owned(positions_of(backward, keys), columns_);
        if (mine.positions.empty()) continue;
        std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
        const auto k = take_tokens(inputs.k, mine.positions), v = take_tokens(inputs.v, mine.positions);
        auto part_problem = given_;
        part_problem.tokens = static_cast<std::int64_t>(mine.positions.size());
        const auto sources =
            latent_travels ? Inputs{{}, take_tokens(made_of_->k, mine.positions), made_of_->v, {}} : Inputs{};
        Tensor dk_sum(latent_travels ? sources.k.shape() : k.shape(), 0.0);
        Tensor dv_sum(latent_travels ? sources.v.shape() : v.shape(), 0.0);
        Tensor dk_squares(dk_sum.shape(), 0.0), dv_squares(dv_sum.shape(), 0.0);
        for (const auto& part : parts) {
            const auto rows = owned(positions_of(backward, part.rows), statistics_.rows);
            if (rows.positions.empty()) continue;
            const auto q = take_rows(problem_, inputs.q, rows.positions),
                       dout = take_rows(problem_, inputs.dout, rows.positions);
            Lse lse({q.shape(0), q.shape(1), q.shape(2)}), delta(lse.shape());
            for (std::size_t b = 0; b < lse.shape(0); ++b)
                for (std::size_t i = 0; i < lse.shape(1); ++i)
                    for (std::size_t h = 0; h < lse.shape(2); ++h) {
                        lse(b, i, h) = statistics_.lse(b, rows.indices[i], h);
                        delta(b, i, h) = statistics_.delta(b, rows.indices[i], h);
                    }
            Tensor dk, dv;
            patch_backward({problem_, mask_, rows.positions, mine.positions, q, k, v}, dout, lse, delta,
                           {.dk = &dk, .dv = &dv}, {});
            if (latent_travels) {
                Outputs gradients;
                gradients.dk = std::move(dk);
                gradients.dv = std::move(dv);
                compress(part_problem, sources, gradients);
                dk = std::move(gradients.dk);
                dv = std::move(gradients.dv);
            }
            if (part.rounded) {
                dk_squares += u2 * dk * dk;
                dv_squares += u2 * dv * dv;
            }
            dk_sum += dk;
            dv_sum += dv;
            if (rounded_sums.contains({keys, part.step})) {
                dk_squares += u2 * dk_sum * dk_sum;
                dv_squares += u2 * dv_sum * dv_sum;
            }
        }
        // A block comes in as many pieces as its tokens and heads are sent in; no element is in two of them.
        const auto take = [&](const Tensor& squares, std::vector<double>& to, double& largest) {
            for (std::size_t b = 0; b < squares.shape(0); ++b)
                for (std::size_t i = 0; i < squares.shape(1); ++i)
                    for (std::size_t g = 0; g < squares.shape(2); ++g) {
                        const auto* element = &squares(b, i, g, 0);
                        to[(b * squares.shape(2) + g) * columns_.size() + mine.indices[i]] +=
                            std::accumulate(element, element + squares.shape(3), 0.0);
                        largest = std::max(largest, *std::max_element(element, element + squares.shape(3)));
                    }
        };
        take(dk_squares, latent_travels ? columns.latent_parts : columns.dk_parts, columns.dk_own);
        if (!latent_travels) take(dv_squares, columns.dv_parts, columns.dv_own);
    }
}

double ErrorModel::error_of_expanding() const {
    if (!given_.latent.is_given()) return 0;
    const auto terms = static_cast<double>(given_.latent.rank);
    const double sums = square(unit_of(accumulator_of(problem_.dtype))) * sum_roundings(terms, problem_.dtype);
    if (!is_narrow(problem_.dtype)) return sums;
    // A step is sqrt(12) roundings long; the number is off by one where its sum, off by |x|, crosses its middle.
    constexpr double mean_magnitude = 0.798;  // of a normal number: sqrt(2 / pi)
    return mean_magnitude * std::sqrt(sums) * std::sqrt(12.0) * unit_of(problem_.dtype);
}

/// What one element of K or V that ends a step aside moves at most, rounded to 16 bits: a score by scale q step; o by
/// p step, and by p (1 - p) of the score times how far apart values are; dq by p (1 - p) do step scale k, and by its
/// own terms, scale ds k, times the score and times a step.
ErrorModel::Steps ErrorModel::steps_of_expanding(const Inputs& inputs) const {
    if (!given_.latent.is_given() || !is_narrow(problem_.dtype)) return {};
    const double relative = std::exp2(problem_.dtype == DType::bf16 ? -7 : -10);
    const auto largest = [](const Tensor& tensor) { return largest_of(tensor.data(), tensor.size()); };
    const auto step = [&](double x) { return x > 0 ? relative * std::exp2(std::floor(std::log2(x))) : 0; };
    constexpr double most_of_p = 0.25;  // p (1 - p)
    const double scale = std::abs(problem_.effective_scale()), k = largest(inputs.k), v = largest(inputs.v);
    const double score = scale * largest(inputs.q) * step(k);
    double terms = 0;
    for (const auto& row : row_) terms = std::max(terms, scale * std::sqrt(row.dsk));
    return {score, step(v) + most_of_p * score * 2 * v,
            most_of_p * largest(inputs.dout) * step(v) * scale * k + terms * (score + relative)};
}

void ErrorModel::set_latent_bounds(const Columns& columns, Bounds& bounds) const {
    const double u2 = is_narrow(problem_.dtype) ? square(unit_of(problem_.dtype)) : 0;
    const double e2 = square(unit_of(accumulator_of(problem_.dtype)));
    const double both = problem_.dtype == DType::fp64 ? 2 : 1;
    const auto heads = size(problem_.kv_heads), own = size(given_.own_key_dim()), rank = size(given_.latent.rank),
               shared = size(given_.latent.shared), dims = size(given_.expanded_dim());
    const auto head_dim = static_cast<double>(problem_.head_dim), value_dim = static_cast<double>(problem_.value_dim);
    const auto& [made_q, latent, matrices, made_dout] = *made_of_;

    // Squared norms of a head's matrices: of what makes K, and V.
    std::vector<double> w_k(heads), w_v(heads);
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t d = 0; d < dims; ++d) (d < own ? w_k : w_v)[h] += norms_of(&matrices(0, h, d, 0), rank).two;
    // Of each element of dk and dv of a token and head: its error, and its square.
    struct PerElement {
        double dk, dv, dk2, dv2;
    };
    const auto at_element = [&](std::size_t b, std::size_t h, std::size_t t) {
        const auto at = (b * heads + h) * columns_.size() + t;
        return PerElement{(columns.dk[at] + columns.dk_parts[at]) / head_dim,
                          (columns.dv[at] + columns.dv_parts[at]) / value_dim, dk_[at] / head_dim, dv_[at] / value_dim};
    };

    const double latent_sums = e2 * sum_roundings(static_cast<double>(heads * dims), problem_.dtype);
    const double matrix_sums =
        e2 * sum_roundings(static_cast<double>(problem_.batch * problem_.tokens), problem_.dtype);
    Errors of_latent, of_matrices;
    std::vector<double> k_rows(heads), v_rows(heads), k_terms(heads), v_terms(heads);
    double widest = 0;  // squared error of one number
    for (std::size_t b = 0; b < size(problem_.batch); ++b)
        for (std::size_t t = 0; t < columns_.size(); ++t) {
            const auto* gradient = &expected_latent_.dk(b, t, 0, 0);
            const double c2 = norms_of(&latent(b, t, 0, 0), rank).two;
            double made = latent_sums * norms_of(gradient, rank).two;
            double taken = shared > 0 ? latent_sums * norms_of(gradient + rank, shared).two : 0;
            for (std::size_t h = 0; h < heads; ++h) {
                const auto it = at_element(b, h, t);
                const double terms = it.dk2 * w_k[h] + it.dv2 * w_v[h];
                made += it.dk * w_k[h] + it.dv * w_v[h] + (u2 + latent_sums) * terms;
                taken += (it.dk + latent_sums * it.dk2) * static_cast<double>(shared);
                k_rows[h] += (it.dk + u2 * it.dk2) * c2;
                v_rows[h] += (it.dv + u2 * it.dv2) * c2;
                k_terms[h] += it.dk2 * c2;
                v_terms[h] += it.dv2 * c2;
            }
            const double parts = columns.latent_parts.empty() ? 0 : columns.latent_parts[b * columns_.size() + t];
            of_latent.add(both * (made + taken), both * parts);
            widest = std::max(widest, made / static_cast<double>(rank));
            if (shared > 0) widest = std::max(widest, taken / static_cast<double>(shared));
        }
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t d = 0; d < dims; ++d) {
            const double expected = norms_of(&expected_latent_.dv(0, h, d, 0), rank).two;
            of_matrices.add(
                both * ((d < own ? k_rows : v_rows)[h] + matrix_sums * (expected + (d < own ? k_terms : v_terms)[h])));
        }
    const auto bound = [&](Errors errors, const Tensor& expected, std::size_t width, double crest) {
        const auto all = norms_of(expected.data(), expected.size());
        return errors.bound(all.two, all.largest, static_cast<double>(width), crest);
    };
    of_latent.largest = both * widest * static_cast<double>(rank + shared);
    of_latent.own = both * columns.dk_own;
    bounds.dk = bound(of_latent, expected_latent_.dk, rank + shared, crest_of(matrices));
    bounds.dv = bound(of_matrices, expected_latent_.dv, rank, crest_of(latent));
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

Bounds ErrorModel::bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                          bool round_running_output) const {
    const auto dtype = problem_.dtype;
    const auto accumulator = accumulator_of(dtype);
    const double u2 = is_narrow(dtype) ? square(unit_of(dtype)) : 0, e2 = square(unit_of(accumulator));
    const double scale2 = square(problem_.effective_scale());
    const auto head_dim = static_cast<double>(problem_.head_dim), value_dim = static_cast<double>(problem_.value_dim);
    const bool partials = forward.options().accumulation == layouts::Accumulation::partials;
    require(partials || !round_running_output, "a running output is rounded with partials alone, not with carry");
    const SingleThreadedBlas guard;
    // Without them, what is normalised elsewhere is rounded only if messages are.
    const bool arrives = is_narrow(dtype) && output_arrives(forward);
    const bool rounds_results = partials || arrives;
    const auto blocks = rounds_results ? forward_blocks(inputs, forward, round_running_output) : Blocks{};
    // In fp64 the reference is no more exact than what it judges.
    const double both = dtype == DType::fp64 ? 2 : 1;

    Errors o, o_unrounded, lse, dq, dk, dv;
    double o_norm = 0, lse_norm = 0, dq_norm = 0;
    std::vector<double> var_delta, var_lse;
    for (std::size_t at = 0; at < row_.size(); ++at) {
        const auto& row = row_[at];
        if (row.keys == 0) {
            var_delta.push_back(0);
            var_lse.push_back(0);
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
        o_unrounded.add(both * (var_o + arrival * row.o));
        o.add(both * (var_o + (rounds ? u2 * row.o : 0)));
        var_delta.push_back(u2 * row.pdp + (rounds_results ? blocks.delta[at] : 0) + arrival * row.dout4 * row.o4 +
                            e2 * row.scores_delta + exact_o * row.dout4 / std::sqrt(value_dim) +
                            e2 * value_dim / 2 * (square(row.delta) + row.dout4 * row.o4));
        var_lse.push_back(own_lse);
        lse.add(both * var_lse.back());
        dq.add(both * (scale2 * ((u2 + error_of_expanding()) * row.dsk + var_delta.back() * row.mean_key +
                                 e2 * row.scores_dq) +
                       sums * (scale2 * row.dsk + row.dq) + var_lse.back() * row.dq));
        o_norm += row.o;
        lse_norm += square(row.lse);
        dq_norm += row.dq;
    }

    const double v_crest = crest_of(inputs.v);
    const auto steps = steps_of_expanding(inputs);
    const auto in_the_largest = [](Bound& bound, double step, double largest) {
        if (step > 0) bound.max_to_largest += step / largest;
    };
    Bounds bounds;
    bounds.o = o.bound(o_norm, largest_o_, value_dim, v_crest);
    bounds.o_unrounded = o_unrounded.bound(o_norm, largest_o_, value_dim, v_crest);
    bounds.lse = lse.bound(lse_norm, largest_lse_, 1, 1);
    in_the_largest(bounds.o, steps.o, largest_o_);
    in_the_largest(bounds.o_unrounded, steps.o, largest_o_);
    in_the_largest(bounds.lse, steps.score, largest_lse_);
    if (backward == nullptr) return bounds;
    bounds.dsinks = sink_bound(var_delta, var_lse, both * e2);
    auto columns = measure_columns(inputs, var_delta, var_lse);
    if (backward->options().gradient_dtype != accumulator) add_gradient_blocks(inputs, *backward, columns);
    bounds.dq = dq.bound(dq_norm, largest_dq_, head_dim, crest_of(inputs.k));
    in_the_largest(bounds.dq, steps.dq, largest_dq_);
    if (made_of_ != nullptr) {
        set_latent_bounds(columns, bounds);
        return bounds;
    }
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
