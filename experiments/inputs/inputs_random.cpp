#include "experiments/inputs/inputs_random.hpp"

#include "layouts/basics/philox.hpp"

#include <array>
#include <cmath>

namespace ringlab::experiments {
namespace {

/// c[0] + c[1] x + c[2] x^2 ...
template <std::size_t N>
double polynomial(const std::array<double, N>& c, double x) {
    double sum = 0;
    for (std::size_t i = N; i-- > 0;) sum = sum * x + c[i];
    return sum;
}

/// Natural logarithm by log(2^e m) = e log 2 + 2 artanh((m-1)/(m+1)), m within a factor sqrt(2) of 1, where eleven
/// terms reach double precision. std::log is not the same everywhere.
double portable_log(double x) {
    constexpr double log_2 = 0.69314718055994530942, sqrt_half = 0.70710678118654752440;
    int exponent = 0;
    double m = std::frexp(x, &exponent);
    if (m < sqrt_half) m *= 2, --exponent;
    const double s = (m - 1) / (m + 1);
    double sum = 0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * (s * s) + 1.0 / k;
    return exponent * log_2 + 2 * s * sum;
}

}  // namespace

// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16.
double normal_quantile(double p) {
    const double q = p - 0.5;
    if (std::abs(q) <= 0.425) {
        constexpr std::array above{3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                   1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                   3.3430575583588128105e4, 2.5090809287301226727e3};
        constexpr std::array below{1.0,
                                   4.2313330701600911252e1,
                                   6.8718700749205790830e2,
                                   5.3941960214247511077e3,
                                   2.1213794301586595867e4,
                                   3.9307895800092710610e4,
                                   2.8729085735721942674e4,
                                   5.2264952788528545610e3};
        const double r = 0.180625 - q * q;
        return q * polynomial(above, r) / polynomial(below, r);
    }
    const double r = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
    double x;
    if (r <= 5) {
        constexpr std::array above{1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                   3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
        constexpr std::array below{1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
        x = polynomial(above, r - 1.6) / polynomial(below, r - 1.6);
    } else {
        constexpr std::array above{6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                   2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
        constexpr std::array below{1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
        x = polynomial(above, r - 5) / polynomial(below, r - 5);
    }
    return q < 0 ? -x : x;
}

std::uint64_t random_bits(std::uint64_t seed, const ElementIndex& index) {
    // One call of the generator has bits for two neighbours in dim.
    const auto words = layouts::philox({index.position, index.head, index.batch, index.tensor << 24 | index.dim / 2},
                                       {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const std::size_t at = index.dim % 2 * 2;
    return std::uint64_t{words[at]} << 32 | words[at + 1];
}

double random_normal(std::uint64_t seed, const ElementIndex& index) {
    constexpr double step = 1.0 / (std::uint64_t{1} << 52);
    return normal_quantile((static_cast<double>(random_bits(seed, index) >> 12) + 0.5) * step);
}

}  // namespace ringlab::experiments
