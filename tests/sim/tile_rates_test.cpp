#include "scenario.hpp"
#include "sim/machine/machine.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <regex>

using namespace ringlab;
using namespace ringlab::sim;
using namespace ringlab::sim::test;
using ringlab::layouts::Pass;

namespace {

/// Eight H200 of whose file every line of a key is what `with` says; $1 stands for the key.
Machine machine_with(const std::string& keys, const std::string& with) {
    const std::regex line("\n(" + keys + ") = [^\n]*");
    return parse_machine(std::regex_replace(shipped_machine("h200_nvswitch_copy_engine").text, line, with),
                         "machine.toml");
}

Machine machine_with_teraflops(const std::string& value) {
    return machine_with("teraflops", "\n$1 = { value = " + value + ", source = \"this test\" }");
}

/// As `machine_with_teraflops`, and nothing is said of tiles.
Machine rate_alone(const std::string& value) {
    const std::regex tiles(
        "\n(work_tile|tile_rows|tile_keys|groups|work_tile_us|full_tile_us|partial_tile_us|"
        "resume_us) = [^\n]*");
    return parse_machine(std::regex_replace(machine_with_teraflops(value).text, tiles, ""), "rate.toml");
}

/// Of a ring of two of 8k tokens each: every rank sees all keys.
double predicted_seconds(const Machine& machine, Pass pass, ComputeModel model, std::vector<std::string>& notes) {
    const Scenario scenario{.ranks = 2,
                            .tokens_per_rank = 8192,
                            .layout = "contiguous",
                            .mask = "full",
                            .pass = pass,
                            .query_heads = 33,  // 64 tiles of rows each: a whole number of work tiles on 132 SMs
                            .kv_heads = 33};
    SimOptions options;
    options.compute = model;
    const auto found = simulate(*scenario.schedule(), machine, options);
    notes = found.notes;
    return layouts::to_seconds(found.makespan);
}

bool has(const std::vector<std::string>& notes, const std::string& words) {
    return std::ranges::any_of(notes, [&](const auto& note) { return note.find(words) != std::string::npos; });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tile_rates)

BOOST_AUTO_TEST_CASE(a_rate_that_the_prices_of_tiles_contradict_is_noted_with_both) {
    // 132 tiles of 4 * 128^3 FLOP in 1.7913 us forward, of 10 * 128^3 in 5.159 us backward.
    const auto machine = machine_with_teraflops("300");
    BOOST_TEST_REQUIRE(machine.notes.size() == 1u);
    BOOST_TEST(has(machine.notes, "attention.forward 618.2 TFLOP/s by full_tile_us, 300 by teraflops"));
    BOOST_TEST(has(machine.notes, "attention.backward 536.6 TFLOP/s by full_tile_us, 300 by teraflops"));
    std::vector<std::string> notes;
    predicted_seconds(machine, Pass::forward, ComputeModel::tiles, notes);
    BOOST_TEST(has(notes, "disagree: 618.2 TFLOP/s by full_tile_us, 300 by teraflops"));
    // 618.15 / 1.2 = 515.1; 536.6 * 1.2 = 643.9.
    BOOST_TEST(machine_with_teraflops("516").notes.empty());
    BOOST_TEST(has(machine_with_teraflops("514").notes, "attention.forward 618.2"));
    BOOST_TEST(!has(machine_with_teraflops("514").notes, "attention.backward"));
    BOOST_TEST(machine_with_teraflops("643").notes.empty());
    BOOST_TEST(has(machine_with_teraflops("645").notes, "attention.backward"));
    BOOST_TEST(machine_with_teraflops("inf").notes.empty());
}

BOOST_AUTO_TEST_CASE(attention_with_a_rate_and_no_prices_of_tiles_is_predicted_by_tiles_of_that_rate) {
    for (const auto* value : {"300", "600"}) {
        const auto machine = rate_alone(value);
        BOOST_TEST_REQUIRE(machine.notes.size() == 1u);
        BOOST_TEST(
            has(machine.notes, fmt::format("attention.forward ({} TFLOP/s), attention.backward ({}", value, value)));
        for (const auto pass : {Pass::forward, Pass::backward}) {
            std::vector<std::string> notes, others;
            const auto by_tiles = predicted_seconds(machine, pass, ComputeModel::tiles, notes),
                       by_rate = predicted_seconds(machine, pass, ComputeModel::rate, others);
            BOOST_TEST(std::abs(by_tiles / by_rate - 1) < 1e-6, to_string(pass));
            BOOST_TEST(has(notes, fmt::format("computed from teraflops, {}", value)));
        }
        const auto figure = std::ranges::find(machine.figures, "attention.forward.full_tile_us", &Figure::name);
        BOOST_TEST_REQUIRE((figure != machine.figures.end()));
        BOOST_TEST(figure->source == "computed from teraflops: the file has no tile prices");
        BOOST_TEST(figure->value == machine.forward.full_tile_seconds * 1e6);
    }
}

BOOST_AUTO_TEST_CASE(prices_of_tiles_that_are_zero_are_none) {
    const auto zero = machine_with("full_tile_us|partial_tile_us", "\n$1 = { value = 0, source = \"unknown\" }");
    BOOST_TEST(has(zero.notes, "attention.forward (598 TFLOP/s), attention.backward (525 TFLOP/s)"));
    BOOST_TEST(zero.forward.full_tile_seconds * 598e12 == 4 * std::pow(128, 3) * 132,
               boost::test_tools::tolerance(1e-12));
    BOOST_TEST(zero.forward.partial_tile_seconds == zero.forward.full_tile_seconds);
    BOOST_TEST(zero.forward.resume_seconds == 0.6e-6, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(std::ranges::count(zero.figures, "attention.forward.full_tile_us", &Figure::name) == 1);
    // One of two is a mistake.
    BOOST_CHECK_EXCEPTION(machine_with("partial_tile_us", ""), Error, [](const auto& error) {
        return std::string(error.what())
                   .find(
                       "2 keys are missing: 'attention.forward.partial_tile_us', "
                       "'attention.backward.partial_tile_us'") != std::string::npos;
    });
}

BOOST_AUTO_TEST_SUITE_END()
