#pragma once

#include "layouts/problem.hpp"
#include "reference/error_model.hpp"

#include <algorithm>
#include <vector>

// What ErrorModel's sums are made of.

namespace ringlab::reference {

constexpr double square(double x) { return x * x; }
inline bool is_narrow(layouts::DType dtype) { return layouts::bytes_of(dtype) == 2; }

/// RMS of the rounding of a number near 0 to fp16, whose step there is 2^-24, relative to unit_of(fp16). bf16 has
/// fp32's exponents: 0.
double subnormal_to_unit(layouts::DType dtype);

/// What 16-bit products and fp32 ones are summed in, or fp64.
layouts::DType accumulator_of(layouts::DType dtype);

/// What squared errors count: in fp64 the reference is no more exact than what it judges.
inline double doubled_in_fp64(layouts::DType dtype) { return dtype == layouts::DType::fp64 ? 2 : 1; }

/// Of a row of numbers.
struct Norms {
    double two;      // sum of squares
    double four;     // root of the sum of fourth powers
    double largest;  // magnitude
};

Norms norms_of(const double* x, std::size_t count);

/// Of every token of every batch element and head, in the tensor's order.
std::vector<Norms> norms_of(const Tensor& tensor);

/// How far a token's largest element stands out of its RMS, at most.
double crest_of(const Tensor& tensor);

/// Magnitude of the largest finite one; 0 of none.
double largest_of(const double* x, std::size_t count);

/// Roundings of a sum of `terms` numbers in the accumulator, in units of e^2 times the square of a partial sum.
double sum_roundings(double terms, layouts::DType dtype);

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
    Bound bound(double norm, double largest_expected, double width, double crest) const;
};

}  // namespace ringlab::reference
