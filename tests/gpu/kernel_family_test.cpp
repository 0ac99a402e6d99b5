#include "gpu/kernels/kernel_family.hpp"

#include "gpu/kernels/portable/shared_memory.hpp"
#include "layouts/basics/require.hpp"

#include <boost/test/unit_test.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::tests {
namespace {

using gpu::kernel_family;

BOOST_AUTO_TEST_SUITE(kernel_families)

BOOST_AUTO_TEST_CASE(families_have_their_names) {
    for (const auto* family : gpu::kernel_families()) BOOST_TEST((kernel_family(family->name()) == family));
    BOOST_TEST((kernel_family("auto") == nullptr));
    BOOST_CHECK_EXCEPTION(kernel_family("fast"), Error, [](const Error& error) {
        return std::string(error.what()) == "no kernels 'fast'; known: auto, hopper, portable";
    });
}

BOOST_AUTO_TEST_CASE(the_hopper_family_is_preferred_to_the_portable_one) {
    BOOST_TEST((gpu::kernel_families() == std::vector{kernel_family("hopper"), kernel_family("portable")}));
}

BOOST_AUTO_TEST_CASE(portable_kernels_take_every_dim_up_to_256) {
    for (const std::int64_t dim : {1, 64, 130, 256})
        BOOST_TEST(kernel_family("portable")->takes_dims(dim, 256 - dim + 1));
    BOOST_CHECK_THROW(kernel_family("portable")->takes_dims(257, 64), Error);
}

BOOST_AUTO_TEST_CASE(dropout_has_portable_kernels_alone) {
    layouts::Problem problem;
    problem.dropout.probability = 0.1;
    for (const auto* asked : {kernel_family("auto"), kernel_family("portable")})
        BOOST_TEST(gpu::resolve(asked, problem).name() == "portable");
    BOOST_CHECK_EXCEPTION(gpu::resolve(kernel_family("hopper"), problem), Error, [](const Error& error) {
        return std::string(error.what()) == "kernels hopper: they have no dropout (0.1, seed 0); say auto or portable";
    });
}

BOOST_AUTO_TEST_CASE(a_device_with_little_shared_memory_uses_the_next_class_of_dims_that_fits) {
    using gpu::DimClass;
    using gpu::portable::Kernel, gpu::portable::smallest_class;
    constexpr int a100 = 163 << 10, rtx = 99 << 10;
    BOOST_TEST((smallest_class(Kernel::backward, 128, 128, a100) == DimClass::d128));
    BOOST_TEST((smallest_class(Kernel::backward, 64, 64, rtx) == DimClass::d64));
    BOOST_TEST((smallest_class(Kernel::backward, 128, 128, rtx) == DimClass::d192_128));
    BOOST_TEST((smallest_class(Kernel::forward, 128, 128, rtx) == DimClass::d128));
    BOOST_TEST((smallest_class(Kernel::backward, 192, 192, rtx) == std::nullopt));
}

BOOST_AUTO_TEST_CASE(a_kernel_that_does_not_fit_is_refused_with_one_line) {
    BOOST_TEST(gpu::portable::refusal(gpu::portable::Kernel::backward, 256, 256, 99 << 10) ==
               "the portable backward kernel for head and value dims 256/256 needs 136.5 KiB of shared memory per "
               "thread block, and this device has 99 KiB: dims of at most 64/64 or 192/128 fit; or say --backend cpu");
}

BOOST_AUTO_TEST_CASE(hopper_kernels_take_dims_that_fill_16_bytes) {
    const auto has = [](std::int64_t head_dim, std::int64_t value_dim) {
        return kernel_family("hopper")->takes_dims(head_dim, value_dim);
    };
    for (const auto& [head, value] : {std::pair(64, 64), std::pair(8, 40), std::pair(128, 128), std::pair(192, 128),
                                      std::pair(200, 128), std::pair(256, 256)})
        BOOST_TEST(has(head, value));
    BOOST_TEST(!has(60, 64));
    BOOST_TEST(!has(64, 33));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
