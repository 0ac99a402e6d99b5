#include "gpu/kernels/kernel_family.hpp"

#include "layouts/basics/require.hpp"

#include <boost/test/unit_test.hpp>

#include <utility>

namespace ringlab::tests {
namespace {

using gpu::KernelFamily;

BOOST_AUTO_TEST_SUITE(kernel_families)

BOOST_AUTO_TEST_CASE(families_have_their_names) {
    for (const auto family : {KernelFamily::automatic, KernelFamily::portable, KernelFamily::hopper})
        BOOST_TEST((gpu::kernel_family(to_string(family)) == family));
    BOOST_CHECK_THROW(gpu::kernel_family("fast"), Error);
}

BOOST_AUTO_TEST_CASE(portable_kernels_take_every_dim_up_to_256) {
    for (const std::int64_t dim : {1, 64, 130, 256})
        BOOST_TEST(gpu::has_kernels(KernelFamily::portable, dim, 256 - dim + 1));
    BOOST_CHECK_THROW(gpu::has_kernels(KernelFamily::portable, 257, 64), Error);
}

BOOST_AUTO_TEST_CASE(dropout_has_portable_kernels_alone) {
    layouts::Problem problem;
    problem.dropout.probability = 0.1;
    for (const auto asked : {KernelFamily::automatic, KernelFamily::portable})
        BOOST_TEST((gpu::resolve(asked, problem) == KernelFamily::portable));
    BOOST_CHECK_EXCEPTION(gpu::resolve(KernelFamily::hopper, problem), Error, [](const Error& error) {
        return std::string(error.what()) == "kernels hopper: they have no dropout (0.1, seed 0); say auto or portable";
    });
}

BOOST_AUTO_TEST_CASE(hopper_kernels_take_dims_that_fill_16_bytes) {
    const auto has = [](std::int64_t head_dim, std::int64_t value_dim) {
        return gpu::has_kernels(KernelFamily::hopper, head_dim, value_dim);
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
