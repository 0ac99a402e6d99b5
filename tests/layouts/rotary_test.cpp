#include "layouts/problem/rotary.hpp"

#include "layouts/problem/problem.hpp"
#include "tests/layouts/cases.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <numeric>
#include <ostream>

using namespace ringlab::layouts;
using namespace ringlab::layouts::testing;
namespace data = boost::unit_test::data;

namespace {

struct Model {
    std::string scaling;
    Rotary rotary;
    std::int64_t head_dim;
    std::vector<double> frequencies;  // of some pairs, from the formulas of Hugging Face's modeling_rope_utils.py
    std::vector<std::size_t> pairs;
    double amplitude = 1;
};
std::ostream& operator<<(std::ostream& out, const Model& model) { return out << model.scaling; }

const std::vector<Model> models{
    {"none",
     {.base = 1000000},
     128,
     {1.0, 0.8058421877614819, 0.0012409377607517195, 1.2409377607517195e-06},
     {0, 1, 31, 63},
     1},
    {"linear:8", {.base = 1000000}, 128, {0.125, 0.001666901790204155, 1.5511722009396494e-07}, {0, 20, 63}, 1},
    {"ntk:4",
     {.base = 10000},
     64,
     {1.0, 0.7170983281048126, 0.004889442681677164, 3.3338035804083106e-05},
     {0, 1, 16, 31},
     1},
    {"llama3:8,1,4,8192",
     {.base = 500000},
     128,
     {1.0, 0.016560440080994446, 0.003211445994752591, 0.002166570763503359, 0.0013718935677611381,
      0.0005248461609929547, 0.0001785078127679964, 9.556212353964683e-05, 7.78465527393245e-05, 3.068925988914511e-07},
     {0, 20, 28, 29, 30, 32, 34, 35, 36, 63},
     1},
    {"yarn:40,4096,32,1,1",
     {.base = 10000, .dims = 64, .first = 128, .pairs = Rotary::Pairs::interleaved},
     192,
     {1.0, 0.07498942093324558, 0.056234132519034905, 0.03900692656714386, 0.008334508951020777, 0.0007905694150420945,
      0.0001778279410038922, 3.33380358040831e-05, 2.5e-05, 3.33380358040831e-06},
     {0, 9, 10, 11, 15, 20, 22, 23, 24, 31},
     1},
    {"yarn:16,8192",
     {.base = 150000},
     64,
     {1.0, 0.07374456821026082, 0.050813274815461475, 0.03501259767512414, 0.008525589260445963, 0.0010415977938663887,
      0.00028557478314979786, 6.047022856238429e-07},
     {0, 7, 8, 9, 12, 16, 18, 31},
     1.2772588722239782},
};

struct Bad {
    std::string scaling;
    Rotary rotary;
    std::string error;
};
std::ostream& operator<<(std::ostream& out, const Bad& bad) { return out << bad.error; }

const std::vector<Bad> bads{
    {"none", {.base = 1}, "the base of rotary embeddings is 1; it must be above 1"},
    {"none", {.base = -5}, "the base of rotary embeddings is -5; it must be above 1"},
    {"none",
     {.base = 100, .dims = 7},
     "7 rotated dims from 0 on do not fit heads of 64; there must be an even number of them (dims of --rotary)"},
    {"none",
     {.base = 100, .dims = 64, .first = 2},
     "64 rotated dims from 2 on do not fit heads of 64; there must be an even number of them (dims of --rotary)"},
    {"none",
     {.base = 100, .first = 64},
     "rotated dims from 64 on are asked for; heads have dims 0 to 63 (first of --rotary)"},
    {"liner:8",
     {.base = 100},
     "unknown rotary scaling 'liner', did you mean 'linear'? Known: none, linear, ntk, llama3, yarn"},
    {"linear", {.base = 100}, "rotary scaling 'linear' has 0 numbers; write it as linear:FACTOR"},
    {"linear:8,",
     {.base = 100},
     "rotary scaling 'linear:8,' holds ''; write it as linear:FACTOR, with positive numbers"},
    {"linear:x",
     {.base = 100},
     "rotary scaling 'linear:x' holds 'x'; write it as linear:FACTOR, with positive numbers"},
    {"linear:0.5", {.base = 100}, "rotary scaling 'linear:0.5' has the factor 0.5; it must be at least 1"},
    {"yarn:8,4096,32",
     {.base = 100},
     "rotary scaling 'yarn:8,4096,32' has 3 numbers; write it as yarn:FACTOR,LENGTH[,FAST,SLOW[,AMPLITUDE]]"},
    {"yarn:8,4096,1,1", {.base = 100}, "rotary scaling 'yarn:8,4096,1,1': FAST is 1; it must be above SLOW, 1"},
    {"llama3:8,4,4,8192", {.base = 100}, "rotary scaling 'llama3:8,4,4,8192': HIGH is 4; it must be above LOW, 4"},
};

std::vector<std::int64_t> all_tokens(std::int64_t count) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

bool sees(const Mask& mask, std::int64_t row, std::int64_t key) { return mask.row(row).contains(key); }

/// By definition: no pair across `begin` sees one another. Padding counts as if it were there, or it would cut what it
/// lies in.
bool begins_a_document(const Mask& mask, std::int64_t begin) {
    for (std::int64_t before = 0; before < begin; ++before)
        for (std::int64_t behind = begin; behind < mask.tokens(); ++behind)
            if (sees(mask, before, behind) || sees(mask, behind, before)) return false;
    return true;
}

void check_documents(const Mask& mask) {
    std::vector<std::int64_t> expected;
    for (std::int64_t token = 0; token < mask.tokens(); ++token)
        if (begins_a_document(mask, token)) expected.push_back(token);
    BOOST_TEST(document_begins(mask) == expected, boost::test_tools::per_element());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rotary)

BOOST_DATA_TEST_CASE(frequencies_are_those_of_real_models, data::make(models), model) {
    auto rotary = model.rotary;
    rotary.scaling = parse_rotary_scaling(model.scaling);
    const auto table = rotary_table(rotary, model.head_dim);
    for (std::size_t i = 0; i < model.pairs.size(); ++i)
        BOOST_TEST(table.frequencies.at(model.pairs[i]) == model.frequencies[i], boost::test_tools::tolerance(1e-13));
    BOOST_TEST(table.amplitude == model.amplitude, boost::test_tools::tolerance(1e-14));
}

BOOST_AUTO_TEST_CASE(pairs_lie_as_models_keep_their_weights) {
    Rotary rotary{.base = 10000, .dims = 6, .first = 4};
    auto table = rotary_table(rotary, 16);
    BOOST_TEST(table.dims() == 6);
    BOOST_TEST(table.dim_of(1) == 5);
    BOOST_TEST(table.dim_of(1) + table.distance() == 8);
    rotary.pairs = Rotary::Pairs::interleaved;
    table = rotary_table(rotary, 16);
    BOOST_TEST(table.dim_of(1) == 6);
    BOOST_TEST(table.dim_of(1) + table.distance() == 7);
    BOOST_TEST(rotary_table({.base = 10000, .first = 4}, 16).dims() == 12);
}

BOOST_DATA_TEST_CASE(what_cannot_be_is_named, data::make(bads), bad) {
    const auto attempt = [&] {
        auto rotary = bad.rotary;
        rotary.scaling = parse_rotary_scaling(bad.scaling);
        Problem{.tokens = 8, .head_dim = 64, .rotary = rotary}.validate();
    };
    BOOST_CHECK_EXCEPTION(attempt(), ringlab::Error,
                          [&](const ringlab::Error& error) { return error.what() == bad.error; });
}

BOOST_AUTO_TEST_CASE(documents_of_random_masks_begin_where_nobody_sees_across) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 200; ++i) check_documents(random_mask(random, 30));
}

BOOST_AUTO_TEST_CASE(positions_start_again_in_each_document) {
    const auto mask = pad(make_mask("causal+documents:3,1,4", 8), 10);
    const Rotary global{.base = 10000}, of_documents{.base = 10000, .positions = Rotary::Positions::documents};
    const std::vector<std::int64_t> expected{0, 1, 2, 0, 0, 1, 2, 3, 0, 0};
    BOOST_TEST(rotary_positions(of_documents, mask, all_tokens(10)) == expected, boost::test_tools::per_element());
    BOOST_TEST(rotary_positions(global, mask, all_tokens(10)) == all_tokens(10), boost::test_tools::per_element());
    const std::vector<std::int64_t> some{7, 2, 4}, positions{3, 2, 0};
    BOOST_TEST(rotary_positions(of_documents, mask, some) == positions, boost::test_tools::per_element());
}

// As models of batches padded on the left have it, and those of images, language and actions: the cumulative sum of
// the padding mask, less one. Padding has the position that comes next; nobody sees it.
BOOST_AUTO_TEST_CASE(positions_in_documents_do_not_count_padding) {
    const Rotary of_documents{.base = 10000, .positions = Rotary::Positions::documents};
    const auto positions_under = [&](const char* mask) {
        return rotary_positions(of_documents, make_mask(mask, 8), all_tokens(8));
    };
    const std::vector<std::int64_t> left{0, 0, 0, 0, 1, 2, 3, 4}, segments{0, 1, 2, 2, 2, 3, 4, 5},
        packed{0, 0, 0, 1, 0, 0, 1, 2};
    BOOST_TEST(positions_under("causal+valid:3-8") == left, boost::test_tools::per_element());
    BOOST_TEST(positions_under("padded-segments:4/2,1,2,1") == segments, boost::test_tools::per_element());
    BOOST_TEST(positions_under("causal+documents:4,4+valid:2-4,5-8") == packed, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
