#include "reference/error/error_terms.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::reference {

using layouts::DType;

double unit_of(DType dtype) {
    // Mean square of 2^-n/sqrt(3) / x over x in [1, 2) spread evenly in the logarithm: 3 / (8 ln 2).
    const int bits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : dtype == DType::fp32 ? 24 : 53;
    return std::exp2(-bits) * std::sqrt(1 / (8 * std::log(2.0)));
}

double subnormal_to_unit(DType dtype) {
    return dtype == DType::fp16 ? std::exp2(-24) / std::sqrt(12.0) / unit_of(DType::fp16) : 0;
}

DType accumulator_of(DType dtype) { return dtype == DType::fp64 ? DType::fp64 : DType::fp32; }

double smallest_of(DType dtype) { return dtype == DType::fp64 ? vanishing : 0x1p-126; }

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

std::vector<Norms> norms_of(const Tensor& tensor) {
    std::vector<Norms> norms;
    const auto dim = tensor.shape(3);
    for (std::size_t at = 0; at < tensor.size(); at += dim) norms.push_back(norms_of(tensor.data() + at, dim));
    return norms;
}

double largest_of(const double* x, std::size_t count) {
    double largest = 0;
    for (std::size_t i = 0; i < count; ++i)
        if (std::isfinite(x[i])) largest = std::max(largest, std::abs(x[i]));
    return largest;
}

double sum_roundings(double terms, DType dtype) { return terms / 2 + (is_narrow(dtype) ? square(0.07 * terms) : 0); }

void Errors::add(const RowError& row) {
    const double all = row.narrow + row.wide + row.parts;
    sum_ += all;
    squares_ += square(all);
    largest_ = std::max(largest_, all);
    peak_ = std::max(peak_, row.peak);
    wide_ = std::max(wide_, row.wide);
}

void Errors::share(double common) {
    shared_squares_ += square(common);
    largest_shared_ = std::max(largest_shared_, common);
}

void Errors::no_more_independent_than(const Errors& other) {
    if (other.sum_ == 0) return;
    least_spread_ =
        std::max(least_spread_, (std::sqrt(other.squares_) + std::sqrt(other.shared_squares_)) / other.sum_);
    least_top_ = std::max(least_top_, (other.largest_ + other.largest_shared_) / other.sum_);
}

Bound Errors::bound(double norm, double largest_expected) const {
    if (sum_ == 0) return {};
    if (largest_expected < vanishing) norm = largest_expected = 1;  // as deviations are counted
    constexpr double tail = 15;
    const double spread = std::max((std::sqrt(squares_) + std::sqrt(shared_squares_)) / sum_, least_spread_);
    const double top = std::max((largest_ + largest_shared_) / sum_, least_top_);
    const double many = worst_mantissa * (1 + 3 / std::sqrt(2.0) * spread);
    const double mantissas = std::min(square(worst_mantissa), 1 + 2 * spread);
    const double few = std::sqrt(mantissas * (1 + 2 * std::sqrt(tail) * spread + 2 * tail * top));
    Bound bound;
    bound.expected = std::sqrt(sum_ / norm);
    bound.relative_rms =
        std::hypot(bound.expected * std::max(many, few), std::sqrt(rare_ / norm)) + std::sqrt(known_.squared / norm);
    bound.max_to_largest =
        (std::sqrt(peak_) + normal_tail * (std::sqrt(wide_) + std::sqrt(own_))) / largest_expected + known_.relative;
    return bound;
}

}  // namespace ringlab::reference
