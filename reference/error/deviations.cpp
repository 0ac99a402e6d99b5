#include "reference/error/deviations.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringlab::reference {
namespace {

/// Root of the sum of squares of `count` numbers. `largest` is the largest magnitude among them; scaling by a power of
/// two keeps the squares in range.
template <class NumberAt>
double norm_of(std::size_t count, double largest, NumberAt number_at) {
    if (largest == 0) return 0;
    const double scale = std::exp2(std::clamp(-std::ilogb(largest), -1000, 1000));
    double squares = 0;
    for (std::size_t n = 0; n < count; ++n) squares += (number_at(n) * scale) * (number_at(n) * scale);
    return std::sqrt(squares) / scale;
}

template <class AnyTensor>
Deviation compare(const char* name, const AnyTensor& measured, const AnyTensor& expected) {
    require(measured.shape() == expected.shape(), "{}: measured shape ({}) differs from expected shape ({})", name,
            fmt::join(measured.shape(), ", "), fmt::join(expected.shape(), ", "));
    const auto is_infinite = [&](std::size_t n) {  // in both
        return measured.data()[n] == expected.data()[n] && std::isinf(expected.data()[n]);
    };
    const auto difference = [&](std::size_t n) {
        return is_infinite(n) ? 0 : std::abs(measured.data()[n] - expected.data()[n]);
    };
    const auto magnitude = [&](std::size_t n) { return is_infinite(n) ? 0 : std::abs(expected.data()[n]); };
    double largest_difference = 0, largest = 0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
        if (!std::isfinite(difference(n))) {
            constexpr auto infinite = std::numeric_limits<double>::infinity();
            return {infinite, infinite, infinite};
        }
        largest_difference = std::max(largest_difference, difference(n));
        largest = std::max(largest, magnitude(n));
    }
    const double norm = norm_of(expected.size(), largest_difference, difference);
    if (largest < vanishing) return {norm, largest_difference, largest_difference};
    return {norm / norm_of(expected.size(), largest, magnitude), largest_difference, largest_difference / largest};
}

}  // namespace

Deviation deviation(const char* name, const Tensor& measured, const Tensor& expected) {
    return compare(name, measured, expected);
}

Deviation deviation(const char* name, const Lse& measured, const Lse& expected) {
    return compare(name, measured, expected);
}

Deviation deviation(const char* name, const std::vector<double>& measured, const std::vector<double>& expected) {
    const auto tensor = [](const std::vector<double>& numbers) {
        Tensor all({numbers.size(), 1, 1, 1});
        std::copy(numbers.begin(), numbers.end(), all.begin());
        return all;
    };
    return compare(name, tensor(measured), tensor(expected));
}

OutputDeviations deviations(const Outputs& measured, const Outputs& expected) {
    return {deviation("o", measured.o, expected.o),    deviation("lse", measured.lse, expected.lse),
            deviation("dq", measured.dq, expected.dq), deviation("dk", measured.dk, expected.dk),
            deviation("dv", measured.dv, expected.dv), deviation("dsinks", measured.dsinks, expected.dsinks)};
}

}  // namespace ringlab::reference
