// Gradients of a layer's parameters over rings side by side, by the right rule and by wrong ones.

#include "experiments/record/hdf5/hdf5.hpp"
#include "process.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

namespace ringlab::cli::test {
namespace {

constexpr std::size_t rules = 5, parameters = 4;
enum Rule : std::size_t { right, ring_averaged, replicas_summed, replicas_alike, own_means };

const Words little{"--tokens",  "96",     "--heads", "2:1", "--head-dim", "16",
                   "--layouts", "zigzag", "--ranks", "4",   "-o",         "r.h5"};

/// Errors by rule and parameter of the only run.
std::vector<double> errors_in(const Folder& folder) {
    return experiments::hdf5::File::open(folder / "r.h5").dataset("judged/parameter_error").doubles();
}

std::vector<double> tolerances_in(const Folder& folder) {
    return experiments::hdf5::File::open(folder / "r.h5").dataset("judged/parameter_tolerance").doubles();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_layer)

BOOST_AUTO_TEST_CASE(wrong_rules_are_off_by_what_they_do_to_a_gradient) {
    const Folder folder;
    const auto ending =
        run(folder, layer_gradients, little + Words{"--replicas", "3", "--loss-tokens", "60", "60", "60"});
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    const auto errors = errors_in(folder), tolerances = tolerances_in(folder);
    BOOST_REQUIRE(errors.size() == rules * parameters);
    for (std::size_t p = 0; p < parameters; ++p) {
        const auto of = [&](Rule rule) { return errors[rule * parameters + p]; };
        BOOST_TEST(of(right) <= tolerances[p]);
        BOOST_TEST(tolerances[p] < 1e-12);
        BOOST_TEST(std::abs(of(ring_averaged) - 0.75) < 1e-12);  // 1/P of it
        BOOST_TEST(std::abs(of(replicas_summed) - 2) < 1e-12);   // R times it
        BOOST_TEST(of(replicas_alike) <= tolerances[p]);         // they are alike here
        BOOST_TEST(of(own_means) > 0.01);                        // of 60, ranks hold 12 to 24 in the loss
    }
}

BOOST_AUTO_TEST_CASE(every_wrong_rule_is_caught_where_replicas_differ_in_bf16_too) {
    for (const auto* arithmetic : {"fp64", "bf16"}) {
        const Folder folder;
        const auto ending =
            run(folder, layer_gradients,
                little + Words{"--replicas", "2", "--loss-tokens", "96", "33", "--arithmetic", arithmetic});
        BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
        const auto errors = errors_in(folder), tolerances = tolerances_in(folder);
        for (std::size_t rule = ring_averaged; rule < rules; ++rule)
            for (std::size_t p = 0; p < parameters; ++p)
                BOOST_TEST(errors[rule * parameters + p] > tolerances[p], arithmetic << " rule " << rule);
    }
}

BOOST_AUTO_TEST_CASE(a_loss_whose_tokens_see_nothing_has_gradients_of_0_by_every_rule) {
    const Folder folder;
    const auto ending =
        run(folder, layer_gradients, little + Words{"--masks", "causal+valid:48-96", "--loss-tokens", "20", "40"});
    BOOST_TEST(ending.status == 0);
    BOOST_TEST(contains(ending.out, "In 1 of them all gradients are 0, by every rule: no token of the loss sees a key"),
               ending.out);
    BOOST_TEST(!contains(ending.out, "nan"), ending.out);
    for (const auto error : errors_in(folder)) BOOST_TEST(error == 0);
}

BOOST_AUTO_TEST_CASE(a_tolerance_that_is_exceeded_ends_with_2_and_bad_counts_with_one_line) {
    const Folder folder;
    BOOST_TEST(run(folder, layer_gradients, little + Words{"--tolerance", "1e-30"}).status == 2);
    const auto few =
        run(folder, layer_gradients, little + Words{"--replicas", "2", "--loss-tokens", "7", "--overwrite"});
    BOOST_TEST(few.status == 1);
    BOOST_TEST(contains(few.err, "--loss-tokens gives 1 numbers for 2 replicas"), few.err);
    const auto many =
        run(folder, layer_gradients, little + Words{"--replicas", "1", "--loss-tokens", "97", "--overwrite"});
    BOOST_TEST(many.status == 1);
    BOOST_TEST(contains(many.err, "--loss-tokens 97: a replica has 1 to 96 tokens"), many.err);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
