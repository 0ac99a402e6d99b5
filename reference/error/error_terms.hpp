#pragma once

#include "layouts/problem/problem.hpp"
#include "reference/error/deviations.hpp"
#include "reference/error/error_model.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

// Terms of ErrorModel's sums. A variance is the mean square of an error, absolute unless noted otherwise.

namespace ringlab::reference {

constexpr double square(double x) { return x * x; }
inline bool is_narrow(layouts::DType dtype) { return layouts::bytes_of(dtype) == 2; }

/// RMS of the rounding of a number near 0 to fp16, whose step there is 2^-24, relative to unit_of(fp16). bf16 has
/// fp32's exponents: 0, as smallest_of(fp32) counts what is lost there.
double subnormal_to_unit(layouts::DType dtype);

/// The type in which products are summed: fp64 for fp64, fp32 for all others.
layouts::DType accumulator_of(layouts::DType dtype);

/// Numbers of the accumulator below this magnitude may be flushed to 0: 2^-126, the smallest normal number, for fp32.
/// For fp64 it is not 2^-1022 but `vanishing`, because the model adds squares, which underflow below it.
double smallest_of(layouts::DType dtype);

/// Factor of squared errors: 2 in fp64, because the reference is then no more exact than the result that is compared.
inline double doubled_in_fp64(layouts::DType dtype) { return dtype == layouts::DType::fp64 ? 2 : 1; }

/// Norms of a list of numbers.
struct Norms {
    double two;      // sum of squares
    double four;     // root of the sum of fourth powers
    double largest;  // magnitude
};

Norms norms_of(const double* x, std::size_t count);

/// Norms of every token, for every batch element and head, in the tensor's order.
std::vector<Norms> norms_of(const Tensor& tensor);

/// Largest magnitude of the finite numbers; 0 if there are none.
double largest_of(const double* x, std::size_t count);

/// Roundings of a sum of `terms` numbers in the accumulator, in units of e^2 times the square of a partial sum.
/// Together with the squared terms that is each product and each addition: n/2 (sum of squared terms + squared result)
/// is n for one term that outweighs the others, and 1 + 1 for two terms.
double sum_roundings(double terms, layouts::DType dtype);

/// exp and log of a library or a device are within 2 units in the last place, 4 roundings at most: squared RMS in e^2
/// of an error spread evenly up to there, 4 (2^-n / sqrt(3))^2 for 2^-n = 2.36 e, times 4.
constexpr double exp_roundings = 30;

/// Relative variance of exp(s), to be multiplied by p^2, from the variance of s. It is the variance of s while that is
/// small. Otherwise the exponential grows faster on one side: at 5 standard deviations by e^(5 sigma) - 1.
inline double variance_of_exp(double variance) {
    constexpr double deviations = 5;
    if (variance < 1e-8) return variance;
    return square(std::expm1(deviations * std::min(std::sqrt(variance), 60.0)) / deviations);
}

/// Computes squared errors of scores and of dp.
struct Roundings {
    double head_dim, value_dim, soft_cap;
    double e2;  // squared RMS of a rounding in the accumulator

    /// Variance of a score s = cap(x), from norms of q and k. `of_k`: what elements of K have, as Norms::four.
    double of_score(double s, double scale, double q4, double k4, double of_k) const {
        return e2 *
                   (2 * square(s) + head_dim / 2 * (square(s) + square(scale) * q4 * k4) + of_tanh * square(soft_cap)) +
               square(scale) * q4 * of_k;
    }
    // The cap's tanh as 1 - 2 / (1 + e^2x), whose terms are near 1 however small the result: the exponential, within 2
    // units in the last place, counts half at x = 0; then a sum, a quotient within 2 units, a difference.
    // Added after kernels on a device had exceeded the bound of lse without it; the number is not fitted to them.
    static constexpr double of_tanh = 1 + 1 + 4 + 1;

    /// Relative variance of exp(s - x): of the difference, once more of its product with log2(e), and of exp.
    double of_exponent(double difference) const { return e2 * (2 * square(difference) + exp_roundings); }

    /// Variance of the slope of the cap, 1 - (s/c)^2, where s has a variance: near the cap the slope is a small
    /// difference of numbers near 1. Quotient and square are 5 roundings of (s/c)^2.
    double of_slope(double s, double of_s) const {
        if (!(soft_cap > 0)) return 0;
        const double ratio = square(s / soft_cap);
        return 4 * ratio * of_s / square(soft_cap) + e2 * 5 * square(ratio);
    }

    /// Variance of do.v. `of_v`: what elements of V have, as Norms::four.
    double of_dp(double dp, double dout4, double v4, double of_v) const {
        return e2 * value_dim / 2 * (square(dp) + dout4 * v4) + dout4 * of_v;
    }
};

/// How many times the running maximum of a row's scores grows over its n keys, so that the sums are rescaled: fewer
/// than n times, and for scores in random order (records) at most log n plus 5 standard deviations, sqrt(log n) each.
inline double rescalings(double keys) {
    const double records = std::log(std::max(1.0, keys));
    return std::min(std::max(0.0, keys - 1), records + 5 * std::sqrt(records));
}

/// Error of a rounding at a binade's lower end, divided by the average one.
constexpr double worst_mantissa = 1.37;

/// Assumed maximum of a normal error, in standard deviations; one error in 10^8 exceeds it.
constexpr double normal_tail = 5.5;

/// Square of the largest error of a sum of roundings: normal_tail standard deviations, or less for few roundings. Each
/// is at most 2^-n = 2.36 u, so k of them are at most 2.36 sqrt(k) times their root mean square, by Cauchy and Schwarz.
class Peak {
public:
    void add(double variance, double roundings) {
        variance_ += variance;
        limit_ += 2.4 * std::sqrt(roundings * variance);
    }
    double squared() const { return std::min(square(normal_tail) * variance_, square(limit_)); }

private:
    double variance_ = 0, limit_ = 0;
};

/// The actual roundings to 16 bits of the numbers of a row. The model takes roundings to be independent, but equal
/// numbers have equal roundings, so numbers with few distinct values have few independent ones.
class KnownRoundings {
public:
    void add(double x, double rounded) {
        if (x != rounded) add(square(x), (rounded - x) / x, 1);
    }

    /// Adds the roundings of a row, which makes a part of the result with the square `part`.
    void add(double part, const KnownRoundings& row) {
        // All p of a row may be tiny: next to a sink, or if dropout took the only large one. Then weights_^2 and
        // squares_ may be too small for a double. If squares_ is, the numbers are taken to have all of their errors in
        // common.
        if (row.weights_ > 0) add(part, row.errors_ / row.weights_, row.squares_ / row.weights_ / row.weights_);
    }

    /// Sum of the squares of what is rounded.
    double squares() const { return weights_; }

    /// The relative error that all numbers have in common (least squares), minus the 3 standard deviations that
    /// independent errors of relative RMS `unit` may show by chance.
    double in_common(double unit) const {
        return weights_ > 0 ? std::max(0.0, std::abs(errors_) - 3 * unit * std::sqrt(squares_)) / weights_ : 0;
    }

private:
    void add(double weight, double error, double variance) {
        weights_ += weight;
        errors_ += weight * error;
        squares_ += square(weight) * variance;
    }

    double weights_ = 0, errors_ = 0, squares_ = 0;
};

/// Largest square of a part of a sum. `sum`: square of the whole sum; `terms`: sum of the squared terms. A part is at
/// most as large as the sum plus a random walk of the terms of 3 standard deviations.
inline double part_of(double sum, double terms) { return square(std::sqrt(sum) + 3 * std::sqrt(terms)); }

/// An error that is known: its square, and its largest size relative to the largest element of the result.
struct KnownError {
    double squared = 0, relative = 0;

    void at_least(const KnownError& other) {
        squared = std::max(squared, other.squared);
        relative = std::max(relative, other.relative);
    }
};

/// The same of many rows: what each has in common, and what all have.
class KnownErrors {
public:
    /// For a result whose largest magnitude is `largest`; `unit`: RMS of one rounding, see unit_of().
    KnownErrors(double unit, double largest) : unit_(unit), largest_(std::max(largest, vanishing)) {}

    /// A row whose numbers make a part of the result with this square.
    void add(const KnownRoundings& row, double part) {
        const double in_common = row.in_common(unit_);
        rows_.squared += square(in_common) * part;
        rows_.relative = std::max(rows_.relative, in_common * std::sqrt(part) / largest_);
        all_.add(part, row);
    }

    /// The known error of a result with the squared norm `norm`. Errors of rows add up as independent ones do, or all
    /// with one sign.
    KnownError error(double norm) const {
        const double one_sign = all_.squares() > 0 ? std::max(1.0, norm / all_.squares()) : 0;
        const double all = all_.in_common(unit_);
        KnownError error{rows_.squared > 0 ? rows_.squared * one_sign : 0, rows_.relative};
        error.at_least({square(all) * norm, all});
        return error;
    }

private:
    double unit_, largest_;
    KnownError rows_;
    KnownRoundings all_;
};

/// Squared errors of one row of a result.
struct RowError {
    double narrow = 0;  // by roundings to 16 bits
    double wide = 0;    // by roundings of the accumulator
    double parts = 0;   // by roundings of the result's own parts, in proportion to them
    double peak = 0;    // the largest that `narrow` makes of one element, squared
};

/// The bound of one result from the expected squared errors of its rows.
class Errors {
public:
    void add(const RowError& row);

    /// States that this much of the errors added is one error that several rows share.
    void share(double common);

    /// Squared error of the largest element by roundings of the result's own parts.
    void set_own(double own) { own_ = own; }

    void set_known(const KnownError& known) { known_ = known; }

    /// Squared error of rare events, for the few times that they may happen.
    void set_rare(double squared) { rare_ = squared; }

    /// Assumes that these errors are no more independent than the errors from which they result.
    void no_more_independent_than(const Errors& other);

    Bound bound(double norm, double largest_expected) const;

private:
    double sum_ = 0;
    double squares_ = 0, largest_ = 0;                // of rows' errors
    double shared_squares_ = 0, largest_shared_ = 0;  // of errors that rows share
    double wide_ = 0, peak_ = 0;                      // the largest of a row
    double own_ = 0;
    KnownError known_;
    double rare_ = 0;
    double least_spread_ = 0, least_top_ = 0;
};

}  // namespace ringlab::reference
