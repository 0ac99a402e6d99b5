#pragma once

#include "gpu/kernels/common/dim_classes.hpp"
#include "gpu/kernels/portable/shared_layouts.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>

// Which portable kernels fit into the shared memory of which device.

namespace ringlab::gpu::portable {

enum class Kernel { forward, backward, query_gradient };

constexpr const char* to_string(Kernel kernel) {
    constexpr std::array names{"forward", "backward", "query gradient"};
    return names[static_cast<std::size_t>(kernel)];
}

constexpr std::array all_dims{DimClass::d64, DimClass::d128, DimClass::d192_128, DimClass::d256};

/// Shared memory that a thread block of the kernel needs.
constexpr int shared_bytes(Kernel kernel, DimClass dims) {
    return for_dim_class(dims, [&]<DimClass d>() {
        switch (kernel) {
            case Kernel::forward: return ForwardShared<d>::bytes;
            case Kernel::backward: return BackwardShared<d>::bytes;
            case Kernel::query_gradient: break;
        }
        return QueryGradientShared<d>::bytes;
    });
}

/// Most shared memory of a thread block, from the CUDA C++ Programming Guide's table of compute capabilities.
struct Architecture {
    int capability;  // 10 * major + minor
    int most_shared_bytes;
};
constexpr std::array<Architecture, 6> architectures{
    {{80, 163 << 10}, {86, 99 << 10}, {89, 99 << 10}, {90, 227 << 10}, {100, 227 << 10}, {120, 99 << 10}}};

/// Bit i: the kernel fits with all_dims[i].
constexpr unsigned dims_that_fit(Kernel kernel, int most_shared_bytes) {
    unsigned fit = 0;
    for (std::size_t i = 0; i < all_dims.size(); ++i)
        fit |= static_cast<unsigned>(shared_bytes(kernel, all_dims[i]) <= most_shared_bytes) << i;
    return fit;
}

/// Every instantiation against every architecture. A change of tiles that moves a kernel out of an architecture, or
/// into it, has to change these lines.
constexpr bool fits_are_as_documented() {
    for (const auto& [capability, most] : architectures) {
        const bool is_small = most < 128 << 10;  // sm_86, sm_89, sm_120
        if (dims_that_fit(Kernel::forward, most) != 0b1111) return false;
        if (dims_that_fit(Kernel::backward, most) != (is_small ? 0b0101 : 0b1111)) return false;
        if (dims_that_fit(Kernel::query_gradient, most) != (is_small ? 0b0011 : 0b1111)) return false;
    }
    return true;
}
static_assert(fits_are_as_documented());

/// An SM of sm_80 has 164 KiB, of which a thread block takes 1 KiB besides its own.
static_assert(BackwardConfig<DimClass::d64>::blocks_per_sm *
                  ((1 << 10) + shared_bytes(Kernel::backward, DimClass::d64)) <=
              164 << 10);

/// The smallest class of dims that holds both dims and whose kernel fits; none if there is no such class.
std::optional<DimClass> smallest_class(Kernel kernel, std::int64_t head_dim, std::int64_t value_dim,
                                       int most_shared_bytes);

/// As above, on the current device. Throws Error with refusal() if no class fits.
DimClass require_class(Kernel kernel, std::int64_t head_dim, std::int64_t value_dim);

/// One line that names the kernel, the shared memory that it needs, and what would fit.
std::string refusal(Kernel kernel, std::int64_t head_dim, std::int64_t value_dim, int most_shared_bytes);

}  // namespace ringlab::gpu::portable
