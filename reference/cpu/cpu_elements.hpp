#pragma once

#include "layouts/units.hpp"

#include <cstddef>
#include <span>

namespace ringlab::reference {

/// Numbers between the arithmetic of the backend and memory of `dtype`: 16-bit types are rounded to nearest even; any
/// other dtype must be Real itself. `memory` holds exactly as many elements as there are values.
template <class Real>
void store_elements(std::span<const Real> values, layouts::DType dtype, std::span<std::byte> memory);
template <class Real>
void load_elements(std::span<const std::byte> memory, layouts::DType dtype, std::span<Real> values);

/// Whether memory of `dtype` can be stored from and loaded into Real.
template <class Real>
constexpr bool storable(layouts::DType dtype) {
    return dtype == (sizeof(Real) == 8 ? layouts::DType::fp64 : layouts::DType::fp32) || layouts::bytes_of(dtype) == 2;
}

}  // namespace ringlab::reference
