#include "sim/machine/jitter.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <utility>

namespace ringlab::sim {
namespace {

// Kinds of draws, so that no two kinds use the same numbers.
enum Stream : std::uint64_t { starts, gpus, links, noise_of_forward, noise_of_backward };

/// Hashes numbers to 64 random bits, with the mixing function of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t hashed(std::initializer_list<std::uint64_t> numbers) {
    std::uint64_t bits = 0;
    for (const auto number : numbers) {
        bits = (bits ^ number) + 0x9e3779b97f4a7c15;
        bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
        bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
        bits ^= bits >> 31;
    }
    return bits;
}

/// A number in (0, 1) from the upper 52 bits, plus half a unit so that it is never 0.
double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

/// Draws `count` of the ranks; sorted.
std::vector<int> drawn_ranks(const Jitter& jitter, Stream stream, int count, int ranks) {
    if (count == 0) return {};
    std::vector<std::pair<std::uint64_t, int>> order;
    for (int rank = 0; rank < ranks; ++rank)
        order.emplace_back(
            hashed({jitter.seed, static_cast<std::uint64_t>(jitter.repeat), stream, static_cast<std::uint64_t>(rank)}),
            rank);
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end());
    std::vector<int> drawn;
    for (int i = 0; i < count; ++i) drawn.push_back(order[static_cast<std::size_t>(i)].second);
    std::sort(drawn.begin(), drawn.end());
    return drawn;
}

}  // namespace

Draws::Draws(const Jitter& jitter, int ranks, layouts::Pass pass)
    : jitter_(jitter), pass_(pass == layouts::Pass::forward ? noise_of_forward : noise_of_backward) {
    const auto straggle = [&](int count, double factor, const char* what) {
        require(count >= 0 && count <= ranks, "{} slow {} of {} ranks; there must be from 0 to {}", count, what, ranks,
                ranks);
        require(factor >= 1 && factor <= 1e6, "slow {} are {} times as slow; it must be from 1 to 1e6", what, factor);
    };
    straggle(jitter.slow_gpus, jitter.slow_gpu_factor, "GPUs");
    straggle(jitter.slow_links, jitter.slow_link_factor, "links");
    for (const auto noise : {jitter.compute_noise, jitter.transfer_noise})
        require(noise >= 0 && noise <= 3, "noise is {}; it must be from 0 to 3", noise);
    require(jitter.start_skew_seconds >= 0 && jitter.start_skew_seconds < 1e6,
            "start skew is {} s; it must be from 0 to 1e6", jitter.start_skew_seconds);
    slow_gpus_ = drawn_ranks(jitter, gpus, jitter.slow_gpus, ranks);
    slow_links_ = drawn_ranks(jitter, links, jitter.slow_links, ranks);
}

/// Normal number by the Box-Muller method, as the logarithm of the factor.
double Draws::drawn_noise(double deviation, int rank, layouts::OpIndex op) const {
    const auto bits = hashed({jitter_.seed, static_cast<std::uint64_t>(jitter_.repeat), pass_,
                              static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(op)});
    const auto radius = std::sqrt(-2 * std::log(uniform(bits)));
    return std::exp(deviation * radius * std::cos(2 * std::numbers::pi * uniform(hashed({bits}))));
}

double Draws::start_seconds(int rank) const {
    if (jitter_.start_skew_seconds == 0) return 0;
    return jitter_.start_skew_seconds * uniform(hashed({jitter_.seed, static_cast<std::uint64_t>(jitter_.repeat),
                                                        starts, static_cast<std::uint64_t>(rank)}));
}

}  // namespace ringlab::sim
