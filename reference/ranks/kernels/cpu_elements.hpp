#pragma once

#include "layouts/basics/basic_types.hpp"

#include <cstddef>
#include <span>

namespace ringlab::reference {

/// Converts between numbers of the backend's arithmetic (Real) and memory with elements of `dtype`. Storing rounds
/// 16-bit types to nearest even; any other dtype must be that of Real. Throws Error if it is not, or unless `memory`
/// holds exactly as many elements as there are values.
template <class Real>
void store_elements(std::span<const Real> values, layouts::DType dtype, std::span<std::byte> memory);
template <class Real>
void load_elements(std::span<const std::byte> memory, layouts::DType dtype, std::span<Real> values);

/// Whether store_elements() and load_elements() of Real support `dtype`.
template <class Real>
constexpr bool is_storable(layouts::DType dtype) {
    return dtype == (sizeof(Real) == 8 ? layouts::DType::fp64 : layouts::DType::fp32) || layouts::bytes_of(dtype) == 2;
}

}  // namespace ringlab::reference
