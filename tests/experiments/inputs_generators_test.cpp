#include "experiments/files/digest.hpp"
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

/// SHA-256 of all numbers, bit by bit.
std::string digest_of_tensors(const InputData& data) {
    std::string bytes;
    for (const auto* tensor : tensors_of(data))
        bytes.append(reinterpret_cast<const char*>(tensor->data()), tensor->size() * sizeof(double));
    return digest_of(bytes);
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

// A seed means the same numbers for ever, from every compiler, on every machine.
BOOST_AUTO_TEST_CASE(a_seed_gives_the_numbers_it_always_gave) {
    for (const auto& [kind, digest] : {std::pair{"normal", "943af9fc72be6962"},
                                       {"outlier", "a7ce7b3fe4811071"},
                                       {"sink", "94a298501f358544"},
                                       {"offset", "7a509e838def59f4"}}) {
        const auto found = digest_of_tensors(generate_inputs(kind, problem_of(), 42)).substr(0, 16);
        BOOST_TEST(found == digest, kind << " gives " << found);
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
