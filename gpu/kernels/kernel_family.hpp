#pragma once

#include "gpu/kernels/common/tile_shape.hpp"
#include "layouts/problem/problem.hpp"

#include <string_view>
#include <vector>

namespace ringlab::gpu {

/// Kernels that do the same work, in order of what they ask of the device.
enum class KernelFamily {
    automatic,  ///< the fastest there is for device and dims
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

/// Whether the family has kernels for these dims.
bool has_kernels(KernelFamily family, std::int64_t head_dim, std::int64_t value_dim);

/// The family that will compute on the current device, never automatic: `asked`, or portable where that family has no
/// kernels for the dims. Throws Error if the device cannot run the one asked for.
KernelFamily resolve(KernelFamily asked, std::int64_t head_dim, std::int64_t value_dim);

/// The same for a problem: dropout has portable kernels alone. Throws Error also if it is to drop out in others.
KernelFamily resolve(KernelFamily asked, const layouts::Problem& problem);

/// What thread blocks of a family's kernel take up one after another: what a model of its time has to know.
struct KernelItems {
    bool are_key_tiles = false;  ///< of a kv head, its query heads in turn; otherwise query tiles, of a query head
    TileShape tile;
    std::vector<int> shared_by{};  ///< how many thread blocks may share an item, other than one
};
KernelItems kernel_items(KernelFamily family, layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim);

}  // namespace ringlab::gpu
