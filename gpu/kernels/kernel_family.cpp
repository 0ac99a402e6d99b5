#include "gpu/kernels/kernel_family.hpp"

#include "gpu/device/cuda_check.hpp"
#include "layouts/basics/require.hpp"

namespace ringlab::gpu {
namespace {

/// Compute capability of the current device, times 10.
int compute_capability() {
    int device = 0, major = 0, minor = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    RINGLAB_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return 10 * major + minor;
}

// Code for sm_90a runs on this one and no later one.
constexpr int hopper_capability = 90;

}  // namespace

KernelFamily kernel_family(std::string_view name) {
    for (const auto family : {KernelFamily::automatic, KernelFamily::portable, KernelFamily::hopper})
        if (name == to_string(family)) return family;
    fail("no kernels '{}'; known: auto, portable, hopper", name);
}

bool has_kernels(KernelFamily family, std::int64_t head_dim, std::int64_t value_dim) {
    dim_class(head_dim, value_dim);  // throws if no family has them
    if (family == KernelFamily::portable) return true;
    // Rows of dense tensors are then multiples of 16 bytes.
    constexpr std::int64_t chunk = 8;
    return head_dim % chunk == 0 && value_dim % chunk == 0;
}

KernelFamily resolve(KernelFamily asked, std::int64_t head_dim, std::int64_t value_dim) {
    const bool exists = has_kernels(KernelFamily::hopper, head_dim, value_dim);
    if (asked == KernelFamily::portable) return asked;
    const int capability = compute_capability();
    if (asked == KernelFamily::automatic)
        return exists && capability == hopper_capability ? KernelFamily::hopper : KernelFamily::portable;
    require(capability == hopper_capability,
            "kernels {}: they run on devices of compute capability 9.0, this one has {}.{}; say auto or portable",
            to_string(asked), capability / 10, capability % 10);
    return exists ? KernelFamily::hopper : KernelFamily::portable;
}

KernelFamily resolve(KernelFamily asked, const layouts::Problem& problem) {
    if (!problem.dropout.drops()) return resolve(asked, problem.head_dim, problem.value_dim);
    require(asked != KernelFamily::hopper, "kernels hopper: they have no dropout ({}); say auto or portable",
            text_of(problem.dropout));
    return KernelFamily::portable;
}

KernelItems kernel_items(KernelFamily family, layouts::Pass pass, std::int64_t head_dim, std::int64_t value_dim) {
    const auto dims = dim_class(head_dim, value_dim);
    if (pass == layouts::Pass::forward) return {false, forward_tile(dims, family), {}};
    KernelItems items{true, backward_tile(dims, family), {}};
    if (family == KernelFamily::hopper) items.shared_by = {2, 4, 8};
    return items;
}

}  // namespace ringlab::gpu
