// A CUDA call that fails is reported where it fails, and only there.

#include "gpu/device/cuda_check.hpp"
#include "layouts/basics/require.hpp"
#include "tests/gpu/attend_case.hpp"

#include <boost/test/unit_test.hpp>

namespace ringlab::tests {

BOOST_AUTO_TEST_CASE(a_failed_call_is_not_reported_again_behind_the_next_launch,
                     *boost::unit_test::precondition(has_gpu)) {
    void* memory = nullptr;
    BOOST_CHECK_THROW(RINGLAB_CUDA(cudaMalloc(&memory, std::size_t{1} << 50)), Error);
    BOOST_CHECK_NO_THROW(RINGLAB_CUDA_LAUNCHED("the next one"));
}

}  // namespace ringlab::tests
