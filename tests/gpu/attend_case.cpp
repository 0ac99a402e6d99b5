#include "tests/gpu/attend_case.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/device_buffer.hpp"
#include "reference/tensors/rounding.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>
#include <random>

std::ostream& ringlab::layouts::boost_test_print_type(std::ostream& out, DType dtype) {
    return out << to_string(dtype);
}

std::ostream& ringlab::layouts::boost_test_print_type(std::ostream& out, Pass pass) { return out << to_string(pass); }

std::ostream& ringlab::gpu::boost_test_print_type(std::ostream& out, Major major) {
    return out << (major == Major::queries ? "by query tile" : "by key tile");
}

namespace ringlab::tests {

using layouts::DType;

gpu::DeviceBuffer on_device(std::span<const double> values, DType dtype) {
    gpu::DeviceBuffer buffer(values.size() * static_cast<std::size_t>(layouts::bytes_of(dtype)));
    if (dtype == DType::fp32) {
        const std::vector<float> floats(values.begin(), values.end());
        buffer.upload(floats.data());
    } else {
        std::vector<std::uint16_t> bits(values.size());
        reference::to_bits(values, dtype, bits);
        buffer.upload(bits.data());
    }
    return buffer;
}

std::vector<double> from_device(const gpu::DeviceBuffer& buffer, DType dtype) {
    if (dtype == DType::fp32) {
        std::vector<float> floats(buffer.bytes() / sizeof(float));
        buffer.download(floats.data());
        return {floats.begin(), floats.end()};
    }
    std::vector<std::uint16_t> bits(buffer.bytes() / sizeof(std::uint16_t));
    buffer.download(bits.data());
    std::vector<double> values(bits.size());
    reference::from_bits(bits, dtype, values);
    return values;
}

boost::test_tools::assertion_result has_gpu(boost::unit_test::test_unit_id) {
    int devices = 0;
    boost::test_tools::assertion_result result(cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0);
    result.message() << "no GPU on this machine";
    return result;
}

boost::test_tools::assertion_result has_hopper(boost::unit_test::test_unit_id id) {
    auto result = has_gpu(id);
    if (!result) return result;
    result = boost::test_tools::assertion_result(std::ranges::count(families(), "hopper") > 0);
    if (!result) result.message() << "no GPU on this machine that runs the kernels for sm_90a";
    return result;
}

// Called before main(), when families may not have registered themselves yet: so by name.
std::vector<std::string> families() {
    int devices = 0, major = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return {"portable"};
    RINGLAB_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major == 9) return {"portable", "hopper"};
    return {"portable"};
}

void check(const char* name, const reference::Deviation& measured, const reference::Bound& bound) {
    BOOST_TEST_CONTEXT(name << ": relative rms " << measured.relative_rms << " of " << bound.relative_rms
                            << ", largest " << measured.max_to_largest << " of " << bound.max_to_largest) {
        BOOST_TEST(measured.relative_rms <= bound.relative_rms);
        BOOST_TEST(measured.max_to_largest <= bound.max_to_largest);
    }
}

void check(const reference::OutputDeviations& measured, const reference::Bounds& bounds) {
    check("o", measured.o, bounds.o_unrounded);
    check("lse", measured.lse, bounds.lse);
    check("dq", measured.dq, bounds.dq);
    check("dk", measured.dk, bounds.dk);
    check("dv", measured.dv, bounds.dv);
    check("dsinks", measured.dsinks, bounds.dsinks);
}

reference::Inputs random_inputs(const layouts::Problem& p, std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    const auto tensor = [&](const std::array<std::int64_t, 4>& shape, double size = 1) {
        auto t = reference::zeros_of(shape);
        for (auto& x : t) x = size * normal(generator);
        return reference::rounded(std::move(t), p.dtype);
    };
    const double of_matrices = p.latent.is_given() ? 1 / std::sqrt(static_cast<double>(p.latent.rank)) : 1;
    return {tensor({p.batch, p.rows(), p.query_heads, p.head_dim}), tensor(p.key_shape()),
            tensor(p.value_shape(), of_matrices), tensor({p.batch, p.rows(), p.query_heads, p.value_dim})};
}

}  // namespace ringlab::tests
