#pragma once

#include <cstdint>

namespace ringlab::layouts {

/// A time on a timeline, in picoseconds. An integer, so that two engines can agree exactly.
using Picoseconds = std::int64_t;

inline constexpr double picoseconds_per_second = 1e12;

constexpr double to_seconds(Picoseconds time) { return static_cast<double>(time) / picoseconds_per_second; }

/// Rounds to the nearest picosecond; `seconds` must be finite and below 9.2e6 in magnitude (106 days).
constexpr Picoseconds to_picoseconds(double seconds) {
    const double ticks = seconds * picoseconds_per_second;
    return static_cast<Picoseconds>(ticks + (ticks < 0 ? -0.5 : 0.5));
}

/// Element types of tensors and messages.
enum class DType { bf16, fp16, fp32, fp64 };

constexpr std::int64_t bytes_of(DType dtype) {
    switch (dtype) {
        case DType::bf16:
        case DType::fp16: return 2;
        case DType::fp32: return 4;
        case DType::fp64: return 8;
    }
    return 0;
}

constexpr const char* to_string(DType dtype) {
    switch (dtype) {
        case DType::bf16: return "bf16";
        case DType::fp16: return "fp16";
        case DType::fp32: return "fp32";
        case DType::fp64: return "fp64";
    }
    return "?";
}

/// The half-open range [begin, end); empty if end <= begin.
struct Interval {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    constexpr std::int64_t size() const { return end > begin ? end - begin : 0; }
    constexpr bool contains(std::int64_t x) const { return begin <= x && x < end; }
    friend constexpr bool operator==(const Interval&, const Interval&) = default;
};

}  // namespace ringlab::layouts
