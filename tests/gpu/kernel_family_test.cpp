#include "gpu/kernels/kernel_family.hpp"

#include "layouts/require.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::tests {
namespace {

using gpu::KernelFamily;
using layouts::Pass;

BOOST_AUTO_TEST_SUITE(kernel_families)

BOOST_AUTO_TEST_CASE(families_have_their_names) {
    for (const auto family : {KernelFamily::automatic, KernelFamily::portable, KernelFamily::hopper})
        BOOST_TEST((gpu::kernel_family(to_string(family)) == family));
    BOOST_CHECK_THROW(gpu::kernel_family("fast"), Error);
}

BOOST_AUTO_TEST_CASE(portable_kernels_take_every_pass_and_dim_up_to_256) {
    for (const auto pass : {Pass::forward, Pass::backward})
        for (const std::int64_t dim : {1, 64, 130, 256})
            BOOST_TEST(gpu::has_kernels(KernelFamily::portable, pass, dim, 256 - dim + 1));
    BOOST_CHECK_THROW(gpu::has_kernels(KernelFamily::portable, Pass::forward, 257, 64), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
