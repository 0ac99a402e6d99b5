#pragma once

#include "gpu/kernels/tile_shape.hpp"
#include "layouts/problem.hpp"

#include <string_view>

namespace ringlab::gpu {

/// Kernels that do the same work, in order of what they ask of the device.
enum class KernelFamily {
    automatic,  ///< the fastest there is for device, pass and dims
    portable,   ///< sm_80 and later: every device, dim, stride
    hopper,     ///< sm_90a: bulk copies and warpgroup products; data and strides must be multiples of 16 bytes
};

constexpr const char* to_string(KernelFamily family) {
    switch (family) {
        case KernelFamily::automatic: return "auto";
        case KernelFamily::portable: return "portable";
        case KernelFamily::hopper: return "hopper";
    }
    return "?";
}

/// By its name, as to_string() gives it. Throws Error if there is none of that name.
KernelFamily kernel_family(std::string_view name);

/// Whether the family has kernels for a pass over these dims: today for both passes or for none.
bool has_kernels(KernelFamily family, layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim);

/// The family that will do a pass on the current device, never automatic: `asked`, or portable where that family has no
/// kernels for the pass and dims. Throws Error if the device cannot run the one asked for.
KernelFamily resolve(KernelFamily asked, layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim);

}  // namespace ringlab::gpu
