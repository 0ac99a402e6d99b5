#include "reference/attention/blocked_tile.hpp"

#include "reference/attention/blocked_exp.hpp"

#include <cmath>
#include <limits>

namespace ringlab::reference {
namespace {

using Vector = xsimd::batch<double>;
constexpr auto lanes = static_cast<std::int64_t>(Vector::size);
constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr std::int64_t whole_vectors(std::int64_t count) { return (count + lanes - 1) / lanes * lanes; }

Vector load(const double* data) { return Vector::load_unaligned(data); }

// Loops over rows use whole vectors; the few elements after the last key lie inside the tile's storage.

double row_maximum(const double* s, std::int64_t count) {
    Vector largest(-infinity);
    for (std::int64_t c = 0; c < count; c += lanes) largest = xsimd::max(largest, load(s + c));
    double result = -infinity;
    for (std::size_t lane = 0; lane < Vector::size; ++lane) result = std::max(result, largest.get(lane));
    return result;
}

/// s = exp(s - shift); returns the sum.
double exponentiate_row(double* s, std::int64_t count, double shift) {
    Vector sum(0.0);
    for (std::int64_t c = 0; c < count; c += lanes) {
        const auto p = exp_of(load(s + c) - Vector(shift));
        p.store_unaligned(s + c);
        sum += p;
    }
    double result = 0;
    for (std::size_t lane = 0; lane < Vector::size; ++lane) result += sum.get(lane);
    return result;
}

void scale_row(double* row, std::int64_t count, double factor) {
    for (std::int64_t c = 0; c < count; ++c) row[c] *= factor;
}

/// The number to subtract from scores; 0 if all of them are -inf, so that exp gives 0 and not NaN.
double finite_or_zero(double x) { return x == -infinity ? 0 : x; }

std::vector<double> storage(std::int64_t rows, std::int64_t columns) {
    return std::vector<double>(static_cast<std::size_t>(rows * columns));
}

}  // namespace

void add(ConstMatrix from, Matrix to) {
    for (std::int64_t r = 0; r < from.rows; ++r)
        for (std::int64_t c = 0; c < from.columns; ++c) to.row(r)[c] += from.row(r)[c];
}

Tile::Tile(const layouts::Problem& problem, const layouts::Mask& mask, const BlockedOptions& options)
    : problem_(problem),
      mask_(mask),
      dropout_factors_(problem.dropout),
      stride_(whole_vectors(options.tile_keys)),
      s_storage_(storage(options.tile_rows, stride_)),
      ds_storage_(s_storage_.size()),
      dq_storage_(storage(options.tile_rows, problem.head_dim)),
      factors_(problem.dropout.drops() ? s_storage_.size() : 0),
      maximum_(storage(options.tile_rows, 1)),
      sum_(maximum_.size()),
      key_is_valid_(static_cast<std::size_t>(options.tile_keys)) {}

void Tile::begin_rows(std::int64_t count) {
    std::fill_n(maximum_.begin(), count, -infinity);
    std::fill_n(sum_.begin(), count, 0.0);
}

// s = cap(scale * q k^T), -inf where the mask hides the key
void Tile::score(const TileOperands& operands) {
    s_ = {s_storage_.data(), operands.q.rows, operands.k.rows, stride_};
    multiply(problem_.effective_scale(), operands.q, transpose(operands.k), s_);
    if (problem_.soft_cap > 0) {
        const Vector cap(problem_.soft_cap);
        for (std::int64_t r = 0; r < s_.rows; ++r)
            for (double* s = s_.row(r); s < s_.row(r) + s_.columns; s += lanes)
                (cap * xsimd::tanh(load(s) / cap)).store_unaligned(s);
    }
    // Elements after the last key must add nothing in loops over whole vectors.
    for (std::int64_t r = 0; r < s_.rows; ++r)
        std::fill(s_.row(r) + s_.columns, s_.row(r) + whole_vectors(s_.columns), -infinity);
    if (operands.may_hide_pairs) hide(operands);
    if (dropout_factors_.drops()) draw(operands);
}

void Tile::hide(const TileOperands& operands) {
    const auto& keys = operands.keys;
    for (std::size_t c = 0; c < keys.size(); ++c) key_is_valid_[c] = mask_.key_is_valid(keys[c]) ? 1 : 0;
    for (std::size_t r = 0; r < operands.rows.size(); ++r) {
        const auto seen = mask_.row(operands.rows[r]);
        double* s = s_.row(static_cast<std::int64_t>(r));
        for (std::size_t c = 0; c < keys.size(); ++c)
            if (!seen.contains(keys[c]) || !key_is_valid_[c]) s[c] = -infinity;
    }
}

// d of every pair, which is 0 or 1 / (1 - probability)
void Tile::draw(const TileOperands& operands) {
    for (std::int64_t r = 0; r < s_.rows; ++r)
        dropout_factors_.draw(std::span(factors_.data() + r * stride_, operands.keys.size()), operands.keys,
                              {operands.batch, operands.head, operands.rows[static_cast<std::size_t>(r)]});
}

void Tile::drop(Matrix numbers) const {
    if (!dropout_factors_.drops()) return;
    for (std::int64_t r = 0; r < numbers.rows; ++r)
        for (std::int64_t c = 0; c < numbers.columns; ++c) numbers.row(r)[c] *= factors_[size(r * stride_ + c)];
}

// m' = max(m, m_b)      l' = l*exp(m - m') + sum exp(s - m')      a' = a*exp(m - m') + d exp(s - m') v
void Tile::attend(const TileOperands& operands, std::int64_t first_row, Matrix o) {
    score(operands);
    for (std::int64_t r = 0; r < s_.rows; ++r) {
        auto& maximum = maximum_[static_cast<std::size_t>(first_row + r)];
        auto& sum = sum_[static_cast<std::size_t>(first_row + r)];
        const double larger = std::max(maximum, row_maximum(s_.row(r), s_.columns));
        if (larger > maximum) {
            const double shrink = std::exp(maximum - larger);
            sum *= shrink;
            scale_row(o.row(r), o.columns, shrink);
            maximum = larger;
        }
        sum += exponentiate_row(s_.row(r), s_.columns, finite_or_zero(maximum));
    }
    drop(s_);
    multiply_add(1, s_, operands.v, o);
}

void Tile::finish_rows(Matrix o, StridedView<double> lse) {
    for (std::int64_t r = 0; r < o.rows; ++r) {
        // The sum of a row that sees any key is at least 1, from its largest score, or NaN, which must not be lost.
        const auto sum = sum_[static_cast<std::size_t>(r)];
        if (sum != 0) scale_row(o.row(r), o.columns, 1 / sum);
        lse[r] = sum != 0 ? maximum_[static_cast<std::size_t>(r)] + std::log(sum) : -infinity;
    }
}

// p = exp(s - lse)      ds = p * (d do v^T - delta) * cap'      cap' = 1 - (s/c)^2; then p = d p
void Tile::differentiate(const TileOperands& operands, ConstMatrix dout, StridedView<const double> lse,
                         StridedView<const double> delta) {
    score(operands);
    ds_ = {ds_storage_.data(), s_.rows, s_.columns, stride_};
    multiply(1, dout, transpose(operands.v), ds_);
    drop(ds_);
    const double inverse_cap = problem_.soft_cap > 0 ? 1 / problem_.soft_cap : 0;
    for (std::int64_t r = 0; r < s_.rows; ++r) {
        const Vector row_lse(finite_or_zero(lse[r])), row_delta(delta[r]);
        double* s = s_.row(r);
        double* ds = ds_.row(r);
        for (std::int64_t c = 0; c < s_.columns; c += lanes) {
            const auto score = load(s + c);
            const auto p = exp_of(score - row_lse);
            auto gradient = p * (load(ds + c) - row_delta);
            if (inverse_cap > 0) {
                // A hidden key has score -inf and p = 0; its slope must stay finite, so that ds is 0 and not 0 * inf.
                const auto capped = xsimd::max(score, Vector(-problem_.soft_cap)) * Vector(inverse_cap);
                gradient *= Vector(1.0) - capped * capped;
            }
            p.store_unaligned(s + c);
            gradient.store_unaligned(ds + c);
        }
    }
    drop(s_);
}

void Tile::add_dk(const TileOperands& operands, Matrix dk) {
    multiply_add(problem_.effective_scale(), transpose(ds_), operands.q, dk);
}

void Tile::add_dv(ConstMatrix dout, Matrix dv) { multiply_add(1, transpose(s_), dout, dv); }

ConstMatrix Tile::dq(const TileOperands& operands) {
    const Matrix dq{dq_storage_.data(), s_.rows, operands.k.columns, operands.k.columns};
    multiply(problem_.effective_scale(), ds_, operands.k, dq);
    return dq;
}

}  // namespace ringlab::reference
