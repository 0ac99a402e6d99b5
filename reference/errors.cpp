#include "reference/errors.hpp"

#include "layouts/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringlab::reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double ratio(double difference, double expected) { return expected == 0 ? difference : difference / expected; }

/// A power of two that keeps squares of the values in range; 1 but for sizes that no usual tensor has.
template <class AnyTensor>
double safe_scale(const AnyTensor& values) {
    double largest = 0;
    for (std::size_t n = 0; n < values.size(); ++n)
        if (std::isfinite(values.data()[n])) largest = std::max(largest, std::abs(values.data()[n]));
    return largest > 0x1p400 || (largest > 0 && largest < 0x1p-400) ? std::exp2(-std::ilogb(largest)) : 1;
}

template <class AnyTensor>
Deviation compare(const char* name, const AnyTensor& measured, const AnyTensor& expected) {
    require(measured.shape() == expected.shape(), "{}: measured shape ({}) differs from expected shape ({})", name,
            fmt::join(measured.shape(), ", "), fmt::join(expected.shape(), ", "));
    double difference_squared = 0, expected_squared = 0, largest_difference = 0, largest = 0;
    const double scale = safe_scale(expected);
    for (std::size_t n = 0; n < expected.size(); ++n) {
        const double have = measured.data()[n], want = expected.data()[n];
        if (have == want && std::isinf(want)) continue;
        const double difference = std::abs(have - want);
        if (!std::isfinite(difference)) return {infinity, infinity, infinity};
        difference_squared += (difference * scale) * (difference * scale);
        expected_squared += (want * scale) * (want * scale);
        largest_difference = std::max(largest_difference, difference);
        largest = std::max(largest, std::abs(want));
    }
    return {ratio(std::sqrt(difference_squared), std::sqrt(expected_squared)), largest_difference,
            ratio(largest_difference, largest)};
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
