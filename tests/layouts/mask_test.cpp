#include "layouts/masks/mask.hpp"

#include "tests/layouts/cases.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ostream>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

/// One text line per query row, one character per key: 'x' is seen.
using Picture = std::vector<std::string>;

Picture picture_of(const Mask& mask) {
    Picture picture;
    for (std::int64_t row = 0; row < mask.tokens(); ++row) {
        picture.emplace_back();
        for (std::int64_t key = 0; key < mask.tokens(); ++key) picture.back() += mask.visible(row, key) ? 'x' : '.';
    }
    return picture;
}

struct PictureCase {
    std::string spec;
    Picture picture;
};
std::ostream& operator<<(std::ostream& out, const PictureCase& c) { return out << c.spec; }

const Picture everything(6, "xxxxxx");
const Picture past{"x.....", "xx....", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"};

// What a reader can check by eye. All other masks and joins are compared with the oracles.
const std::vector<PictureCase> picture_cases{
    {"full", everything},
    {"causal", past},
    {"window:2,1", {"xx....", "xxx...", "xxxx..", ".xxxx.", "..xxxx", "...xxx"}},
    {"window:9223372036854775807,9223372036854775807", everything},
    {"causal+documents:2,3,1", {"x.....", "xx....", "..x...", "..xx..", "..xxx.", ".....x"}},
    {"documents:4,2+documents:2,4", {"xx....", "xx....", "..xx..", "..xx..", "....xx", "....xx"}},
    {"prefix:3", {"xxx...", "xxx...", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"}},
    {"block-causal:2x3", {"xx....", "xx....", "xxxx..", "xxxx..", "xxxxxx", "xxxxxx"}},
    {"padded-segments:2,2/0,2/1", {"xx....", "xx....", "......", "......", "xx..x.", "......"}},
    {"shared-question:2,1,3", {"x.....", "xx....", "xxx...", "xx.x..", "xx.xx.", "xx.xxx"}},
    {"shared-question:3,1,2+window:3,0", {"x.....", "xx....", "xxx...", "xxxx..", ".xx.x.", "..x.xx"}},
    {"shared-question:3,1,2+window:3,0+sink:1", {"x.....", "xx....", "xxx...", "xxxx..", "xxx.x.", "x.x.xx"}},
    {"prefix-documents:2,1,2,1", {"xx....", "xx....", "xxx...", "...xx.", "...xx.", "...xxx"}},
    {"window:1,0+sink:2", {"x.....", "xx....", "xxx...", "xxxx..", "xx.xx.", "xx..xx"}},
    {"causal+sink:9223372036854775807", past},
    {"causal+valid:1-3,4-6", {"......", ".x....", ".xx...", "......", ".xx.x.", ".xx.xx"}},
    {"documents:2,2,2+sink:3", {"xx....", "xx....", "xxxx..", "xxxx..", "xxx.xx", "xxx.xx"}},
    {"documents:3,3+valid:1-5+sink:2", {"......", ".xx...", ".xx...", ".x.xx.", ".x.xx.", "......"}},
};

struct BadMask {
    std::string spec;
    std::string error;
};
std::ostream& operator<<(std::ostream& out, const BadMask& c) { return out << c.spec; }

const std::string known = "(all names)";  // which are registered when a test runs

const std::vector<BadMask> bad_masks{
    {"", "unknown mask ''; known: " + known},
    {"casual", "unknown mask 'casual', did you mean 'causal'? Known: " + known},
    {"full:1", "mask full takes no arguments, got '1'"},
    {"window:4", "mask window:4 lacks a part; write window:LEFT,RIGHT, as in window:1024,0"},
    {"window:-1,0", "the window's LEFT is '-1'; it must be a whole number of at least 0"},
    {"documents", "document lengths is empty; give lengths such as 512,300,128x4 or @FILE"},
    {"documents:2,3",
     "the document lengths of mask documents:2,3 sum to 5, the sequence has 6 tokens; they must be equal"},
    {"block-causal:9223372036854775807x2",
     "the segment lengths of mask block-causal:9223372036854775807x2 sum to more than 2^40"},
    {"padded-segments:2,2",
     "the rooms of mask padded-segments:2,2 sum to 4, the sequence has 6 tokens; they must be equal"},
    {"padded-segments:2,9223372036854775807", "the rooms of mask padded-segments sum to more than 2^40"},
    {"padded-segments:2/3,4", "segment '2/3' has 3 tokens in a room of 2; there must be room for all"},
    {"block-causal:2,2",
     "the segment lengths of mask block-causal:2,2 sum to 4, the sequence has 6 tokens; they must be equal"},
    {"shared-question:2,2",
     "the question and answer lengths of mask shared-question:2,2 sum to 4, the sequence has 6 tokens; they must be "
     "equal"},
    {"prefix-documents:2,2,2",
     "mask prefix-documents:2,2,2 has 3 lengths; each document has two, its prefix's and that of the rest"},
    {"prefix", "the prefix length is ''; it must be a whole number of at least 1"},
    {"prefix:7", "the prefix length 7 exceeds the 6 tokens of the sequence"},
    {"sink:-1", "the sink length is '-1'; it must be a whole number of at least 0"},
    {"valid", "mask valid needs ranges, as in valid:0-1000"},
    {"valid:4", "valid range '4' must be BEGIN-END, as in 0-1000"},
    {"valid:3-3", "valid range 3-3 is empty, out of order or past the 6 tokens of the sequence"},
    {"valid:0-7", "valid range 0-7 is empty, out of order or past the 6 tokens of the sequence"},
    {"valid:3-5,0-2", "valid range 0-2 is empty, out of order or past the 6 tokens of the sequence"},
};

/// Whether the segment's rule shows the row the key, sinks aside; bounds may be anything.
bool in_a_range(const MaskSegment& segment, std::int64_t row, std::int64_t key) {
    const auto in = [&](const Bound& begin, const Bound& end) { return begin.at(row) <= key && key < end.at(row); };
    return in(segment.begin, segment.end) ||
           std::ranges::any_of(segment.earlier, [&](const KeyRange& range) { return in(range.begin, range.end); });
}

/// Pairs that a mask shows and sees(row, key) with a sink of sink(row) keys before it does not, or the reverse.
template <class Sees, class Sink>
std::int64_t pairs_seen_otherwise(const Mask& mask, Sees sees, Sink sink) {
    std::int64_t wrong = 0;
    for (std::int64_t row = 0; row < mask.tokens(); ++row) {
        std::int64_t first = 0;
        while (first < mask.tokens() && !sees(row, first)) ++first;
        const auto sink_end = first < mask.tokens() ? std::min(first, sink(row)) : 0;
        for (std::int64_t key = 0; key < mask.tokens(); ++key) {
            const bool seen = sees(row, key) || key < sink_end;
            wrong += mask.visible(row, key) != (seen && mask.key_is_valid(key));
        }
    }
    return wrong;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mask)

BOOST_DATA_TEST_CASE(a_spec_makes_the_mask_drawn_beside_it, data::make(picture_cases)) {
    const auto made = make_mask(sample.spec, 6);
    BOOST_TEST(picture_of(made) == sample.picture, boost::test_tools::per_element());
    BOOST_TEST(made.name() == sample.spec);
    BOOST_TEST(row_that_breaks_the_invariants(made) == -1);
}

BOOST_DATA_TEST_CASE(a_bad_spec_is_explained, data::make(bad_masks)) {
    auto expected = sample.error;
    if (const auto at = expected.find(known); at != std::string::npos) {
        std::string names;
        for (const auto& [name, entry] : masks().entries()) names += (names.empty() ? "" : ", ") + name;
        expected.replace(at, known.size(), names);
    }
    BOOST_TEST(error_of([&] { make_mask(sample.spec, 6); }) == expected);
}

BOOST_AUTO_TEST_CASE(a_sequence_without_tokens_or_with_too_many_is_refused) {
    const std::string right = "; a mask spans 1 to 2^31 tokens";
    BOOST_TEST(error_of([] { make_mask("causal", 0); }) == "tokens is 0" + right);
    BOOST_TEST(error_of([] { make_mask("full", -1); }) == "tokens is -1" + right);
    BOOST_TEST(error_of([] { make_mask("window:1,1", std::numeric_limits<std::int64_t>::max()); }) ==
               "tokens is 9223372036854775807" + right);
}

BOOST_AUTO_TEST_CASE(segments_stay_few_however_long_the_sequence) {
    constexpr auto tokens = std::int64_t{1} << 30;
    BOOST_TEST(make_mask("full", tokens).segments().size() == 1);
    BOOST_TEST(make_mask("causal", tokens).segments().size() == 1);
    BOOST_TEST(make_mask("window:1000,1000", tokens).segments().size() <= 5);
    BOOST_TEST(make_mask("causal+documents:1048576x1024", tokens).segments().size() <= 2 * 1024);
}

BOOST_AUTO_TEST_CASE(segments_that_leave_gaps_are_refused) {
    const auto make = [](std::vector<MaskSegment> segments) { return error_of([&] { Mask("m", 4, segments); }); };
    BOOST_TEST(make({{{0, 2}, {}, {}}, {{3, 4}, {}, {}}}).find("starts at row 3, the one before it ends at 2") !=
               std::string::npos);
    BOOST_TEST(make({{{0, 3}, {}, {}}}) == "mask m covers rows up to 3 of 4");
    BOOST_TEST(make({{{0, 5}, {}, {}}}) == "mask m covers rows up to 5 of 4");
    BOOST_TEST(error_of([] {
                   Mask("m", 4, {{{0, 4}, {}, {}}}, {{0, 2}, {1, 3}});
               }).starts_with("mask m: valid keys [1, 3) are empty, out of order or past the last token 4"));
}

BOOST_AUTO_TEST_CASE(random_segments_are_clamped_to_what_they_mean) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 3000; ++trial) {
        const auto tokens = pick(random, 1, 24);
        const auto bound = [&] { return Bound{pick(random, -30, 30), pick(random, 0, 1)}; };
        MaskSegment segment{{0, tokens}, bound(), bound(), pick(random, -2, 30)};
        for (auto ranges = pick(random, 0, 3); ranges > 0; --ranges) segment.earlier.push_back({bound(), bound()});
        const Mask mask("m", tokens, {segment});
        BOOST_REQUIRE_EQUAL(row_that_breaks_the_invariants(mask), -1);
        BOOST_REQUIRE_EQUAL(pairs_seen_otherwise(
                                mask, [&](auto row, auto key) { return in_a_range(segment, row, key); },
                                [&](auto) { return segment.sink; }),
                            0);
    }
}

BOOST_AUTO_TEST_CASE(intersection_is_what_both_see_and_the_sinks_of_either) {
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 3000; ++trial) {
        const auto tokens = pick(random, 1, 24);
        const auto a = random_mask(random, tokens), b = random_mask(random, tokens), both = intersect(a, b);
        BOOST_REQUIRE_EQUAL(row_that_breaks_the_invariants(both), -1);
        const auto rule = [](const Mask& mask, auto row) -> auto& { return mask.segments()[mask.segment_of(row)]; };
        BOOST_REQUIRE_EQUAL(pairs_seen_otherwise(
                                both,
                                [&](auto row, auto key) {
                                    return in_a_range(rule(a, row), row, key) && in_a_range(rule(b, row), row, key);
                                },
                                [&](auto row) { return std::max(rule(a, row).sink, rule(b, row).sink); }),
                            0);
        for (std::int64_t key = 0; key < tokens; ++key)
            BOOST_REQUIRE_EQUAL(both.key_is_valid(key), a.key_is_valid(key) && b.key_is_valid(key));
    }
    BOOST_TEST(error_of([] { intersect(make_mask("full", 4), make_mask("causal", 5)); }) ==
               "cannot intersect mask full over 4 tokens with causal over 5");
}

BOOST_AUTO_TEST_CASE(a_mask_is_padded_to_more_tokens_only) {
    const auto mask = make_mask("causal+valid:1-6", 6);
    BOOST_TEST(!pad(mask, 7).all_keys_valid());
    BOOST_TEST(picture_of(pad(mask, 6)) == picture_of(mask), boost::test_tools::per_element());
    BOOST_TEST(error_of([&] { pad(mask, 5); }) == "cannot pad a mask over 6 tokens to 5");
}

BOOST_AUTO_TEST_CASE(last_rows_are_those_of_every_sequence_that_a_mask_holds) {
    const auto rows = [](const std::string& spec, std::int64_t count) {
        std::string text;
        for (const auto& each : last_rows(make_mask(spec, 12), count))
            text += fmt::format("{}-{} ", each.begin, each.end);
        return text;
    };
    BOOST_TEST(rows("causal", 1) == "11-12 ");
    BOOST_TEST(rows("full", 5) == "7-12 ");
    BOOST_TEST(rows("window:2,0", 3) == "9-12 ");
    BOOST_TEST(rows("prefix:5", 2) == "10-12 ");
    BOOST_TEST(rows("causal+documents:5,1,6", 1) == "4-5 5-6 11-12 ");
    BOOST_TEST(rows("documents:5,1,6", 2) == "3-5 5-6 10-12 ");
    BOOST_TEST(rows("padded-segments:4/2,3/0,5/4", 2) == "9-11 ");  // of one sequence, padding in the middle
    BOOST_TEST(rows("causal+valid:0-7", 2) == "5-7 ");              // the last that is no padding
    BOOST_TEST(rows("shared-question:6,3x2", 1) == "8-9 11-12 ");   // of each answer
    BOOST_CHECK_THROW(last_rows(make_mask("causal", 12), 0), ringlab::Error);
}

BOOST_AUTO_TEST_SUITE_END()
