#include "layouts/basics/ring_group.hpp"
#include "layouts/basics/typed_names.hpp"
#include "layouts/schedules/schedule.hpp"

#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ostream>
#include <set>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

struct LengthsCase {
    std::string text;
    std::vector<std::int64_t> lengths;
};
std::ostream& operator<<(std::ostream& out, const LengthsCase& c) { return out << '\'' << c.text << '\''; }

const std::vector<LengthsCase> lengths_cases{
    {"5", {5}},
    {"5,3", {5, 3}},
    {"5x3", {5, 5, 5}},
    {"1,2x2,9", {1, 2, 2, 9}},
    {" 5 , 3\t4\n", {5, 3, 4}},
    {",5,,3,", {5, 3}},
    {"9223372036854775807", {std::numeric_limits<std::int64_t>::max()}},
};

struct BadCase {
    std::string text;
    std::string error;
};
std::ostream& operator<<(std::ostream& out, const BadCase& c) { return out << '\'' << c.text << '\''; }

const std::vector<BadCase> bad_lengths{
    {"", " is empty; give lengths such as 512,300,128x4 or @FILE"},
    {" , ", " is empty; give lengths such as 512,300,128x4 or @FILE"},
    {"5,abc", " is 'abc'; it must be a whole number of at least 1"},
    {"0", " is '0'; it must be a whole number of at least 1"},
    {"x5", " is ''; it must be a whole number of at least 1"},
    {"5x0", " is '0'; it must be a whole number of at least 1"},
    {"5x2x2", " is '2x2'; it must be a whole number of at least 1"},
    {"1x99999999999", ": more than 16777216 lengths"},
    {"1x16777216,1", ": more than 16777216 lengths"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(basics)

BOOST_AUTO_TEST_CASE(a_spec_is_a_name_and_arguments_after_the_first_colon) {
    const auto check = [](const char* text, const char* name, const char* arguments) {
        const auto spec = Spec::parse(text);
        BOOST_TEST(spec.name == name);
        BOOST_TEST(spec.arguments == arguments);
    };
    check("zigzag", "zigzag", "");
    check("striped:16", "striped", "16");
    check("file:a:b", "file", "a:b");
    check("striped:", "striped", "");
    check(":16", "", "16");
    check("", "", "");
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_quoted_beside_the_known_ones) {
    const auto known = [](const auto& registry) {
        std::string names;
        for (const auto& [name, entry] : registry.entries()) names += (names.empty() ? "" : ", ") + name;
        return names;
    };
    BOOST_TEST(known(layouts()).find(", zigzag") != std::string::npos);
    BOOST_TEST(error_of([] { layouts().find("zigzga"); }) ==
               "unknown layout 'zigzga', did you mean 'zigzag'? Known: " + known(layouts()));
    BOOST_TEST(error_of([] { make_layout("spiral", 8, 2); }) == "unknown layout 'spiral'; known: " + known(layouts()));
    BOOST_TEST(error_of([] { masks().find(""); }) == "unknown mask ''; known: " + known(masks()));
}

BOOST_AUTO_TEST_CASE(a_colon_with_nothing_behind_it_does_not_mean_the_default) {
    const auto check = [](const auto& registry, const std::string& kind, auto make) {
        for (const auto& [name, entry] : registry.entries()) {
            const auto typed = name + ":";
            BOOST_TEST(error_of([&] { make(typed); }) ==
                       kind + " '" + typed + "' has nothing after its colon; write it as " + entry.usage);
        }
    };
    const auto mask = make_mask("causal", 8);
    const auto layout = make_layout("contiguous", 8, 2);
    Problem problem;
    problem.tokens = 8;
    check(layouts(), "layout", [](const std::string& typed) { layout_granularity(typed, 2); });
    check(masks(), "mask", [](const std::string& typed) { make_mask(typed, 8); });
    check(schedules(), "schedule", [&](const std::string& typed) {
        make_schedule(problem, mask, layout, {.schedule = typed, .pass = Pass::forward});
    });
}

BOOST_AUTO_TEST_CASE(numbers_that_differ_by_what_k_means_are_told_so) {
    BOOST_TEST(unit_hint(524288, 512000) == " (512k is 512000, 512Ki is 524288)");
    BOOST_TEST(unit_hint(2000000, 2097152) == " (2M is 2000000, 2Mi is 2097152)");
    for (const auto& [a, b] : {std::pair<std::int64_t, std::int64_t>{512, 524288}, {500, 512}, {8000, 8000}, {0, 0}})
        BOOST_TEST(unit_hint(a, b) == "");
}

BOOST_AUTO_TEST_CASE(a_near_miss_is_guessed_and_nothing_else) {
    const std::vector<std::string> names{"contiguous", "striped", "zigzag", "llama-3.1-8b", "llama-3.1-70b"};
    for (const auto* near : {"zigzga", "zig-zag", "zagzag", "ZigZag", "zig", "igzag", "zigzagg"})
        BOOST_TEST(did_you_mean(near, names) == ", did you mean 'zigzag'?", near);
    BOOST_TEST(did_you_mean("llama-3-8b", names) == ", did you mean 'llama-3.1-8b'?");
    BOOST_TEST(did_you_mean("llama3.1-70b", names) == ", did you mean 'llama-3.1-70b'?");
    for (const auto* far : {"", "x", "spiral", "gpt-9", "z"}) BOOST_TEST(did_you_mean(far, names) == "", far);
    BOOST_TEST(did_you_mean(std::string(100000, 'z'), names) == "");
}

BOOST_AUTO_TEST_CASE(a_whole_number_may_count_thousands) {
    const auto check = [](const char* text, std::optional<std::int64_t> ungrouped,
                          std::optional<std::int64_t> grouped) {
        BOOST_TEST((whole_number(text, false) == ungrouped), text);
        BOOST_TEST((whole_number(text, true) == grouped), text);
    };
    check("4096", 4096, 4096);
    check("-3", -3, -3);
    check("4k", 4000, 4000);
    check("4K", 4000, 4000);
    check("8Ki", 8192, 8192);
    check("2M", 2'000'000, 2'000'000);
    check("3Gi", 3LL << 30, 3LL << 30);
    check("8,192", {}, 8192);
    check("1,048,576", {}, 1048576);
    check("1,024k", {}, 1'024'000);
    for (const auto* wrong : {"", "k", "4kk", "4 k", "1.5k", "1e3", "81,92", ",192", "1,,024", "1,024,", "1024,512",
                              "9223372036854775807k", "99999999999999999999", "0x10", "+4", "4ki"})
        check(wrong, {}, {});
}

BOOST_AUTO_TEST_CASE(every_entry_says_how_to_type_it_and_gives_examples_of_itself) {
    const auto check = [](const auto& registry) {
        for (const auto& [name, entry] : registry.entries()) {
            BOOST_TEST(!entry.help.empty());
            for (const auto& example : entry.examples) BOOST_TEST(Spec::parse(example).name == name);
        }
    };
    check(masks());
    check(layouts());
    check(schedules());
    // A layout without examples is one that no suite runs over.
    for (const auto& [name, entry] : layouts().entries()) BOOST_TEST(entry.examples.empty() == (name == "file"), name);
}

BOOST_AUTO_TEST_CASE(a_count_is_a_whole_decimal_number) {
    BOOST_TEST(parse_count("0", "N", 0) == 0);
    BOOST_TEST(parse_count("007", "N", 0) == 7);
    BOOST_TEST(parse_count("9223372036854775807", "N", 0) == std::numeric_limits<std::int64_t>::max());
}

BOOST_AUTO_TEST_CASE(a_bad_count_is_quoted_with_its_minimum) {
    for (const std::string text : {"", "1", " 5", "+5", "5 ", "1e3", "0x10", "-4", "4.5", "9223372036854775808"})
        BOOST_TEST(error_of([&] { parse_count(text, "WIDTH", 2); }) ==
                   "WIDTH is '" + text + "'; it must be a whole number of at least 2");
}

BOOST_DATA_TEST_CASE(lengths_are_read_from_a_list_or_a_file, data::make(lengths_cases)) {
    const TextFile file(sample.text);
    for (const auto& text : {sample.text, "@" + file.path()})
        BOOST_TEST(parse_lengths(text, "lengths") == sample.lengths, boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(bad_lengths_are_quoted, data::make(bad_lengths)) {
    BOOST_TEST(error_of([&] { parse_lengths(sample.text, "lengths"); }) == "lengths" + sample.error);
}

BOOST_AUTO_TEST_CASE(a_file_of_lengths_that_cannot_be_read_is_named) {
    for (const std::string path : {"/no/such/file", "/"})
        BOOST_TEST(error_of([&] { parse_lengths("@" + path, "lengths"); }) ==
                   "cannot read lengths from file '" + path + "'");
}

BOOST_AUTO_TEST_CASE(a_file_does_not_name_another_file) {
    const TextFile file("@" + TextFile("1").path());
    BOOST_TEST(error_of([&] {
                   parse_lengths("@" + file.path(), "lengths");
               }).starts_with("lengths from file '" + file.path() + "' is '@"));
}

BOOST_AUTO_TEST_CASE(an_error_is_one_line_whatever_it_quotes) {
    BOOST_TEST(error_of([] { parse_count("1\n2\r\t\x1b[31m", "N", 0); }) ==
               "N is '1 2   [31m'; it must be a whole number of at least 0");
}

BOOST_AUTO_TEST_CASE(three_rings_of_two_lie_in_a_world_of_six) {
    const auto ranks = [](RingGroup::Placement placement, int replica) {
        const RingGroup group{.ring = 2, .replicas = 3, .placement = placement};
        return std::vector<int>{group.global_rank(replica, 0), group.global_rank(replica, 1)};
    };
    BOOST_TEST(ranks(RingGroup::Placement::consecutive, 0) == (std::vector<int>{0, 1}),
               boost::test_tools::per_element());
    BOOST_TEST(ranks(RingGroup::Placement::consecutive, 2) == (std::vector<int>{4, 5}),
               boost::test_tools::per_element());
    BOOST_TEST(ranks(RingGroup::Placement::strided, 0) == (std::vector<int>{0, 3}), boost::test_tools::per_element());
    BOOST_TEST(ranks(RingGroup::Placement::strided, 2) == (std::vector<int>{2, 5}), boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(every_global_rank_is_one_ring_rank_of_one_replica,
                     data::make({1, 2, 3, 8}) * data::make({1, 2, 5}) * data::make({false, true}), ring, replicas,
                     strided) {
    const RingGroup group{.ring = ring,
                          .replicas = replicas,
                          .placement = strided ? RingGroup::Placement::strided : RingGroup::Placement::consecutive};
    BOOST_TEST(group.world() == ring * replicas);
    std::set<int> seen;
    for (int replica = 0; replica < replicas; ++replica)
        for (int rank = 0; rank < ring; ++rank) {
            const int global = group.global_rank(replica, rank);
            BOOST_TEST((0 <= global && global < group.world()));
            BOOST_TEST(group.ring_rank(global) == rank);
            BOOST_TEST(group.replica(global) == replica);
            seen.insert(global);
        }
    BOOST_TEST(static_cast<int>(seen.size()) == group.world());
}

BOOST_AUTO_TEST_SUITE_END()
