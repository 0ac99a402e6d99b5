// Kernels that take rows one by one, against the same formulas in double precision on the host.

#include "gpu/device/device_buffer.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/rows.hpp"
#include "reference/features/rotary.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/gpu/attend_case.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <vector>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using layouts::DType;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<double> random_values(std::size_t count) {
    static std::mt19937_64 generator(std::random_device{}());
    std::normal_distribution<double> normal;
    std::vector<double> values(count);
    for (auto& x : values) x = normal(generator);
    return values;
}

// One step of rounding to nearest, relative; for fp32 a few operations' worth.
double step(DType dtype) {
    switch (dtype) {
        case DType::bf16: return std::ldexp(1.0, -8);
        case DType::fp16: return std::ldexp(1.0, -11);
        default: return 4e-7;
    }
}

struct Shape {
    std::int64_t batch, tokens, heads, dim;
    gpu::Extent extent() const { return {batch, tokens, heads, dim}; }
    gpu::Strides strides() const { return gpu::dense_strides(tokens, heads, dim); }
    gpu::Strides row_strides() const { return gpu::dense_strides(tokens, heads); }
    std::size_t rows() const { return static_cast<std::size_t>(batch * tokens * heads); }
    std::size_t elements() const { return rows() * static_cast<std::size_t>(dim); }
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
    return out << s.batch << "x" << s.tokens << "x" << s.heads << "x" << s.dim;
}

const std::vector<Shape> shapes{{1, 97, 43, 128}, {2, 31, 3, 33}, {1, 1, 1, 1}, {3, 5, 2, 250}};
const std::vector<DType> dtypes{DType::fp32, DType::bf16, DType::fp16};

BOOST_AUTO_TEST_SUITE(elementwise, *boost::unit_test::precondition(has_gpu))

BOOST_DATA_TEST_CASE(additions_round_once, data::make(shapes) * data::make(dtypes) * data::make(dtypes), shape, to,
                     from) {
    auto a = random_values(shape.elements()), b = random_values(shape.elements());
    reference::round_in_place(a, to);
    reference::round_in_place(b, from);
    const gpu::DeviceBuffer destination = on_device(a, to), source = on_device(b, from);
    gpu::add(shape.extent(), {destination.data(), to, shape.strides()}, {source.data(), from, shape.strides()},
             nullptr);
    const auto sum = from_device(destination, to);
    for (std::size_t i = 0; i < sum.size(); ++i)
        BOOST_TEST_REQUIRE(std::abs(sum[i] - (a[i] + b[i])) <= step(to) * std::abs(a[i] + b[i]) + 1e-7);
}

/// What is converted: from one type, plus sums of these, to another.
struct Converted {
    Shape shape;
    DType from, to;
    std::vector<DType> sums = {};
};

/// In one call, each against a sum in fp32, in order, that is rounded once.
void check_conversions(const std::vector<Converted>& all) {
    std::vector<gpu::Conversion> conversions;
    std::deque<gpu::DeviceBuffer> sources, destinations;
    std::vector<std::vector<double>> expected;
    for (const auto& [shape, from, to, sums] : all) {
        const auto source = [&](DType type) -> gpu::ConstView {
            auto values = random_values(shape.elements());
            reference::round_in_place(values, type);
            for (std::size_t i = 0; i < values.size(); ++i)
                expected.back()[i] = static_cast<float>(expected.back()[i]) + static_cast<float>(values[i]);
            return {sources.emplace_back(on_device(values, type)).data(), type, shape.strides()};
        };
        expected.emplace_back(shape.elements());
        auto& made = destinations.emplace_back(shape.elements() * static_cast<std::size_t>(layouts::bytes_of(to)));
        made.fill(0xff, nullptr);
        gpu::Conversion conversion{shape.extent(), {made.data(), to, shape.strides()}, source(from)};
        for (const auto type : sums) conversion.sums.push_back(source(type));
        reference::round_in_place(expected.back(), to);
        if (shape.tokens > 0) conversions.push_back(std::move(conversion));
    }
    gpu::convert(conversions, nullptr);
    for (std::size_t i = 0; i < all.size(); ++i)
        BOOST_TEST((from_device(destinations[i], all[i].to) == expected[i]), "conversion " << i);
}

BOOST_DATA_TEST_CASE(a_conversion_adds_sums_in_their_order_and_rounds_once,
                     data::make(shapes) * data::make(dtypes) * data::make(dtypes), shape, to, from) {
    check_conversions({{shape, from, to}});
    check_conversions({{shape, DType::fp32, to, {DType::fp32, to, DType::fp32}}});
}

BOOST_AUTO_TEST_CASE(tensors_of_several_sizes_and_types_are_converted_together) {
    using enum DType;
    check_conversions({{{2, 7, 3, 128}, fp32, bf16},
                       {{1, 130, 1, 64}, fp32, bf16},
                       {{1, 0, 3, 64}, fp32, bf16},
                       {{1, 1, 1, 4}, fp32, bf16},
                       {{1, 5, 2, 33}, fp32, bf16},
                       {{1, 9, 2, 40}, bf16, bf16},
                       {{1, 9, 2, 256}, fp16, fp32}});
}

/// lse by turns ordinary, far apart (beyond where exp overflows), and empty on either or both sides.
std::vector<double> row_lse(std::size_t rows, std::size_t side) {
    auto lse = random_values(rows);
    for (std::size_t i = 0; i < rows; ++i) {
        if (i % 7 == 1 + side || i % 7 == 3) lse[i] = -infinity;
        if (i % 7 == 4 + side) lse[i] += 300;
        lse[i] = static_cast<double>(static_cast<float>(lse[i]));
    }
    return lse;
}

BOOST_DATA_TEST_CASE(merge_agrees_with_its_formula, data::make(shapes) * data::make(dtypes) * data::make(dtypes), shape,
                     running, partial) {
    auto o = random_values(shape.elements()), o_b = random_values(shape.elements());
    reference::round_in_place(o, running);
    reference::round_in_place(o_b, partial);
    const auto lse = row_lse(shape.rows(), 0), lse_b = row_lse(shape.rows(), 1);
    const auto dim = static_cast<std::size_t>(shape.dim);
    for (std::size_t i = 0; i < o.size(); ++i)
        if (std::isinf(lse[i / dim])) o[i] = 0;
    for (std::size_t i = 0; i < o.size(); ++i)
        if (std::isinf(lse_b[i / dim])) o_b[i] = 0;
    const gpu::DeviceBuffer d_o = on_device(o, running), d_o_b = on_device(o_b, partial);
    const gpu::DeviceBuffer d_lse = on_device(lse, DType::fp32), d_lse_b = on_device(lse_b, DType::fp32);
    gpu::merge({.extent = shape.extent(),
                .o = {d_o.data(), running, shape.strides()},
                .lse = {d_lse.as<float>(), shape.row_strides()},
                .partial_o = {d_o_b.data(), partial, shape.strides()},
                .partial_lse = {d_lse_b.as<const float>(), shape.row_strides()}},
               nullptr);
    const auto merged = from_device(d_o, running), merged_lse = from_device(d_lse, DType::fp32);
    for (std::size_t row = 0; row < shape.rows(); ++row) {
        const double largest = std::max(lse[row], lse_b[row]);
        const double w_a = std::isinf(lse[row]) ? 0 : std::exp(lse[row] - largest);
        const double w_b = std::isinf(lse_b[row]) ? 0 : std::exp(lse_b[row] - largest);
        const double expected_lse = std::isinf(largest) ? largest : largest + std::log(w_a + w_b);
        if (std::isinf(largest))
            BOOST_TEST_REQUIRE(merged_lse[row] == -infinity);
        else
            BOOST_TEST_REQUIRE(std::abs(merged_lse[row] - expected_lse) <= 1e-6 + 3e-7 * std::abs(expected_lse));
        for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
            const double expected = w_a + w_b == 0 ? 0 : (w_a * o[i] + w_b * o_b[i]) / (w_a + w_b);
            // w (o_b - o) loses what o and o_b have more than the result.
            BOOST_TEST_REQUIRE(std::abs(merged[i] - expected) <=
                               step(running) * std::abs(expected) + 5e-7 * (std::abs(o[i]) + std::abs(o_b[i])) + 1e-7);
        }
    }
}

BOOST_DATA_TEST_CASE(a_first_merge_takes_the_partial_result_over_whatever_was_there, data::make(shapes), shape) {
    const auto o_b = random_values(shape.elements());
    const auto lse_b = row_lse(shape.rows(), 1);
    gpu::DeviceBuffer o(shape.elements() * 4), lse(shape.rows() * 4);
    o.fill(0xff, nullptr);
    lse.fill(0xff, nullptr);
    const gpu::DeviceBuffer d_o_b = on_device(o_b, DType::fp32), d_lse_b = on_device(lse_b, DType::fp32);
    gpu::merge({.extent = shape.extent(),
                .first = true,
                .o = {o.data(), DType::fp32, shape.strides()},
                .lse = {lse.as<float>(), shape.row_strides()},
                .partial_o = {d_o_b.data(), DType::fp32, shape.strides()},
                .partial_lse = {d_lse_b.as<const float>(), shape.row_strides()}},
               nullptr);
    BOOST_TEST((from_device(o, DType::fp32) == from_device(d_o_b, DType::fp32)));
    BOOST_TEST((from_device(lse, DType::fp32) == lse_b));
}

// dq is set to 0 nowhere, apart from o in rows of other dims with a guard behind each, or where o lies.
BOOST_DATA_TEST_CASE(statistics_hold_delta_and_a_guarded_lse_and_dq_is_zeroed,
                     data::make(shapes) * data::make(dtypes) * data::make({"nowhere", "apart", "in place"}), shape,
                     dtype, zeroed) {
    const bool in_place = zeroed == std::string("in place"), zeroes = zeroed != std::string("nowhere");
    auto o = random_values(shape.elements()), dout = random_values(shape.elements());
    reference::round_in_place(o, DType::fp32);
    reference::round_in_place(dout, dtype);
    const auto lse = row_lse(shape.rows(), 0);
    const gpu::DeviceBuffer d_o = on_device(o, DType::fp32), d_dout = on_device(dout, dtype),
                            d_lse = on_device(lse, DType::fp32);
    const auto dq_dim = in_place ? shape.dim : shape.dim + 64, guard = std::int64_t{in_place ? 0 : 4};
    gpu::DeviceBuffer statistics(shape.rows() * 8), apart(shape.rows() * static_cast<std::size_t>(dq_dim + guard) * 4);
    for (auto* buffer : {&statistics, &apart}) buffer->fill(0xff, nullptr);
    gpu::PrepareBackwardArgs args{
        .extent = shape.extent(),
        .o = {d_o.data(), DType::fp32, shape.strides()},
        .dout = {d_dout.data(), dtype, shape.strides()},
        .lse = {d_lse.as<const float>(), shape.row_strides()},
        .statistics = {statistics.as<float>(), gpu::statistics_strides(shape.heads, shape.tokens)}};
    if (zeroes) {
        args.dq = {in_place ? d_o.data() : apart.data(), DType::fp32,
                   gpu::dense_strides(shape.tokens, shape.heads, dq_dim + guard)};
        args.dq_dim = dq_dim;
    }
    gpu::prepare_backward(args, nullptr);
    const auto pairs = from_device(statistics, DType::fp32);
    const auto dim = static_cast<std::size_t>(shape.dim);
    const auto heads = static_cast<std::size_t>(shape.heads), tokens = static_cast<std::size_t>(shape.tokens);
    for (std::size_t row = 0; row < shape.rows(); ++row) {
        double delta = 0, magnitude = 0;
        for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
            delta += o[i] * dout[i];
            magnitude += std::abs(o[i] * dout[i]);
        }
        const auto b = row / heads / tokens, token = row / heads % tokens, head = row % heads;
        const auto at = 2 * ((b * heads + head) * tokens + token);
        BOOST_TEST_REQUIRE(std::abs(pairs[at + 1] - delta) <= 1e-6 * magnitude + 1e-7);
        if (std::isinf(lse[row]))
            BOOST_TEST_REQUIRE(pairs[at] == infinity);
        else
            BOOST_TEST_REQUIRE(std::abs(pairs[at] - lse[row] * std::log2(std::exp(1.0))) <=
                               2e-7 * std::abs(pairs[at]) + 1e-9);
    }
    const auto dq = from_device(in_place ? d_o : apart, DType::fp32);
    for (std::size_t i = 0; i < dq.size(); ++i) {
        const bool is_guard = !zeroes || static_cast<std::int64_t>(i) % (dq_dim + guard) >= dq_dim;
        BOOST_TEST_REQUIRE((is_guard ? std::isnan(dq[i]) : dq[i] == 0));
    }
}

struct Turning {
    layouts::Rotary rotary;
    Shape shape;
};
std::ostream& boost_test_print_type(std::ostream& out, const Turning& turning) {
    const auto& shape = turning.shape;
    return out << text_of(turning.rotary) << " of " << shape.batch << " x " << shape.tokens << " x " << shape.heads
               << " x " << shape.dim;
}
using Pairs = layouts::Rotary::Pairs;
const std::vector<Turning> turnings{
    {{.base = 10000}, {2, 37, 5, 128}},
    {{.base = 10000, .pairs = Pairs::interleaved}, {1, 9, 4, 64}},
    {{.base = 10000, .dims = 64, .first = 128, .pairs = Pairs::interleaved}, {1, 11, 3, 192}},
    {{.base = 500, .dims = 30, .first = 2}, {1, 5, 1, 40}},
    {{.base = 500, .dims = 6, .first = 3}, {1, 5, 2, 33}},
    {{.base = 500, .dims = 6, .first = 3, .pairs = Pairs::interleaved}, {1, 5, 2, 40}},
    {{.base = 1e6, .scaling = layouts::parse_rotary_scaling("yarn:8,64")}, {1, 8, 9, 256}},
};

// Positions up to 2^31 - 1: an angle in fp32 would be off by whole turns.
BOOST_DATA_TEST_CASE(rows_are_rotated_as_by_the_reference,
                     data::make(turnings) * data::make({DType::bf16, DType::fp16, DType::fp32}) *
                         data::make({false, true}) * data::make({false, true}),
                     turning, dtype, back, in_place) {
    const auto& shape = turning.shape;
    auto values = random_values(shape.elements());
    reference::round_in_place(values, dtype);
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < shape.tokens; ++t)
        positions.push_back(t == 0 ? 2147483647 : static_cast<std::int32_t>(t * 7919));
    const auto source = on_device(values, dtype), on_gpu = gpu::uploaded(positions);
    const auto to = in_place ? dtype : DType::bf16;
    gpu::DeviceBuffer apart(in_place ? 0 : shape.elements() * 2);
    if (!in_place) apart.fill(0xff, nullptr);
    const auto table = layouts::rotary_table(turning.rotary, shape.dim);
    gpu::rotate({.extent = shape.extent(),
                 .destination = {in_place ? source.data() : apart.data(), to, shape.strides()},
                 .source = {source.data(), dtype, shape.strides()},
                 .positions = on_gpu.as<const std::int32_t>(),
                 .table = table,
                 .back = back},
                nullptr);
    const auto found = from_device(in_place ? source : apart, to);

    reference::Rotation rotation(table);
    std::vector<double> sizes(values.size());  // of what a result is made from
    const auto dim = static_cast<std::size_t>(shape.dim);
    for (std::size_t row = 0; row < shape.rows(); ++row) {
        const auto token = row / static_cast<std::size_t>(shape.heads) % static_cast<std::size_t>(shape.tokens);
        for (std::size_t d = 0; d < dim; ++d) sizes[row * dim + d] = std::abs(values[row * dim + d]);
        for (std::int64_t i = 0; i < table.dims() / 2; ++i) {
            const auto x = row * dim + static_cast<std::size_t>(table.dim_of(i));
            const auto y = x + static_cast<std::size_t>(table.distance());
            sizes[x] = sizes[y] = table.amplitude * std::hypot(sizes[x], sizes[y]);
        }
        rotation.set_position(positions[token]);
        rotation.apply(values.data() + row * dim,
                       back ? reference::Rotation::Way::back : reference::Rotation::Way::ahead);
    }
    // All in fp64; a float is off by less than one step, 2^-23, since it is rounded to odd, and 16 bits by half of
    // theirs.
    for (std::size_t i = 0; i < found.size(); ++i)
        BOOST_TEST_REQUIRE(std::abs(found[i] - values[i]) <=
                           1.2e-7 * sizes[i] + (to == DType::fp32 ? 0 : step(to) * std::abs(values[i]) + 1e-7));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ringlab::tests
