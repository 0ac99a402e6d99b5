#pragma once

#include <vector>

namespace ringlab::gpu {

/// Decides when repeated measurements are steady. After a pause they are not: clocks are high and fall as power rises,
/// and caches and connections are cold.
class Steady {
public:
    /// `least` seconds are always spent, four times as many at most.
    explicit Steady(double least) : least_(least) {}

    void add(double seconds);

    /// Whether enough was spent and the medians of the last two quarters agree within 0.5 %, or the most was spent.
    bool reached() const;

private:
    double least_, spent_ = 0;
    std::vector<double> samples_;
};

/// The middle one, or the mean of the two in the middle; there must be a value.
double median(std::vector<double> values);

}  // namespace ringlab::gpu
