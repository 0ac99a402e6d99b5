#include "gpu/kernels/kernel_family.hpp"

#include "gpu/kernels/fused_work.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>

namespace ringlab::gpu {
namespace {

std::vector<std::unique_ptr<const KernelFamily>>& registered() {
    static std::vector<std::unique_ptr<const KernelFamily>> families;
    return families;
}

/// The first of those that take the problem, `asked` and later ones, that the device can run.
template <class Takes>
const KernelFamily& first_of(const KernelFamily* asked, Takes takes) {
    bool is_allowed = !asked;
    for (const auto* family : kernel_families()) {
        is_allowed |= family == asked;
        if (!is_allowed) continue;
        if (family == asked) {
            const auto reason = family->why_not_on_this_device();
            require(reason.empty(), "kernels {}: {}; say auto or portable", family->name(), reason);
        }
        if (takes(*family) && (family == asked || family->why_not_on_this_device().empty())) return *family;
    }
    fail("no kernels take this problem on this device");
}

}  // namespace

DimClass dim_class(std::int64_t head_dim, std::int64_t value_dim) {
    require(head_dim >= 1 && head_dim <= 256 && value_dim >= 1 && value_dim <= 256,
            "head dim {} with value dim {}: the kernels take 1 to 256 of each", head_dim, value_dim);
    if (head_dim <= 64 && value_dim <= 64) return DimClass::d64;
    if (head_dim <= 128 && value_dim <= 128) return DimClass::d128;
    if (head_dim <= 192 && value_dim <= 128) return DimClass::d192_128;
    return DimClass::d256;
}

std::unique_ptr<FusedWork> KernelFamily::make_fused(const layouts::Mask&, std::shared_ptr<const RowBounds>,
                                                    std::span<const FusedBlock>, const FusedOptions&) const {
    fail("kernels {}: they cannot do several blocks in one launch", name());
}

MergingWork KernelFamily::make_merging(const MergingArgs&) const {
    fail("kernels {}: they cannot do a pass of several ranks in one launch", name());
}

KernelFamilyRegistration::KernelFamilyRegistration(std::unique_ptr<const KernelFamily> family) {
    auto& all = registered();
    const auto place =
        std::ranges::find_if(all, [&](const auto& other) { return other->preference() < family->preference(); });
    all.insert(place, std::move(family));
}

std::vector<const KernelFamily*> kernel_families() {
    std::vector<const KernelFamily*> families;
    for (const auto& family : registered()) families.push_back(family.get());
    return families;
}

const KernelFamily* kernel_family(std::string_view name) {
    if (name == "auto") return nullptr;
    std::string known = "auto";
    for (const auto* family : kernel_families()) {
        if (family->name() == name) return family;
        known += ", " + family->name();
    }
    fail("no kernels '{}'; known: {}", name, known);
}

const KernelFamily& resolve(const KernelFamily* asked, std::int64_t head_dim, std::int64_t value_dim) {
    return first_of(asked, [&](const KernelFamily& family) { return family.takes_dims(head_dim, value_dim); });
}

const KernelFamily& resolve(const KernelFamily* asked, const layouts::Problem& problem) {
    return resolve(asked, problem.head_dim, problem.value_dim);
}

}  // namespace ringlab::gpu
