#include "reference/ranks/kernels/cpu_elements.hpp"

#include "layouts/basics/require.hpp"
#include "reference/tensors/rounding.hpp"

#include <cstring>

namespace ringlab::reference {
namespace {

template <class Real>
void check(std::size_t values, layouts::DType dtype, std::size_t bytes) {
    require(is_storable<Real>(dtype), "numbers of {} bytes cannot be stored as {}", sizeof(Real), to_string(dtype));
    require(bytes == values * static_cast<std::size_t>(layouts::bytes_of(dtype)),
            "{} numbers of type {} do not fill {} bytes", values, to_string(dtype), bytes);
}

}  // namespace

template <class Real>
void store_elements(std::span<const Real> values, layouts::DType dtype, std::span<std::byte> memory) {
    check<Real>(values.size(), dtype, memory.size());
    if (layouts::bytes_of(dtype) == 2)
        to_bits(values, dtype, {reinterpret_cast<std::uint16_t*>(memory.data()), values.size()});
    else if (!values.empty())
        std::memcpy(memory.data(), values.data(), memory.size());
}

template <class Real>
void load_elements(std::span<const std::byte> memory, layouts::DType dtype, std::span<Real> values) {
    check<Real>(values.size(), dtype, memory.size());
    if (layouts::bytes_of(dtype) == 2)
        from_bits({reinterpret_cast<const std::uint16_t*>(memory.data()), values.size()}, dtype, values);
    else if (!values.empty())
        std::memcpy(values.data(), memory.data(), memory.size());
}

template void store_elements<float>(std::span<const float>, layouts::DType, std::span<std::byte>);
template void store_elements<double>(std::span<const double>, layouts::DType, std::span<std::byte>);
template void load_elements<float>(std::span<const std::byte>, layouts::DType, std::span<float>);
template void load_elements<double>(std::span<const std::byte>, layouts::DType, std::span<double>);

}  // namespace ringlab::reference
