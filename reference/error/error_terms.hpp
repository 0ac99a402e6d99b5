#pragma once

#include "reference/error/error_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

// Terms of ErrorModel's sums, and what it keeps. Only error_*.cpp include this file. A variance is the mean square of
// an error, absolute unless noted otherwise.

namespace ringlab::reference {

constexpr double square(double x) { return x * x; }

/// Relative variance of exp(s), to be multiplied by p^2, from the variance of s. It is the variance of s while that is
/// small. Otherwise the exponential grows faster on one side: at 5 standard deviations by e^(5 sigma) - 1.
inline double variance_of_exp(double variance) {
    constexpr double deviations = 5;
    if (variance < 1e-8) return variance;
    return square(std::expm1(deviations * std::min(std::sqrt(variance), 60.0)) / deviations);
}

/// Sum and largest of squared numbers.
struct Squares {
    double sum = 0, largest = 0;

    void add(double squared) {
        sum += squared;
        largest = std::max(largest, squared);
    }
};

/// The squares of the finite numbers of a tensor.
template <class AnyTensor>
Squares squares_of(const AnyTensor& tensor) {
    Squares squares;
    for (const double x : tensor)
        if (std::isfinite(x)) squares.add(square(x));
    return squares;
}

/// Norms of a list of numbers, and of the variances that these numbers have themselves if they are made of a latent.
struct Norms {
    double two = 0;              // sum of squares
    double four = 0;             // root of the sum of fourth powers
    double largest = 0;          // magnitude
    double made = 0, made4 = 0;  // sum of variances, and root of the sum of their squares
};

/// Norms of every token, for every batch element and head, in the tensor's order.
std::vector<Norms> norms_of(const Tensor& tensor, const Tensor& variances = {});

/// What the pairs of a row have in common.
struct RowOperands {
    double lse, delta;
    Norms q, dout;
};

/// A visible pair of a row and a key, and the variances that roundings of the accumulator cause.
struct Pair {
    double s, p, ds;
    double dp, ahead;      // dp = d do.v, and dp - delta
    double factor, slope;  // d of dropout, slope of the soft cap
    double of_log_p, of_p, of_ds;
};

/// The roundings of an arithmetic.
struct Arithmetic {
    explicit Arithmetic(const layouts::Problem& problem);

    layouts::DType dtype;
    bool narrow;  // 16 bits
    double head_dim, value_dim, scale2, soft_cap;
    double u, u2;  // RMS of a rounding to 16 bits, and its square; 0 for other types
    double step;   // variance of the rounding of a number near 0, in units of u^2
    double e2;     // squared RMS of a rounding of the accumulator, twice in fp64, whose reference is no more exact
    double lost;   // squared loss of a sum over all tokens whose numbers are too small for the accumulator

    /// exp and log of a library or a device are within 2 units in the last place, 4 roundings at most: squared RMS in
    /// e^2 of an error spread evenly up to there, 4 (2^-n / sqrt(3))^2 for 2^-n = 2.36 e, times 4.
    static constexpr double exp_roundings = 30;

    /// Roundings of a sum of `terms` numbers, in units of e^2 times the square of a partial sum. Together with the
    /// squared terms that is each product and each addition: n/2 (sum of squared terms + squared result).
    double sum_roundings(double terms) const { return terms / 2 + (narrow ? square(0.07 * terms) : 0); }

    /// Relative variance of exp(x): of the difference x, once more of its product with log2(e), and of exp.
    double of_exponent(double x) const { return e2 * (2 * square(x) + exp_roundings); }

    /// Variance of p = exp(x) from that of x, limited to 1, because p is between 0 and 1.
    double of_p(double p, double of_x) const { return std::min(1.0, square(p) * variance_of_exp(of_x) + lost); }

    /// The pair with score s, dp = d do.v and dropout factor d.
    Pair pair(const RowOperands& row, const Norms& k, const Norms& v, double s, double dp, double factor) const;
};

/// The actual roundings to 16 bits of some numbers. The model takes roundings to be independent, but equal numbers have
/// equal roundings, so numbers with few distinct values have few independent ones.
class KnownRoundings {
public:
    void add(double x, double rounded) {
        if (x == rounded) return;
        weights_ += square(x);
        errors_ += x * (rounded - x);
        squares_ += square(square(x));
    }
    /// The relative error that all numbers have in common (least squares), in units of the relative RMS u of
    /// independent errors, minus the 3 standard deviations that these may show by chance.
    double in_common(double u) const {
        return weights_ > 0 ? std::max(0.0, std::abs(errors_) / u - 3 * std::sqrt(squares_)) / weights_ : 0;
    }

private:
    double weights_ = 0, errors_ = 0, squares_ = 0;
};

/// The bound of one result from the expected squared errors of its rows.
class Errors {
public:
    /// A row: variances of its elements by roundings to 16 bits, and of the row by roundings of the accumulator.
    void add(const Squares& narrow, double wide);

    /// Rows in the order (batch, token, head), with the dims of `narrow`, which is empty if nothing is rounded.
    void add(const Tensor& narrow, const Lse& wide);

    /// States that these errors are no more independent than others from which they result.
    void share(const Errors& others);

    /// `expected`: squares of the expected result; `in_common`: the relative error that what is rounded to 16 bits has
    /// in common, in units of one rounding u.
    Bound bound(const Squares& expected, double in_common = 0, double u = 0) const;

private:
    double spread() const { return (sum_ > 0 ? std::sqrt(squares_) / sum_ : 0) + shared_spread_; }
    double top() const { return (sum_ > 0 ? largest_ / sum_ : 0) + shared_top_; }

    double sum_ = 0, squares_ = 0, largest_ = 0;  // of rows' errors
    double wide_ = 0, peak_ = 0;                  // the largest of a row
    double shared_spread_ = 0, shared_top_ = 0;
};

/// Sums over the visible keys j of one row. In the comments p, s, the dropout factor d, dp = d do.v, k and v are those
/// of key j.
struct Row {
    double lse = 0, delta = 0;  // the row's
    Norms o, dout, dq;
    double keys = 0;
    double mass = 0, mass2 = 0;                            // sum p, which sinks make less than 1; sum p^2
    double values = 0, largest_value = 0;                  // sum p |d v|^2, max |d v|^2
    double dp_spread = 0, dp_walk = 0;                     // sum p (dp - delta)^2, sum p^2 (dp - delta)^2
    double pv = 0, dsk = 0;                                // sum p^2 |d v|^2, sum ds^2 |k|^2
    double scores_o = 0, scores_delta = 0, scores_dq = 0;  // variances from errors of s, exp, dp, and of K and V
    double scores_lse = 0, largest_score = 0;              // sum of p var(log p), and the largest var(log p)
    double pdp = 0;                     // variance of delta from rounded p, in units of u^2: sum p^2 dp^2
    double largest_so_far = -INFINITY;  // score: p is rounded relative to the p of this score

    void add(const Pair& pair, const Norms& k, const Norms& v);
};

/// What the inputs alone say, before there is a schedule. Rows are in the order (batch, row, query head).
struct ErrorModel::Measured {
    layouts::Problem given, problem;  // problem: over K and V of all heads
    layouts::Mask mask;
    const Inputs* made_of;  // null without a latent
    Arithmetic arithmetic;
    RowStatistics rows;  // of the sample
    std::vector<std::int64_t> columns;
    RowStatistics statistics;     // of all rows that see the columns
    std::vector<Norms> k, v;      // of all keys: (batch, token, kv head)
    std::vector<Row> row;         // of the sample
    Tensor o, pv, dsk, mean_key;  // by row and dim: o, sum p^2 v^2, sum ds^2 k^2 and sum p cap' k
    KnownRoundings rounded_p, rounded_ds, rounded_p_of_row;  // p relative to the largest so far, ds, p = exp(s - lse)
    Squares expected_dq;
    Tensor dk, dv;  // expected, of all heads

    Measured(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs, const SampledRows& rows,
             const SampledColumns& columns, RowStatistics statistics, const Inputs* made_of);
};

/// How the results of the sample's rows are merged and travel, and the errors that this causes.
struct Arrivals {
    bool as_messages = false;  // the output is a sum of partials that arrives as a message
    Lse merges;                // how many, of one head, at the row's owner and on other ranks
    Tensor o;                  // variances from partials; empty if these are not rounded
    Lse delta, blocks;         // variances of delta from partials, and the number of blocks that a row sees
};
Arrivals arrivals_of(const ErrorModel::Measured& measured, const Inputs& inputs, const layouts::Schedule& forward,
                     bool round_running_output);

/// Adds the variances of gradients that are rounded when they travel, to those of dk and dv of all heads, or of the
/// latent's gradient if that is what travels.
void add_travelling_gradients(const ErrorModel::Measured& measured, const Inputs& inputs,
                              const layouts::Schedule& backward, Tensor& dk, Tensor& dv, Tensor& dlatent);

}  // namespace ringlab::reference
