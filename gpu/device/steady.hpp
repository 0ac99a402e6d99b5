#pragma once

#include <vector>

namespace ringlab::gpu {

/// Decides when repeated measurements are steady. After a pause they are not: clocks are high and fall as power rises,
/// and caches and connections are cold.
class Steady {
public:
    /// The warm-up takes at least `least` seconds and at most four times as many.
    explicit Steady(double least) : least_(least) {}

    void add(double seconds);

    /// Whether the least time has passed and the medians of the last two quarters agree within 0.5 %, or the most has
    /// passed.
    bool reached() const;

private:
    double least_, spent_ = 0;
    std::vector<double> samples_;
};

/// The median; for an even number of values the mean of the two in the middle. There must be a value.
double median(std::vector<double> values);

}  // namespace ringlab::gpu
