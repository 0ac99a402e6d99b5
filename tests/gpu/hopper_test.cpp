// The wrappers of sm_90a's instructions, one at a time: products against fp64, copies against what lies in memory.

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/hopper/ptx/tensor_map.hpp"
#include "layouts/basics/require.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/hopper_probe.hpp"
#include "tests/registered.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <ostream>
#include <random>
#include <vector>

namespace ringlab::tests {

std::ostream& operator<<(std::ostream& out, Source source) {
    switch (source) {
        case Source::rows_outer: return out << "by rows";
        case Source::rows_summed: return out << "transposed";
        case Source::registers: return out << "in registers";
    }
    return out;
}

namespace {

namespace data = boost::unit_test::data;
using gpu::DeviceBuffer;
using gpu::uploaded;
using layouts::DType;

/// Normal random values and their 16-bit form.
struct Matrix {
    Matrix(std::size_t count, DType dtype) : values(count), bits(count) {
        static std::mt19937_64 generator(5);
        std::normal_distribution<double> normal;
        for (auto& x : values) x = normal(generator);
        reference::to_bits(values, dtype, bits);
        reference::from_bits(bits, dtype, values);
    }
    std::vector<double> values;
    std::vector<std::uint16_t> bits;
};

std::vector<float> floats(const DeviceBuffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    buffer.download(values.data());
    return values;
}

BOOST_AUTO_TEST_SUITE(hopper, *boost::unit_test::precondition(has_hopper))

BOOST_DATA_TEST_CASE(products_agree_with_fp64,
                     data::make({Source::rows_outer, Source::rows_summed, Source::registers}) *
                         data::make({Source::rows_outer, Source::rows_summed}) * data::make({DType::bf16, DType::fp16}),
                     a_source, b_source, dtype) {
    Combinations combinations;
    for (const int n : probe_widths) {
        if (!combinations.take(has_width(dtype, b_source, n))) continue;
        const auto columns = static_cast<std::size_t>(n);
        constexpr std::size_t rows = probe_rows, depth = probe_depth;
        const Matrix a(rows * depth, dtype), b(columns * depth, dtype);
        const auto a_device = uploaded(a.bits), b_device = uploaded(b.bits);
        DeviceBuffer d(rows * columns * sizeof(float));
        d.fill(0xff, nullptr);
        probe_product({a_source, b_source, n}, dtype, a_device.data(), b_device.data(), d.as<float>());
        const auto measured = floats(d);
        double largest = 0;
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t j = 0; j < columns; ++j) {
                double sum = 0;
                for (std::size_t k = 0; k < depth; ++k) {
                    const double x = a.values[a_source == Source::rows_summed ? k * rows + i : i * depth + k];
                    const double y = b.values[b_source == Source::rows_summed ? k * columns + j : j * depth + k];
                    sum += x * y * (k >= depth / 2 ? 2 : 1);
                }
                const double error = std::abs(measured[i * columns + j] - sum);
                largest = error <= largest ? largest : error;  // a NaN becomes the largest
            }
        // Exact products summed in fp32, cut off rather than rounded, in 12 steps of 16, each twice (among themselves,
        // then to the sum); sums stay below 128, whose last place is 2^-17.
        BOOST_TEST(largest < 24 * std::ldexp(1.0, -17), n << " columns");
    }
}

struct Place {
    int dim, token, head, batch;
};
std::ostream& operator<<(std::ostream& out, const Place& p) {
    return out << "dim " << p.dim << ", token " << p.token << ", head " << p.head << ", batch " << p.batch;
}

BOOST_DATA_TEST_CASE(a_box_is_read_with_zeros_outside,
                     data::make(std::vector<Place>{{0, 0, 0, 0}, {64, 64, 2, 1}, {64, 20, 1, 1}, {0, 100, 0, 0}}),
                     place) {
    // Rows of 88 in memory, of which the tensor has 80.
    constexpr gpu::Extent extent{.batch = 2, .tokens = 100, .heads = 3, .dim = 80};
    constexpr gpu::Strides strides{.batch = 100 * 3 * 88, .token = 3 * 88, .head = 88};
    const Matrix tensor(2 * 100 * 3 * 88, DType::bf16);
    const auto device = uploaded(tensor.bits);
    DeviceBuffer box(64 * 64 * sizeof(std::uint16_t));
    box.fill(0xff, nullptr);
    probe_load({device.data(), DType::bf16, strides}, extent, place.dim, place.token, place.head, place.batch,
               box.as<std::uint16_t>());
    std::vector<std::uint16_t> measured(64 * 64);
    box.download(measured.data());
    for (int row = 0; row < 64; ++row)
        for (int column = 0; column < 64; ++column) {
            const auto token = place.token + row, dim = place.dim + column;
            const auto at = place.batch * strides.batch + token * strides.token + place.head * strides.head + dim;
            const auto expected =
                token < extent.tokens && dim < extent.dim ? tensor.bits[static_cast<std::size_t>(at)] : 0;
            BOOST_TEST_REQUIRE(measured[static_cast<std::size_t>(row * 64 + column)] == expected);
        }
}

BOOST_AUTO_TEST_CASE(boxes_are_added_within_the_tensor) {
    constexpr gpu::Extent extent{.batch = 2, .tokens = 100, .heads = 3, .dim = 40};
    const auto strides = gpu::dense_strides(extent.tokens, extent.heads, extent.dim);
    std::vector<float> before(2 * 100 * 3 * 40, 0.5f);
    DeviceBuffer tensor(before.size() * sizeof(float));
    tensor.upload(before.data());
    constexpr Place place{.dim = 32, .token = 64, .head = 1, .batch = 1};
    probe_add_box({tensor.data(), DType::fp32, strides}, extent, place.dim, place.token, place.head, place.batch);
    const auto after = floats(tensor);
    for (int b = 0; b < 2; ++b)
        for (int t = 0; t < 100; ++t)
            for (int h = 0; h < 3; ++h)
                for (int d = 0; d < 40; ++d) {
                    const bool in_box = b == place.batch && t >= place.token && d >= place.dim;
                    const auto value = static_cast<float>((t - place.token) * 32 + d - place.dim + 1);
                    const float expected = in_box && h == place.head ? 0.5f + value : 0.5f;
                    const auto at = b * strides.batch + t * strides.token + h * strides.head + d;
                    BOOST_TEST_REQUIRE(after[static_cast<std::size_t>(at)] == expected);
                }
}

BOOST_AUTO_TEST_CASE(what_bulk_copies_cannot_reach_is_known) {
    const gpu::Extent extent{.batch = 1, .tokens = 8, .heads = 2, .dim = 64};
    const DeviceBuffer memory(1 << 16);
    const auto can = [&](std::int64_t offset, const gpu::Strides& strides) {
        return gpu::hopper::can_map({memory.as<char>() + offset, DType::bf16, strides}, extent);
    };
    BOOST_TEST(can(0, {0, 128, 64}));  // no second batch element: its stride does not count
    BOOST_TEST(!can(2, {0, 128, 64}));
    BOOST_TEST(!can(0, {0, 130, 65}));
    BOOST_TEST(!can(0, {0, 0, 64}));
    BOOST_CHECK_THROW(gpu::hopper::make_tensor_map({memory.as<char>() + 2, DType::bf16, {0, 128, 64}}, extent, 64),
                      Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
