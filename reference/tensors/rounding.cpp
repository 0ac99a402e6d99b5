#include "reference/tensors/rounding.hpp"

#include "layouts/basics/require.hpp"

namespace ringlab::reference {
namespace {

using layouts::DType;

// Plain loops with branch-free bodies, so that the compiler vectorises them.

template <class Format, class Real>
void round_all(std::span<Real> values) {
    for (auto& x : values) x = static_cast<Real>(round_to<Format>(x));
}

template <class Real>
void round_to_dtype(std::span<Real> values, DType dtype) {
    switch (dtype) {
        case DType::bf16: return round_all<Bf16>(values);
        case DType::fp16: return round_all<Fp16>(values);
        case DType::fp32:
            for (auto& x : values) x = static_cast<Real>(static_cast<float>(x));
            return;
        case DType::fp64: return;
    }
}

void require_patterns(DType dtype, std::size_t from, std::size_t to) {
    require(dtype == DType::bf16 || dtype == DType::fp16, "{} has no 16-bit patterns; only bf16 and fp16 have",
            to_string(dtype));
    require(from == to, "{} values cannot be converted to {}; the lengths must be equal", from, to);
}

template <class Format, class Real>
void encode_all(std::span<const Real> values, std::span<std::uint16_t> patterns) {
    for (std::size_t i = 0; i < values.size(); ++i) patterns[i] = to_bits<Format>(values[i]);
}

template <class Real>
void encode(std::span<const Real> values, DType dtype, std::span<std::uint16_t> patterns) {
    require_patterns(dtype, values.size(), patterns.size());
    if (dtype == DType::bf16)
        encode_all<Bf16>(values, patterns);
    else
        encode_all<Fp16>(values, patterns);
}

template <class Format, class Real>
void decode_all(std::span<const std::uint16_t> patterns, std::span<Real> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Real>(from_bits<Format>(patterns[i]));
}

template <class Real>
void decode(std::span<const std::uint16_t> patterns, DType dtype, std::span<Real> values) {
    require_patterns(dtype, patterns.size(), values.size());
    if (dtype == DType::bf16)
        decode_all<Bf16>(patterns, values);
    else
        decode_all<Fp16>(patterns, values);
}

}  // namespace

void round_in_place(std::span<double> values, DType dtype) { round_to_dtype(values, dtype); }
void round_in_place(std::span<float> values, DType dtype) { round_to_dtype(values, dtype); }

Tensor rounded(Tensor tensor, DType dtype) {
    round_in_place(std::span<double>(tensor.data(), tensor.size()), dtype);
    return tensor;
}

double rounded(double x, DType dtype) {
    round_in_place(std::span(&x, 1), dtype);
    return x;
}

void to_bits(std::span<const double> values, DType dtype, std::span<std::uint16_t> patterns) {
    encode(values, dtype, patterns);
}
void to_bits(std::span<const float> values, DType dtype, std::span<std::uint16_t> patterns) {
    encode(values, dtype, patterns);
}
void from_bits(std::span<const std::uint16_t> patterns, DType dtype, std::span<double> values) {
    decode(patterns, dtype, values);
}
void from_bits(std::span<const std::uint16_t> patterns, DType dtype, std::span<float> values) {
    decode(patterns, dtype, values);
}

}  // namespace ringlab::reference
