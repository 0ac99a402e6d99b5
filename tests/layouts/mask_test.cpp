#include "layouts/mask.hpp"

#include "tests/layouts/cases.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <functional>
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
const Picture itself{"x.....", ".x....", "..x...", "...x..", "....x.", ".....x"};

const std::vector<PictureCase> picture_cases{
    {"full", everything},
    {"causal", past},
    {"causal+full", past},
    {"window:2,1", {"xx....", "xxx...", "xxxx..", ".xxxx.", "..xxxx", "...xxx"}},
    {"window:0,2", {"xxx...", ".xxx..", "..xxx.", "...xxx", "....xx", ".....x"}},
    {"window:0,0", itself},
    {"window:5,5", everything},
    {"window:9223372036854775807,0", past},
    {"window:9223372036854775807,9223372036854775807", everything},
    {"causal+window:1,1", {"x.....", "xx....", ".xx...", "..xx..", "...xx.", "....xx"}},
    {"documents:2,3,1", {"xx....", "xx....", "..xxx.", "..xxx.", "..xxx.", ".....x"}},
    {"causal+documents:2,3,1", {"x.....", "xx....", "..x...", "..xx..", "..xxx.", ".....x"}},
    {"documents:6", everything},
    {"documents:1x6", itself},
    {"documents:4,2+documents:2,4", {"xx....", "xx....", "..xx..", "..xx..", "....xx", "....xx"}},
    {"prefix:3", {"xxx...", "xxx...", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"}},
    {"prefix:1", past},
    {"prefix:6", everything},
    {"block-causal:2x3", {"xx....", "xx....", "xxxx..", "xxxx..", "xxxxxx", "xxxxxx"}},
    {"block-causal:1,4,1", {"x.....", "xxxxx.", "xxxxx.", "xxxxx.", "xxxxx.", "xxxxxx"}},
    {"padded-segments:2,2/0,2/1", {"xx....", "xx....", "......", "......", "xx..x.", "......"}},
    {"padded-segments:3/2,3", {"xx....", "xx....", "......", "xx.xxx", "xx.xxx", "xx.xxx"}},
    {"block-causal:1x6+documents:2,4", {"x.....", "xx....", "..x...", "..xx..", "..xxx.", "..xxxx"}},
    {"shared-question:2,1,3", {"x.....", "xx....", "xxx...", "xx.x..", "xx.xx.", "xx.xxx"}},
    {"shared-question:6", past},
    {"shared-question:1,2,3+valid:0-5", {"x.....", "xx....", "xxx...", "x..x..", "x..xx.", "......"}},
    {"prefix-documents:2,1,2,1", {"xx....", "xx....", "xxx...", "...xx.", "...xx.", "...xxx"}},
    {"prefix-documents:1,5", past},
    {"sink:3", everything},
    {"window:1,0+sink:2", {"x.....", "xx....", "xxx...", "xxxx..", "xx.xx.", "xx..xx"}},
    {"sink:2+window:1,0", {"x.....", "xx....", "xxx...", "xxxx..", "xx.xx.", "xx..xx"}},
    {"window:1,0+sink:0", {"x.....", "xx....", ".xx...", "..xx..", "...xx.", "....xx"}},
    {"causal+sink:9223372036854775807", past},
    {"valid:1-3,4-6", {"......", ".xx.xx", ".xx.xx", "......", ".xx.xx", ".xx.xx"}},
    {"valid:0-6", everything},
    {"causal+valid:1-3,4-6", {"......", ".x....", ".xx...", "......", ".xx.x.", ".xx.xx"}},
    {"valid:0-3+valid:2-4", {"......", "......", "..x...", "......", "......", "......"}},
    {"documents:3,3+prefix:4", {"xxx...", "xxx...", "xxx...", "...x..", "...xx.", "...xxx"}},
    {"documents:2,2,2+sink:3", {"xx....", "xx....", "xxxx..", "xxxx..", "xxx.xx", "xxx.xx"}},
    {"prefix:2+sink:4", {"xx....", "xx....", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"}},
    {"block-causal:2x3+sink:3", {"xx....", "xx....", "xxxx..", "xxxx..", "xxxxxx", "xxxxxx"}},
    {"window:0,1+sink:3", {"xx....", "xxx...", "xxxx..", "xxxxx.", "xxx.xx", "xxx..x"}},
    {"documents:3,3+valid:1-5+sink:2", {"......", ".xx...", ".xx...", ".x.xx.", ".x.xx.", "......"}},
};

struct BadMask {
    std::string spec;
    std::string error;
};
std::ostream& operator<<(std::ostream& out, const BadMask& c) { return out << c.spec; }

const std::string known =
    "block-causal, causal, chunks, documents, full, padded-segments, prefix, prefix-documents, shared-question, sink, "
    "valid, "
    "window";

const std::vector<BadMask> bad_masks{
    {"", "unknown mask ''; known: " + known},
    {"casual", "unknown mask 'casual', did you mean 'causal'? Known: " + known},
    {"docs:6", "unknown mask 'docs'; known: " + known},
    {"causal+", "unknown mask ''; known: " + known},
    {"full:1", "mask full takes no arguments, got '1'"},
    {"causal:x", "mask causal takes no arguments, got 'x'"},
    {"window:4", "mask window:4 lacks a part; write window:LEFT,RIGHT, as in window:1024,0"},
    {"window:-1,0", "the window's LEFT is '-1'; it must be a whole number of at least 0"},
    {"window:1,0,3", "the window's RIGHT is '0,3'; it must be a whole number of at least 0"},
    {"documents", "document lengths is empty; give lengths such as 512,300,128x4 or @FILE"},
    {"documents:2,3",
     "the document lengths of mask documents:2,3 sum to 5, the sequence has 6 tokens; they must be equal"},
    {"documents:2,5", "the document lengths of mask documents:2,5 sum to more than the 6 tokens of the sequence"},
    {"block-causal:9223372036854775807x2",
     "the segment lengths of mask block-causal:9223372036854775807x2 sum to more than the 6 tokens of the sequence"},
    {"padded-segments:2,2",
     "the rooms of mask padded-segments:2,2 sum to 4, the sequence has 6 tokens; they must be equal"},
    {"padded-segments:2,5", "the rooms of mask padded-segments sum to more than the 6 tokens of the sequence"},
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
    {"valid:0--2", "the end of a valid range is '-2'; it must be a whole number of at least 1"},
};

/// What interpreters rely on, by the letter of mask.hpp. Returns the first row that breaks it, -1 if none does.
std::int64_t row_that_breaks_the_invariants(const Mask& mask) {
    std::int64_t next_row = 0;
    for (const auto& segment : mask.segments()) {
        if (segment.rows.begin != next_row || segment.rows.size() == 0 || segment.sink < 0) return segment.rows.begin;
        next_row = segment.rows.end;
        const bool first_empty = segment.at(segment.rows.begin) == RowKeys{};
        for (auto row = segment.rows.begin; row < segment.rows.end; ++row) {
            const auto begin = segment.begin.at(row), end = segment.end.at(row);
            if (begin < 0 || begin > end || end > mask.tokens()) return row;
            const auto seen = mask.row(row);
            if (seen != segment.at(row)) return row;
            const bool empty = seen == RowKeys{};
            if (!empty && (seen.begin >= seen.end || seen.sink < 0 || seen.sink > seen.begin)) return row;
            if (empty != first_empty) return row;  // rows of a segment all see something or all see nothing
        }
    }
    return next_row == mask.tokens() ? -1 : next_row;
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
    BOOST_TEST(error_of([&] { make_mask(sample.spec, 6); }) == sample.error);
}

BOOST_AUTO_TEST_CASE(a_sequence_without_tokens_or_with_too_many_is_refused) {
    const std::string right = "; a mask spans 1 to 2^31 tokens";
    BOOST_TEST(error_of([] { make_mask("causal", 0); }) == "tokens is 0" + right);
    BOOST_TEST(error_of([] { make_mask("full", -1); }) == "tokens is -1" + right);
    BOOST_TEST(error_of([] { make_mask("window:1,1", std::numeric_limits<std::int64_t>::max()); }) ==
               "tokens is 9223372036854775807" + right);
}

BOOST_AUTO_TEST_CASE(document_lengths_come_from_a_file) {
    const TextFile file("2\n3 1\n");
    BOOST_TEST(picture_of(make_mask("causal+documents:@" + file.path(), 6)) ==
                   picture_of(make_mask("causal+documents:2,3,1", 6)),
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(causal_is_one_segment_and_row_2_of_4_sees_keys_0_to_3) {
    const auto causal = make_mask("causal", 4);
    BOOST_REQUIRE(causal.segments().size() == 1);
    const auto& segment = causal.segments().front();
    BOOST_CHECK((segment.rows == Interval{0, 4}));
    BOOST_CHECK((segment.begin == Bound{0, 0}));
    BOOST_CHECK((segment.end == Bound{1, 1}));
    BOOST_CHECK((causal.row(2) == RowKeys{0, 3, 0}));
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
    for (int trial = 0; trial < 2000; ++trial) {
        const auto tokens = pick(random, 1, 24);
        const Bound begin{pick(random, -30, 30), pick(random, 0, 1)}, end{pick(random, -30, 30), pick(random, 0, 1)};
        const auto sink = pick(random, -2, 30);
        const Mask mask("m", tokens, {{{0, tokens}, begin, end, sink}});
        BOOST_REQUIRE_EQUAL(row_that_breaks_the_invariants(mask), -1);
        int wrong = 0;
        for (std::int64_t row = 0; row < tokens; ++row) {
            const auto first = std::max<std::int64_t>(begin.at(row), 0), last = std::min(end.at(row), tokens);
            for (std::int64_t key = 0; key < tokens; ++key) {
                const bool seen = first < last && ((first <= key && key < last) || (key < sink && key < first));
                wrong += mask.visible(row, key) != seen;
            }
        }
        BOOST_REQUIRE_EQUAL(wrong, 0);
    }
}

BOOST_AUTO_TEST_CASE(intersection_is_what_both_see_and_the_sinks_of_either) {
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 2000; ++trial) {
        const auto tokens = pick(random, 1, 24);
        const auto a = random_mask(random, tokens), b = random_mask(random, tokens), both = intersect(a, b);
        BOOST_REQUIRE_EQUAL(row_that_breaks_the_invariants(both), -1);
        int wrong = 0;
        for (std::int64_t row = 0; row < tokens; ++row) {
            const auto x = a.row(row), y = b.row(row);
            const auto begin = std::max(x.begin, y.begin), end = std::min(x.end, y.end);
            // The sinks as set, before each was limited to its own mask's interval.
            const auto sink = std::max(a.segments()[a.segment_of(row)].sink, b.segments()[b.segment_of(row)].sink);
            for (std::int64_t key = 0; key < tokens; ++key) {
                const bool seen = begin < end && ((begin <= key && key < end) || (key < sink && key < begin)) &&
                                  a.key_is_valid(key) && b.key_is_valid(key);
                wrong += both.visible(row, key) != seen;
            }
        }
        BOOST_REQUIRE_EQUAL(wrong, 0);
    }
    BOOST_TEST(error_of([] { intersect(make_mask("full", 4), make_mask("causal", 5)); }) ==
               "cannot intersect mask full over 4 tokens with causal over 5");
}

/// One term of a mask as --list explains it, of one row and one key and nothing else.
struct Explained {
    std::string spec;
    std::function<bool(std::int64_t row, std::int64_t key)> sees;
};

Explained random_term(std::mt19937_64& random, std::int64_t tokens) {
    const auto n = pick(random, 1, tokens), cut = pick(random, 1, tokens - 1);
    const auto two = std::to_string(cut) + "," + std::to_string(tokens - cut);
    const auto in_same_part = [=](std::int64_t row, std::int64_t key) { return (row < cut) == (key < cut); };
    switch (pick(random, 0, 5)) {
        case 0: return {"causal", [](auto row, auto key) { return key <= row; }};
        case 1:
            return {"window:" + std::to_string(n) + "," + std::to_string(cut),
                    [=](auto row, auto key) { return row - n <= key && key <= row + cut; }};
        case 2: return {"documents:" + two, in_same_part};
        case 3:
            return {"prefix:" + std::to_string(n),
                    [=](auto row, auto key) { return key <= row || (row < n && key < n); }};
        case 4:
            return {"block-causal:" + two, [=](auto row, auto key) { return key <= row || in_same_part(row, key); }};
        default:
            return {"valid:" + std::to_string(cut - 1) + "-" + std::to_string(tokens),
                    [=](auto row, auto key) { return row >= cut - 1 && key >= cut - 1; }};
    }
}

BOOST_AUTO_TEST_CASE(joined_masks_and_sinks_are_what_their_help_says) {
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 3000; ++trial) {
        const auto tokens = pick(random, 2, 20), sink = pick(random, 0, tokens + 2);
        std::vector<Explained> terms;
        for (auto count = pick(random, 1, 3); count > 0; --count) terms.push_back(random_term(random, tokens));
        std::string spec;
        for (const auto& term : terms) spec += term.spec + "+";
        const auto mask = make_mask(spec + "sink:" + std::to_string(sink), tokens);
        int wrong = 0;
        for (std::int64_t row = 0; row < tokens; ++row) {
            // By the other masks together; padding, which no key can lift, apart.
            const auto of = [&](std::int64_t key, bool padding) {
                return std::all_of(terms.begin(), terms.end(), [&](const Explained& term) {
                    return term.spec.starts_with("valid") ? (padding ? term.sees(key, key) : term.sees(row, row))
                                                          : padding || term.sees(row, key);
                });
            };
            std::int64_t first = tokens;
            for (std::int64_t key = tokens; key-- > 0;)
                if (of(key, false)) first = key;
            for (std::int64_t key = 0; key < tokens; ++key) {
                const bool looks_back = key < sink && key < first && first < tokens;
                wrong += mask.visible(row, key) != ((of(key, false) || looks_back) && of(key, true));
            }
        }
        BOOST_TEST(wrong == 0, mask.name() << " over " << tokens << " tokens: " << wrong << " pairs");
    }
}

BOOST_AUTO_TEST_CASE(validity_is_the_union_of_the_valid_intervals) {
    const auto mask = make_mask("valid:1-3,4-6", 8);
    BOOST_TEST(!mask.all_keys_valid());
    std::string keys;
    for (std::int64_t key = 0; key < 8; ++key) keys += mask.key_is_valid(key) ? 'x' : '.';
    BOOST_TEST(keys == ".xx.xx..");
    BOOST_TEST(make_mask("causal", 8).all_keys_valid());
}

BOOST_DATA_TEST_CASE(padding_sees_nothing_and_nobody_sees_it, data::make(mask_specs())) {
    const auto mask = make_mask(sample, case_tokens);
    BOOST_TEST(row_that_breaks_the_invariants(mask) == -1);
    const auto padded = pad(mask, case_tokens + 9);
    BOOST_TEST(row_that_breaks_the_invariants(padded) == -1);
    int wrong = 0;
    for (std::int64_t row = 0; row < padded.tokens(); ++row)
        for (std::int64_t key = 0; key < padded.tokens(); ++key)
            wrong += padded.visible(row, key) != (row < case_tokens && key < case_tokens && mask.visible(row, key));
    BOOST_TEST(wrong == 0);
    BOOST_TEST(!padded.key_is_valid(case_tokens));
    BOOST_TEST(picture_of(pad(mask, case_tokens)) == picture_of(mask), boost::test_tools::per_element());
    BOOST_TEST(error_of([&] { pad(mask, 70); }) == "cannot pad a mask over 71 tokens to 70");
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
