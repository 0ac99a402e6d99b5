#include "reference/error/error_terms.hpp"

#include "reference/error/deviations.hpp"

namespace ringlab::reference {
namespace {

using layouts::DType;

/// RMS of one rounding to the format, relative to the number: the mean square of 2^-n / sqrt(3) / x over x in [1, 2)
/// spread evenly in the logarithm is 3 / (8 ln 2).
double unit_of(DType dtype) {
    const int bits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : dtype == DType::fp64 ? 53 : 24;
    return std::exp2(-bits) * std::sqrt(1 / (8 * std::log(2.0)));
}

/// Assumed maximum of a normal error, in standard deviations; one error in 10^8 exceeds it.
constexpr double normal_tail = 5.5;

/// Error of a rounding at a binade's lower end, divided by the average one.
constexpr double worst_mantissa = 1.37;

}  // namespace

std::vector<Norms> norms_of(const Tensor& tensor, const Tensor& variances) {
    std::vector<Norms> all;
    const auto dim = tensor.shape(3);
    for (std::size_t at = 0; at < tensor.size(); at += dim) {
        Norms norms;
        for (std::size_t i = at; i < at + dim; ++i) {
            const double squared = square(tensor.data()[i]), made = variances.size() > 0 ? variances.data()[i] : 0;
            norms.two += squared;
            norms.four += square(squared);
            norms.largest = std::max(norms.largest, std::abs(tensor.data()[i]));
            norms.made += made;
            norms.made4 += square(made);
        }
        norms.four = std::sqrt(norms.four);
        norms.made4 = std::sqrt(norms.made4);
        all.push_back(norms);
    }
    return all;
}

Arithmetic::Arithmetic(const layouts::Problem& problem)
    : dtype(problem.dtype),
      narrow(layouts::bytes_of(dtype) == 2),
      head_dim(static_cast<double>(problem.head_dim)),
      value_dim(static_cast<double>(problem.value_dim)),
      scale2(square(problem.effective_scale())),
      soft_cap(problem.soft_cap),
      u(narrow ? unit_of(dtype) : 0),
      u2(square(u)),
      // The step of fp16 near 0 is 2^-24. bf16 has the exponents of fp32, where `lost` counts what is lost near 0.
      step(dtype == DType::fp16 ? square(0x1p-24 / u) / 12 : 0),
      e2(dtype == DType::fp64 ? 2 * square(unit_of(DType::fp64)) : square(unit_of(DType::fp32))),
      // 2^-126 is the smallest normal number of fp32. For fp64, squares underflow before numbers do. Each key may lose
      // its product, and each rescaling and merge of the sum as much.
      lost(square(4 * static_cast<double>(problem.tokens + 1) * (dtype == DType::fp64 ? vanishing : 0x1p-126))) {}

Pair Arithmetic::pair(const RowOperands& row, const Norms& k, const Norms& v, double s, double dp,
                      double factor) const {
    // The cap's tanh as 1 - 2 / (1 + e^2x), whose terms are near 1 however small the result: the exponential, within 2
    // units in the last place, counts half at x = 0; then a sum, a quotient within 2 units, a difference.
    constexpr double of_tanh = 1 + 1 + 4 + 1;
    const double p = std::exp(s - row.lse), ahead = dp - row.delta;
    const double ratio = soft_cap > 0 ? square(s / soft_cap) : 0, slope = 1 - ratio, ds = p * ahead * slope;
    const double of_score =
        e2 * (2 * square(s) + head_dim / 2 * (square(s) + scale2 * row.q.four * k.four) + of_tanh * square(soft_cap)) +
        scale2 * row.q.four * k.made4;
    // Near the cap the slope is a small difference of numbers near 1. Quotient and square are 5 roundings of the ratio.
    const double of_slope = soft_cap > 0 ? 4 * ratio * of_score / square(soft_cap) + e2 * 5 * square(ratio) : 0;
    const double of_log_p = of_score + of_exponent(s - row.lse), of_kept_p = of_p(p, of_log_p);
    const double dov = factor == 0 ? 0 : dp / factor;
    const double of_dp =
        square(factor) * (e2 * value_dim / 2 * (square(dov) + row.dout.four * v.four) + row.dout.four * v.made4);
    const double of_ds = of_kept_p * square(ahead * slope) + 4 * e2 * square(ds) + lost +
                         (square(p) + of_kept_p) * (square(slope) * of_dp + square(ahead) * of_slope);
    return {s, p, ds, dp, ahead, factor, slope, of_log_p, of_kept_p, of_ds};
}

void Row::add(const Pair& pair, const Norms& k, const Norms& v) {
    const double weight = pair.p, value = square(pair.factor) * v.two, ahead2 = square(pair.ahead);
    keys += 1;
    mass += weight;
    mass2 += square(weight);
    values += weight * value;
    largest_value = std::max(largest_value, value);
    dp_spread += weight * ahead2;
    dp_walk += square(weight) * ahead2;
    pv += square(weight) * value;
    dsk += square(pair.ds) * k.two;
    scores_lse += weight * variance_of_exp(pair.of_log_p);
    largest_score = std::max(largest_score, pair.of_log_p);
    scores_o += 2 * pair.of_p * (value + o.two) + square(weight * pair.factor) * v.made;
    scores_delta += pair.of_p * ahead2 + square(weight * pair.factor) * dout.four * v.made4;
    scores_dq += pair.of_ds * k.two + square(pair.ds) * k.made;
}

void Errors::add(const Squares& narrow, double wide) {
    const double all = narrow.sum + wide;
    sum_ += all;
    squares_ += square(all);
    largest_ = std::max(largest_, all);
    peak_ = std::max(peak_, narrow.largest);
    wide_ = std::max(wide_, wide);
}

void Errors::add(const Tensor& narrow, const Lse& wide) {
    const auto dim = narrow.size() / std::max<std::size_t>(1, wide.size());
    for (std::size_t at = 0; at < wide.size(); ++at) {
        Squares elements;
        for (std::size_t d = 0; d < dim; ++d) elements.add(narrow.data()[at * dim + d]);
        add(elements, wide.data()[at]);
    }
}

void Errors::share(const Errors& others) {
    shared_spread_ = std::max(shared_spread_, others.spread());
    shared_top_ = std::max(shared_top_, others.top());
}

Bound Errors::bound(const Squares& expected, double in_common, double u) const {
    if (sum_ == 0) return {};
    // As deviations are counted.
    const bool vanishes = std::sqrt(expected.largest) < vanishing;
    const double norm = vanishes ? 1 : std::sqrt(expected.sum), largest = vanishes ? 1 : std::sqrt(expected.largest);
    constexpr double tail = 15;
    const double many = worst_mantissa * (1 + 3 / std::sqrt(2.0) * spread());
    const double mantissas = std::min(square(worst_mantissa), 1 + 2 * spread());
    const double few = std::sqrt(mantissas * (1 + 2 * std::sqrt(tail) * spread() + 2 * tail * top()));
    // Numbers with equal roundings need not be neighbours in a sum: their part of it is the whole sum and a random walk
    // of its terms of 3 standard deviations.
    const double expected_error = std::sqrt(sum_) / norm, walk = 3 * in_common;
    return {expected_error, expected_error * (std::max(many, few) + walk) + in_common * u,
            (normal_tail * std::sqrt(wide_) + (normal_tail + walk) * std::sqrt(peak_)) / largest + in_common * u};
}

}  // namespace ringlab::reference
