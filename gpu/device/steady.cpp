#include "gpu/device/steady.hpp"

#include <algorithm>
#include <cmath>

namespace ringlab::gpu {

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

void Steady::add(double seconds) {
    samples_.push_back(seconds);
    spent_ += seconds;
}

bool Steady::reached() const {
    constexpr double patience = 4, tolerance = 0.005;
    constexpr std::ptrdiff_t least_samples = 8;
    if (spent_ >= patience * least_) return true;
    const auto quarter = static_cast<std::ptrdiff_t>(samples_.size()) / 4;
    if (spent_ < least_ || 4 * quarter < least_samples) return false;
    const double last = median({samples_.end() - quarter, samples_.end()});
    const double before = median({samples_.end() - 2 * quarter, samples_.end() - quarter});
    return std::abs(last - before) <= tolerance * before;
}

}  // namespace ringlab::gpu
