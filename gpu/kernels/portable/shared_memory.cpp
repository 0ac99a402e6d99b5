#include "gpu/kernels/portable/shared_memory.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/kernels/common/params.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <map>

namespace ringlab::gpu::portable {
namespace {

/// most_shared_memory(), without asking the driver at every launch.
int most_shared_bytes_here() {
    static thread_local std::map<int, int> known;  // by device
    int device = 0;
    RINGLAB_CUDA(cudaGetDevice(&device));
    const auto [found, is_new] = known.try_emplace(device);
    if (is_new) found->second = most_shared_memory();
    return found->second;
}

}  // namespace

std::optional<DimClass> smallest_class(Kernel kernel, std::int64_t head_dim, std::int64_t value_dim,
                                       int most_shared_bytes) {
    dim_class(head_dim, value_dim);  // throws if there are no kernels for these dims
    const auto dims = dims_of_classes();
    for (std::size_t i = 0; i < all_dims.size(); ++i)
        if (dims[i].head >= head_dim && dims[i].value >= value_dim &&
            shared_bytes(kernel, all_dims[i]) <= most_shared_bytes)
            return all_dims[i];
    return std::nullopt;
}

std::string refusal(Kernel kernel, std::int64_t head_dim, std::int64_t value_dim, int most_shared_bytes) {
    constexpr double kibibyte = 1024;
    std::string fitting;
    const auto dims = dims_of_classes();
    for (std::size_t i = 0; i < all_dims.size(); ++i)
        if (dims_that_fit(kernel, most_shared_bytes) >> i & 1)
            fitting += fmt::format("{}{}/{}", fitting.empty() ? "" : " or ", dims[i].head, dims[i].value);
    return fmt::format(
        "the portable {} kernel for head and value dims {}/{} needs {:.1f} KiB of shared memory per thread block, and "
        "this device has {:.0f} KiB: dims of at most {} fit; or compute on CPUs",
        to_string(kernel), head_dim, value_dim, shared_bytes(kernel, dim_class(head_dim, value_dim)) / kibibyte,
        most_shared_bytes / kibibyte, fitting.empty() ? "no size" : fitting);
}

DimClass require_class(Kernel kernel, std::int64_t head_dim, std::int64_t value_dim) {
    const int most = most_shared_bytes_here();
    const auto found = smallest_class(kernel, head_dim, value_dim, most);
    if (!found) fail("{}", refusal(kernel, head_dim, value_dim, most));
    return *found;
}

}  // namespace ringlab::gpu::portable
