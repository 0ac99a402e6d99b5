#pragma once

#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/attention.hpp"
#include "layouts/problem/problem.hpp"
#include "reference/error/deviations.hpp"
#include "reference/error/error_model.hpp"
#include "reference/tensors/tensors.hpp"

#include <boost/test/unit_test.hpp>

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

// How Boost.Test prints parameters of these types.
namespace ringlab::layouts {
std::ostream& boost_test_print_type(std::ostream& out, DType dtype);
std::ostream& boost_test_print_type(std::ostream& out, Pass pass);
}  // namespace ringlab::layouts
namespace ringlab::gpu {
std::ostream& boost_test_print_type(std::ostream& out, Major major);
}  // namespace ringlab::gpu

namespace ringlab::tests {

/// Whether this process sees a GPU that the kernels were built for: the precondition of every test that launches one.
boost::test_tools::assertion_result has_gpu(boost::unit_test::test_unit_id);

/// The same for the kernels for sm_90a.
boost::test_tools::assertion_result has_hopper(boost::unit_test::test_unit_id);

/// The kernel families to test here: those that this machine's GPU runs.
std::vector<std::string> families();

/// Checks that a deviation is within its bound.
void check(const char* name, const reference::Deviation& measured, const reference::Bound& bound);
/// The same for all results; o is the one that is not rounded.
void check(const reference::OutputDeviations& measured, const reference::Bounds& bounds);

/// Numbers in device memory of their own: fp32, or bf16 or fp16, to which they are rounded; and back.
gpu::DeviceBuffer on_device(std::span<const double> values, layouts::DType dtype);
std::vector<double> from_device(const gpu::DeviceBuffer& buffer, layouts::DType dtype);

/// Normal random values, rounded to the problem's dtype.
reference::Inputs random_inputs(const layouts::Problem& problem, std::uint64_t seed);

}  // namespace ringlab::tests
