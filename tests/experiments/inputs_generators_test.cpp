#include "experiments/inputs/inputs.hpp"
#include "experiments/inputs/inputs_random.hpp"
#include "record_support.hpp"
#include "reference/tensors/rounding.hpp"

#include <fmt/format.h>

#include <boost/test/data/test_case.hpp>
#include <cmath>

namespace ringlab::experiments::test {
namespace {

using layouts::DType;
using layouts::Problem;
using reference::Tensor;
namespace data = boost::unit_test::data;

const std::vector<std::string> kinds{"normal", "outlier", "sink", "offset"};

Problem problem_of(DType dtype = DType::fp64) {
    Problem problem;
    problem.batch = 2;
    problem.tokens = 96;
    problem.query_heads = 6;
    problem.kv_heads = 3;
    problem.head_dim = 40;
    problem.value_dim = 24;
    problem.dtype = dtype;
    return problem;
}

std::vector<const Tensor*> tensors_of(const InputData& data) {
    return {&data.inputs.q, &data.inputs.k, &data.inputs.v, &data.inputs.dout};
}

std::span<const double> values_of(const Tensor& tensor) { return {tensor.data(), tensor.size()}; }

struct Moments {
    double mean = 0, variance = 0, fourth = 0;
};

Moments moments(std::span<const double> values) {
    Moments m;
    const auto count = static_cast<double>(values.size());
    for (const double x : values) m.mean += x / count;
    for (const double x : values) m.variance += x * x / count, m.fourth += x * x * x * x / count;
    return m;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(inputs_random)

// Phi(quantile(p)) = p, with Phi from the library's erfc. A relative error e of the quantile x changes p by
// e*x*phi(x), relative to p at most e*x^2 in the tail: 8^2 * 1e-15, and erfc adds a few 1e-16.
BOOST_AUTO_TEST_CASE(the_normal_quantile_inverts_the_distribution_function) {
    const auto below = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
    for (double p = 0.5; p > 1e-16; p *= 0.83) {
        const double x = normal_quantile(p);
        BOOST_TEST(std::abs(below(x) / p - 1) < 2e-13, "p = " << p);
        if (p > 1e-3) BOOST_TEST(std::abs(normal_quantile(1 - p) + x) < 1e-12, "p = " << p);
    }
    BOOST_TEST(normal_quantile(0.5) == 0);
    BOOST_TEST(std::abs(normal_quantile(0.975) - 1.959963984540054) < 1e-15);
}

// Every part of the index reaches the counter: no two of these elements may share their bits.
BOOST_AUTO_TEST_CASE(every_part_of_an_index_matters) {
    std::vector<std::uint64_t> bits;
    for (std::uint32_t i = 0; i < 3; ++i) {
        for (const auto& index : {ElementIndex{i, 5, 5, 5, 5}, ElementIndex{5, i, 5, 5, 5}, ElementIndex{5, 5, i, 5, 5},
                                  ElementIndex{5, 5, 5, i, 5}, ElementIndex{5, 5, 5, 5, i}})
            bits.push_back(random_bits(1, index));
        bits.push_back(random_bits(2 + i, {5, 5, 5, 5, 5}));
        bits.push_back(random_bits((std::uint64_t{1 + i} << 32) + 1, {5, 5, 5, 5, 5}));
    }
    std::sort(bits.begin(), bits.end());
    BOOST_TEST((std::adjacent_find(bits.begin(), bits.end()) == bits.end()));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(inputs_generators)

// Golden values: a seed means the same numbers for ever, from every compiler, on every machine.
BOOST_AUTO_TEST_CASE(a_seed_gives_the_numbers_it_always_gave) {
    struct Golden {
        const char* kind;
        double q, k, v, dout;
    };
    for (const auto& golden :
         {Golden{"normal", -0x1.1d15db715219ep-1, -0x1.06d207f5439afp+0, 0x1.c1c80e31f8c62p-1, 0x1.8e7fc20e6d0a2p-4},
          Golden{"outlier", -0x1.1d15db715219ep-1, -0x1.06d207f5439afp+0, 0x1.c1c80e31f8c62p-1, 0x1.8e7fc20e6d0a2p-4},
          Golden{"sink", 0x1.c5d4491d5bcc4p-2, -0x1.4dcbc5d174a8p+1, 0x1.67d33e8e609e8p-4, 0x1.8e7fc20e6d0a2p-4},
          Golden{"offset", -0x1.1d15db715219ep-1, 0x1.5b07f5b5fd448p+2, 0x1.c1c80e31f8c62p-1, 0x1.8e7fc20e6d0a2p-4}}) {
        const auto in = generate_inputs(golden.kind, problem_of(), 42).inputs;
        BOOST_TEST(in.q(1, 77, 5, 39) == golden.q, fmt::format("{} q {:a}", golden.kind, in.q(1, 77, 5, 39)));
        BOOST_TEST(in.k(1, 0, 2, 7) == golden.k, fmt::format("{} k {:a}", golden.kind, in.k(1, 0, 2, 7)));
        BOOST_TEST(in.v(0, 0, 1, 23) == golden.v, fmt::format("{} v {:a}", golden.kind, in.v(0, 0, 1, 23)));
        BOOST_TEST(in.dout(0, 95, 0, 0) == golden.dout, fmt::format("{} do {:a}", golden.kind, in.dout(0, 95, 0, 0)));
    }
}

// What a rank or layout could change is how much of the tensors there is: less of it must be the same of it.
BOOST_DATA_TEST_CASE(numbers_do_not_depend_on_how_many_others_there_are, data::make(kinds), kind) {
    const auto whole = generate_inputs(kind, problem_of(), 7);
    auto small = problem_of();
    small.batch = 1;
    small.tokens = 17;
    small.query_heads = 2;
    small.kv_heads = 1;
    const auto part = generate_inputs(kind, small, 7);
    const auto of_whole = tensors_of(whole), of_part = tensors_of(part);
    for (std::size_t i = 0; i < of_part.size(); ++i) {
        const auto shape = of_part[i]->shape();
        for (std::size_t t = 0; t < shape[1]; ++t)
            for (std::size_t h = 0; h < shape[2]; ++h)
                for (std::size_t d = 0; d < shape[3]; ++d)
                    BOOST_REQUIRE((*of_part[i])(0, t, h, d) == (*of_whole[i])(0, t, h, d));
    }
}

BOOST_DATA_TEST_CASE(seeds_and_tensors_differ, data::make(kinds), kind) {
    const auto one = generate_inputs(kind, problem_of(), 1), two = generate_inputs(kind, problem_of(), 2);
    BOOST_TEST(!(one.inputs.q == two.inputs.q));
    BOOST_TEST(one.inputs.q(0, 1, 0, 0) != one.inputs.k(0, 1, 0, 0));
}

// Every value is one that rounding leaves alone, and is near the unrounded one (half a step, 2^-9 for bf16).
BOOST_DATA_TEST_CASE(values_are_numbers_of_the_dtype,
                     data::make(kinds) * data::make({DType::bf16, DType::fp16, DType::fp32}), kind, dtype) {
    const auto exact = generate_inputs(kind, problem_of(), 3), given = generate_inputs(kind, problem_of(dtype), 3);
    for (std::size_t i = 0; i < 4; ++i) {
        const auto expected = reference::rounded(*tensors_of(exact)[i], dtype);
        BOOST_TEST((expected == *tensors_of(given)[i]));
    }
}

// N independent standard normal numbers: the mean has deviation sqrt(1/N), the second moment sqrt(2/N), the fourth
// sqrt(96/N) (E x^8 - (E x^4)^2 = 105 - 9). Five deviations: a chance of 6e-7 for a false alarm, once for a fixed seed.
BOOST_AUTO_TEST_CASE(normal_numbers_have_the_moments_of_the_normal_distribution) {
    auto problem = problem_of();
    problem.tokens = 2000;
    const auto data = generate_inputs("normal", problem, 11);
    for (const auto* tensor : tensors_of(data)) {
        const auto m = moments(values_of(*tensor));
        const auto count = static_cast<double>(tensor->size());
        BOOST_TEST(std::abs(m.mean) < 5 * std::sqrt(1 / count));
        BOOST_TEST(std::abs(m.variance - 1) < 5 * std::sqrt(2 / count));
        BOOST_TEST(std::abs(m.fourth - 3) < 5 * std::sqrt(96 / count));
    }
    // Neighbours in dim come from one call of the generator, neighbours in position from two: neither correlates.
    const auto& q = data.inputs.q;
    double along_dim = 0, along_tokens = 0, count = 0;
    for (std::size_t t = 0; t + 1 < 2000; ++t)
        for (std::size_t d = 0; d + 1 < 40; ++d) {
            along_dim += q(0, t, 0, d) * q(0, t, 0, d + 1);
            along_tokens += q(0, t, 0, d) * q(0, t + 1, 0, d);
            count += 1;
        }
    BOOST_TEST(std::abs(along_dim / count) < 5 / std::sqrt(count));
    BOOST_TEST(std::abs(along_tokens / count) < 5 / std::sqrt(count));
}

BOOST_AUTO_TEST_CASE(outlier_channels_are_ten_times_larger_and_the_stated_number) {
    auto problem = problem_of();
    problem.head_dim = 128;
    const auto plain = generate_inputs("normal", problem, 5).inputs,
               with = generate_inputs("outlier", problem, 5).inputs;
    const auto count_outliers = [](const Tensor& a, const Tensor& b, std::size_t head) {
        int outliers = 0;
        for (std::size_t d = 0; d < a.shape(3); ++d) {
            const double ratio = b(0, 0, head, d) / a(0, 0, head, d);
            BOOST_TEST((std::abs(ratio - 1) < 1e-12 || std::abs(ratio - 10) < 1e-12));
            for (std::size_t t = 1; t < a.shape(1); ++t)
                BOOST_TEST(std::abs(b(1, t, head, d) / a(1, t, head, d) - ratio) < 1e-12);
            outliers += ratio > 5;
        }
        return outliers;
    };
    for (std::size_t head = 0; head < 3; ++head) {
        BOOST_TEST(count_outliers(plain.q, with.q, head) == 2);
        BOOST_TEST(count_outliers(plain.k, with.k, head) == 2);
        BOOST_TEST(count_outliers(plain.v, with.v, head) == 1);
    }
    BOOST_TEST((plain.dout == with.dout));
}

// The score of key 0 is scale (n + u).(n0 + c u) with c = 10/(scale |u|^2): 10 on average over queries. Over N queries
// its mean deviates by scale |n0 + c u| / sqrt(N) from scale u.(n0 + c u), and that by scale |u| = 1 from 10.
BOOST_AUTO_TEST_CASE(every_query_scores_the_sink_ten_higher) {
    auto problem = problem_of();
    problem.batch = 1;
    problem.tokens = 4000;
    problem.head_dim = 128;
    const auto in = generate_inputs("sink", problem, 5).inputs;
    const double scale = problem.effective_scale();
    for (std::size_t h = 0; h < 6; ++h) {
        double sink = 0, other = 0;
        for (std::size_t t = 0; t < 4000; ++t)
            for (std::size_t d = 0; d < 128; ++d) {
                sink += scale * in.q(0, t, h, d) * in.k(0, 0, h / 2, d) / 4000;
                other += scale * in.q(0, t, h, d) * in.k(0, 1 + t % 3999, h / 2, d) / 4000;
            }
        // n0 and c u are at right angles on average: (1 + (10/sqrt(128))^2 * ...) stays below scale |k0| = 11.
        BOOST_TEST(std::abs(sink - 10) < 5 * (1 + 11 / std::sqrt(4000.0)), "head " << h << ": " << sink);
        BOOST_TEST(std::abs(other) < 5 * std::sqrt(2 / 4000.0), "head " << h << ": " << other);
    }
}

BOOST_AUTO_TEST_CASE(an_offset_is_the_same_for_all_keys_of_a_head) {
    const auto plain = generate_inputs("normal", problem_of(), 5).inputs,
               with = generate_inputs("offset", problem_of(), 5).inputs;
    double square = 0;
    for (std::size_t b = 0; b < 2; ++b)
        for (std::size_t h = 0; h < 3; ++h)
            for (std::size_t d = 0; d < 40; ++d) {
                const double shift = with.k(b, 0, h, d) - plain.k(b, 0, h, d);
                square += shift * shift / 240;
                for (std::size_t t = 1; t < 96; ++t)
                    BOOST_TEST(std::abs(with.k(b, t, h, d) - plain.k(b, t, h, d) - shift) < 1e-13);
            }
    // 240 numbers of variance 100: five deviations of sqrt(2/240).
    BOOST_TEST(std::abs(square / 100 - 1) < 5 * std::sqrt(2.0 / 240));
    BOOST_TEST((plain.q == with.q));
}

BOOST_AUTO_TEST_CASE(an_unknown_kind_names_the_known_ones) {
    const auto text = error_of([] { generate_inputs("uniform", problem_of(), 1); });
    BOOST_TEST(contains(text, "'uniform'; known: normal, outlier, sink, offset"), text);
    BOOST_TEST(input_kinds().size() == 4);
}

BOOST_AUTO_TEST_CASE(padding_adds_zeros_after_the_last_token) {
    auto data = generate_inputs("normal", problem_of(), 5);
    const auto before = data.inputs;
    pad_inputs(data, 100);
    BOOST_TEST(data.problem.tokens == 100);
    BOOST_TEST(data.inputs.k.shape(1) == 100);
    BOOST_TEST(data.inputs.k(1, 95, 2, 39) == before.k(1, 95, 2, 39));
    BOOST_TEST(data.inputs.k(1, 96, 2, 39) == 0);
    BOOST_TEST(data.inputs.dout(0, 99, 5, 23) == 0);
    BOOST_TEST(contains(error_of([&] { pad_inputs(data, 99); }), "cannot be padded"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
