#include "experiments/tolerance.hpp"

#include <cmath>

namespace ringlab::experiments {

using layouts::DType;

Tolerance uniform_tolerance(double largest) {
    Tolerance tolerance;
    tolerance.relative_rms.fill(largest);
    tolerance.max_relative.fill(largest);
    return tolerance;
}

Tolerance derived_tolerance(DType arithmetic, const Policy& policy, int ranks) {
    if (arithmetic == DType::fp64) return uniform_tolerance(1e-13);
    // fp32 sums, and exponentials within 2 units in the last place.
    constexpr double floor = 5e-5, lse = 3e-5;
    constexpr double spread = 1.5, deviations_of_largest = 5;
    const double rounding = arithmetic == DType::bf16 ? 1.65e-3 : arithmetic == DType::fp16 ? 1.65e-3 / 8 : 0;
    const bool partials = policy.accumulation == layouts::Accumulation::partials;
    // P is rounded before PV. A 16-bit partial output is another rounding, and a 16-bit running one each time it is
    // merged into.
    const double o = 1 + (partials ? 1 : 0) + (policy.running_output_rounded ? ranks : 0);
    // dS is rounded before its products. It is P (dP - delta), and delta, from o, counts twice: the difference is as a
    // rule smaller than its terms.
    const double ds = 1 + 2 * o;
    // 16-bit dK and dV are rounded once as a rank's own part and each time a rank has added its part.
    const double travelling = layouts::bytes_of(policy.gradient_dtype) == 2 ? 1 + ranks : 0;
    Tolerance tolerance;
    const std::array roundings{o + 1, o, 0.0, ds, ds + travelling, 1 + travelling};
    for (std::size_t i = 0; i < roundings.size(); ++i) {
        tolerance.relative_rms[i] = spread * std::sqrt(roundings[i]) * rounding + floor;
        tolerance.max_relative[i] = deviations_of_largest * tolerance.relative_rms[i];
    }
    constexpr std::size_t place_of_lse = 2;
    // Scores are fp32 sums of exact products, as many times as blocks are merged.
    tolerance.relative_rms[place_of_lse] = tolerance.max_relative[place_of_lse] = lse * (partials ? ranks : 1);
    return tolerance;
}

}  // namespace ringlab::experiments
