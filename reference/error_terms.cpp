#include "reference/error_terms.hpp"

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

double sum_roundings(double terms, DType dtype) { return terms / 2 + (is_narrow(dtype) ? square(0.07 * terms) : 0); }

Bound Errors::bound(double norm, double largest_expected, double width, double crest) const {
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

}  // namespace ringlab::reference
