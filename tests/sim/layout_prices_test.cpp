#include "sim/cost/layout_prices.hpp"
#include "scenario.hpp"

#include <boost/test/unit_test.hpp>

#include <sstream>
#include <string>

using namespace ringlab;

namespace {

const layouts::Problem llama_70b{.tokens = 64 * 8192, .query_heads = 64, .kv_heads = 8};

}  // namespace

BOOST_AUTO_TEST_SUITE(layout_prices)

// The defaults are written with five digits.
BOOST_AUTO_TEST_CASE(the_default_prices_are_those_of_the_machine_that_they_name) {
    auto prices = sim::layout_prices(sim::test::shipped_machine("h200_cluster"), llama_70b, 64);
    prices.most_gathered = 0;
    std::istringstream found(text_of(prices)), stated(text_of(layouts::default_layout_prices()));
    for (std::string a, b; std::getline(found, a) && std::getline(stated, b);) {
        const auto equals = a.find(" = ") + 3;
        BOOST_TEST(a.substr(0, equals) == b.substr(0, equals));
        if (a.substr(equals) == b.substr(equals)) continue;
        BOOST_TEST(std::stod(a.substr(equals)) == std::stod(b.substr(equals)), boost::test_tools::tolerance(1e-4));
    }
}

BOOST_AUTO_TEST_CASE(twice_the_heads_cost_twice_the_work_and_bytes) {
    auto twice = llama_70b;
    twice.query_heads *= 2;
    twice.kv_heads *= 2;
    const auto one = sim::layout_prices(sim::test::shipped_machine("h200_cluster"), llama_70b, 64);
    const auto two = sim::layout_prices(sim::test::shipped_machine("h200_cluster"), twice, 64);
    for (std::size_t pass = 0; pass < 2; ++pass) {
        BOOST_TEST(two.passes[pass].pair == 2 * one.passes[pass].pair, boost::test_tools::tolerance(1e-12));
        BOOST_TEST(two.passes[pass].between.key == 2 * one.passes[pass].between.key);
        BOOST_TEST(two.passes[pass].between.gradient == 2 * one.passes[pass].between.gradient);
    }
    BOOST_TEST(two.most_gathered < one.most_gathered);
}

// 8 heads of 256 numbers, two bytes each, through a port of 48 GB/s.
BOOST_AUTO_TEST_CASE(a_key_crosses_the_network_at_the_rate_of_a_port) {
    const auto prices = sim::layout_prices(sim::test::shipped_machine("h200_cluster"), llama_70b, 64);
    BOOST_TEST(prices.passes[0].between.key == 4096 / 48e9, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(prices.passes[1].between.gradient == 2 * 4096 / 48e9, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(prices.ranks_per_host == 8);
    BOOST_TEST(sim::layout_prices(sim::test::shipped_machine("h200_cluster"), llama_70b, 4).ranks_per_host == 4);
}

// Whatever a machine leaves out, there is something to even out.
BOOST_AUTO_TEST_CASE(an_ideal_machine_has_prices_of_pairs) {
    const auto prices = sim::layout_prices(sim::test::shipped_machine("ideal"), llama_70b, 64);
    for (const auto& pass : prices.passes) {
        BOOST_TEST(pass.pair > 0);
        BOOST_TEST(pass.between.key == 0);
    }
}

BOOST_AUTO_TEST_SUITE_END()
