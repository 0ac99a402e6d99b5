#include "experiments/models/stack.hpp"

#include "experiments/files/resources.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/masks/mask.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::experiments::test {
namespace {

using Layers = std::vector<std::size_t>;

std::string complaint_about_stack(const std::string& text) {
    try {
        parse_stack(text, "file");
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stack)

BOOST_AUTO_TEST_CASE(layers_go_through_the_list_again_and_again) {
    const auto two = parse_stack("# a comment\n7 layers: 2x near # more\n far\n", "file");
    BOOST_TEST(two.kinds == (std::vector<std::string>{"near", "far"}), boost::test_tools::per_element());
    BOOST_TEST(two.layers == (Layers{0, 0, 1, 0, 0, 1, 0}), boost::test_tools::per_element());
    BOOST_TEST(parse_stack("2 layers: a", "file").layers == (Layers{0, 0}), boost::test_tools::per_element());
    BOOST_TEST(parse_stack("3 layers: a b a", "file").layers == (Layers{0, 1, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_no_stack_is_refused_with_what_would_be_right) {
    for (const std::string text : {"", "layers: a", "3 layers:", "0 layers: a", "3 layers: 4x a", "3 layers: a 2x",
                                   "2 layers: a b c", "20000 layers: a"}) {
        const auto complaint = complaint_about_stack(text);
        BOOST_TEST(complaint.find("file") != std::string::npos, text << ": " << complaint);
    }
}

// 62 layers of Gemma 3, of which every sixth is global: 10; 46 of Gemma 2, half; 36 of gpt-oss; 48 of Llama 4, a
// fourth.
BOOST_AUTO_TEST_CASE(known_models_have_their_layers_and_presets) {
    const auto globals = [](const std::string& name) {
        const auto stack = load_stack(name);
        for (const auto& kind : stack.kinds) BOOST_TEST(!find_resource(kind, "presets", ".cfg").empty());
        std::size_t count = 0;
        for (const auto kind : stack.layers) count += stack.kinds[kind].ends_with("-global");
        return std::pair(stack.layers.size(), count);
    };
    BOOST_TEST((globals("gemma-3-27b") == std::pair<std::size_t, std::size_t>(62, 10)));
    BOOST_TEST((globals("gemma-2-27b") == std::pair<std::size_t, std::size_t>(46, 23)));
    BOOST_TEST((globals("gpt-oss-120b") == std::pair<std::size_t, std::size_t>(36, 18)));
    BOOST_TEST((globals("llama-4-scout") == std::pair<std::size_t, std::size_t>(48, 12)));
}

BOOST_AUTO_TEST_CASE(each_kind_of_layer_takes_its_fastest_schedule_in_each_pass) {
    const Stack stack{{"local", "global"}, {0, 0, 1, 0}};
    // Schedules: one that is good at local layers, one that is good at global ones, one in between.
    const std::vector<std::vector<PassSeconds>> seconds{{{1, 3}, {4, 5}, {1, 2}}, {{20, 41}, {10, 30}, {13, 29}}};
    const auto best = choose_schedules(stack, seconds);
    BOOST_TEST((best.chosen == std::vector<std::array<std::size_t, 2>>{{0, 2}, {1, 2}}));
    BOOST_TEST(best.seconds[0] == 3 * 1 + 10);
    BOOST_TEST(best.seconds[1] == 3 * 2 + 29);
    BOOST_TEST(best.single == 2);  // 3 x 3 + 42, where the others take 73 and 67
    BOOST_TEST(best.single_seconds == 51);
}

BOOST_AUTO_TEST_CASE(windows_and_chunks_shrink_with_the_sequence) {
    BOOST_TEST(scaled_down("window:1023,0", 64) == "window:15,0");
    BOOST_TEST(scaled_down("causal+chunks:8192+sink:4", 64) == "causal+chunks:128+sink:1");
    BOOST_TEST(scaled_down("window:3,2", 64) == "window:0,0");
    BOOST_CHECK_EXCEPTION(scaled_down("prefix:100", 2), Error, [](const Error& error) {
        return std::string(error.what()).find("prefix:100") != std::string::npos;
    });
    // A window over the sequence covers the same share of pairs, but for its ragged edge.
    const auto pairs = [](const std::string& mask, std::int64_t tokens) {
        const auto made = layouts::make_mask(mask, tokens);
        std::int64_t seen = 0;
        for (std::int64_t row = 0; row < tokens; ++row) seen += made.row(row).end - made.row(row).begin;
        return static_cast<double>(seen) / static_cast<double>(tokens * tokens);
    };
    BOOST_TEST(pairs("causal+window:1023,0", 8192) == pairs("causal+window:63,0", 512),
               boost::test_tools::tolerance(0.01));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
