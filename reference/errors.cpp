#include "reference/errors.hpp"

#include "layouts/require.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ringlab::reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double ratio(double difference, double expected) { return difference == 0 ? 0 : difference / expected; }

template <class AnyTensor>
Deviation compare(const char* name, const AnyTensor& measured, const AnyTensor& expected) {
    require(measured.shape() == expected.shape(), "{}: measured shape ({}) differs from expected shape ({})", name,
            fmt::join(measured.shape(), ", "), fmt::join(expected.shape(), ", "));
    double difference_squared = 0, expected_squared = 0, largest_difference = 0, largest = 0;
    for (std::size_t n = 0; n < expected.size(); ++n) {
        const double have = measured.data()[n], want = expected.data()[n];
        if (have == want && std::isinf(want)) continue;
        const double difference = std::abs(have - want);
        if (!std::isfinite(difference)) return {infinity, infinity, infinity};
        difference_squared += difference * difference;
        expected_squared += want * want;
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

OutputDeviations deviations(const Outputs& measured, const Outputs& expected) {
    return {deviation("o", measured.o, expected.o), deviation("lse", measured.lse, expected.lse),
            deviation("dq", measured.dq, expected.dq), deviation("dk", measured.dk, expected.dk),
            deviation("dv", measured.dv, expected.dv)};
}

}  // namespace ringlab::reference
