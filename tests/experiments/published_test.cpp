// What others have published: which files are refused, what is fitted, and how well it is predicted.

#include "experiments/validation/published.hpp"
#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/options/source.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/validation/scores.hpp"
#include "sim/play/simulate.hpp"
#include "tests/experiments/record_support.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <fstream>
#include <iterator>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using Documents = std::vector<std::int64_t>;

const std::string columns = "mask,pass,system,gpus,tflops_per_gpu\n";

/// The table of a file with this text.
PublishedTable table_of(const std::string& ending, const std::string& text) {
    const test::Folder folder;
    std::ofstream(folder / ("f" + ending)) << text;
    return load_published((folder / ("f" + ending)).string());
}

/// What is said of such a file, behind its name; "" if it is taken.
std::string error_of(const std::string& ending, const std::string& text) {
    try {
        table_of(ending, text);
    } catch (const Error& error) {
        const std::string what = error.what();
        BOOST_TEST(test::one_line(what));
        return what.substr(what.find(ending) + ending.size());
    }
    return "";
}

PublishedFigure figure(const std::string& mask, const std::string& system, double published, double model, double scale,
                       double copied, bool fitted = false) {
    return {system, mask, "forward", 32, 8192, published, fitted, model, scale, copied};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(published)

BOOST_AUTO_TEST_CASE(a_file_of_figures_is_read_with_comments_and_either_line_end) {
    const auto figures = table_of(".csv", "# from a chart\r\n" + columns +
                                              "\nfull,bwd,usp,16,512.5\r\n# more\nvarlen_full,fwd,usp,64,3e2\n")
                             .figures;
    BOOST_REQUIRE(figures.size() == 2u);
    BOOST_TEST(figures[0].mask == "full");
    BOOST_TEST(figures[0].passes == "backward");
    BOOST_TEST(figures[0].gpus == 16);
    BOOST_TEST(figures[0].published == 512.5);
    BOOST_TEST(!figures[0].is_packed());
    BOOST_TEST(figures[1].is_packed());
    BOOST_TEST(figures[1].published == 300);
}

BOOST_AUTO_TEST_CASE(a_file_of_figures_that_is_wrong_is_refused_in_one_line_that_says_where) {
    const auto good = columns + "full,fwd,usp,8,500\n";
    BOOST_TEST(error_of(".csv", good) == "");
    for (const auto& [text, expected] :
         {std::pair<std::string, std::string>{"", ": the first line is ''; it must be the columns mask,pass,"},
          {"mask,pass,system,gpus\n", ": the first line is 'mask,pass,system,gpus'; it must be the columns "},
          {columns, ": there are columns but no figures"},
          {columns + "full,fwd,usp,8\n", ":2: 4 cells; there must be 5: mask,pass,system,gpus,tflops_per_gpu"},
          {columns + "ful,fwd,usp,8,500\n", ":2: unknown mask 'ful', did you mean 'full'?"},
          {columns + "full,both,usp,8,500\n", ":2: pass is 'both'; it must be fwd or bwd"},
          {columns + "full,fwd,ups,8,500\n", ":2: unknown system 'ups', did you mean 'usp'? Known:"},
          {columns + "full,fwd,usp,1,500\n", ":2: gpus is '1'; it must be a whole number from 2 to 16384"},
          {columns + "full,fwd,usp,8.5,500\n", ":2: gpus is '8.5'"},
          {good + "# again\nfull,fwd,usp,8,501\n", ":4: this system, mask, pass and number of GPUs come twice"}})
        BOOST_TEST(error_of(".csv", text).starts_with(expected), text << error_of(".csv", text));
    for (const std::string value : {"", "nan", "inf", "0", "-3", "500x", " 500"})
        BOOST_TEST(error_of(".csv", columns + "full,fwd,usp,8," + value + "\n") ==
                   fmt::format(":2: tflops_per_gpu is '{}'; it must be a number above 0, or unknown", value));
}

BOOST_AUTO_TEST_CASE(a_table_of_rings_that_says_too_little_is_refused_by_its_line_or_key) {
    std::ifstream whole(RINGLAB_SOURCE_DIR "/experiments/published/ring_flash_attention_8xh800.toml");
    const std::string good{std::istreambuf_iterator<char>(whole), {}};
    const auto error_with = [&](const std::string& what, const std::string& with) {
        auto text = good;
        BOOST_REQUIRE(text.find(what) != std::string::npos);
        return error_of(".toml", text.replace(text.find(what), what.size(), with));
    };
    BOOST_TEST(error_with("share", "share") == "");
    BOOST_TEST(error_with("share of one GPU", "percent") ==
               ": unit is 'percent'; it must be 'TFLOP/s per GPU' or 'share of one GPU'");
    for (const auto& [what, with, part] : {std::tuple{"[0.521]", "[]", "has 0 figures forward and 1 of both passes; "},
                                           {"[0.521]", "[-1]", ": forward must have numbers from"},
                                           {"ranks = 8", "ranks = 1", ": ranks must be from 2 to 16384"},
                                           {"\"causal\"", "\"casual\"", "did you mean 'causal'"},
                                           {"[8192]", "[[", "not valid TOML"}})
        BOOST_TEST(test::contains(error_with(what, with), part), error_with(what, with));
}

BOOST_AUTO_TEST_CASE(figures_are_scaled_by_the_published_figure_of_the_gpus_fitted_to) {
    auto table = table_of(".csv", columns + "full,fwd,usp,8,500\nfull,fwd,usp,16,400\n");
    table.anchors = {table.figures[0]};
    predict_published(table);
    const auto eight = table.figures[0], sixteen = table.figures[1];
    BOOST_TEST(eight.fitted);
    BOOST_TEST(std::abs(eight.error(eight.predicted())) < 1e-12);  // three roundings
    BOOST_TEST(!sixteen.fitted);
    BOOST_TEST(sixteen.scale == 500 / eight.model);
    BOOST_TEST(sixteen.copied == 500);
    BOOST_TEST(sixteen.model != eight.model);
    // What is published of 16 changes neither the model nor the scale.
    table.figures[1].published = 1;
    predict_published(table);
    BOOST_TEST(table.figures[1].predicted() == sixteen.predicted());
    // What cannot be scaled, or has no packings.
    const auto error_with = [&](std::vector<PublishedFigure> anchors) {
        auto packed = table_of(".csv", columns + "varlen_full,fwd,ulysses,24,300\n");
        packed.anchors = std::move(anchors);
        return test::error_of([&] { predict_published(packed); });
    };
    auto anchor = eight;
    anchor.mask = "varlen_full";
    anchor.system = "ulysses";
    BOOST_TEST(test::contains(error_with({anchor}), "are not for 24 GPUs"));
    table.anchors = {};
    BOOST_TEST(test::contains(test::error_of([&] { predict_published(table); }),
                              "no figure of usp for full, forward, on 8 GPUs"));
}

// By hand. Not fitted to, causal: published 100, 104 and 200; predicted 110, 100 and 180, off by 0.1, 4/104 and 0.1.
// Of three pairs one differs by 4 %, which is no pair, and both others are right. Packed: published 50 and 100,
// predicted 75 and 50, off by 0.5 and 0.5, the pair wrong, which is the only one that the copied figures have right.
BOOST_AUTO_TEST_CASE(scores_are_of_what_was_not_fitted_to_and_of_pairs_that_differ) {
    PublishedTable table;
    table.fitted_gpus = 8;
    table.figures = {figure("causal", "a", 100, 55, 2, 100),      figure("causal", "b", 104, 50, 2, 104),
                     figure("causal", "c", 200, 90, 2, 100),      figure("causal", "d", 7, 700, 2, 7, true),
                     figure("causal", "e", NAN, 700, 2, 7),  // not known yet
                     figure("varlen_causal", "a", 50, 25, 3, 50), figure("varlen_causal", "b", 100, 50, 1, 80)};
    const auto scaled = score_published(table, [](const auto&one) { return one.predicted(); }),
               unscaled = score_published(table, [](const auto&one) { return one.model; }),
               copied = score_published(table, [](const auto&one) { return one.copied; });
    BOOST_TEST(scaled.errors.at("causal, full").size() == 3u);
    BOOST_TEST(score(scaled.errors.at("causal, full")).mean == (0.1 + 4 / 104. + 0.1) / 3,
               boost::test_tools::tolerance(1e-12));
    BOOST_TEST(score(scaled.errors.at("packed")).mean == 0.5, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(scaled.pairs == 3);
    BOOST_TEST(scaled.right == 2);
    BOOST_TEST(unscaled.right == 3);
    BOOST_TEST(score(copied.errors.at("causal, full")).mean == 0.5 / 3, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(score(copied.errors.at("packed")).mean == 0.1, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(copied.right == 1);  // c is copied as no better than a and b
}

BOOST_AUTO_TEST_CASE(document_zigzag_gives_each_group_a_front_and_a_back_chunk_of_every_document) {
    // Documents of 8 and 4 tokens over two groups: chunks of 2 and of 1; group 0 has the first and last of each.
    const auto one = document_zigzag({8, 4}, 2, 1);
    BOOST_TEST(one.positions(0) == (Documents{0, 1, 6, 7, 8, 11}), boost::test_tools::per_element());
    BOOST_TEST(one.positions(1) == (Documents{2, 3, 4, 5, 9, 10}), boost::test_tools::per_element());
    // Groups of two ranks divide the same tokens in order.
    const auto two = document_zigzag({8, 4}, 4, 2);
    BOOST_TEST(two.positions(0) == (Documents{0, 1, 6}), boost::test_tools::per_element());
    BOOST_TEST(two.positions(1) == (Documents{7, 8, 11}), boost::test_tools::per_element());
    BOOST_TEST(two.positions(3) == (Documents{5, 9, 10}), boost::test_tools::per_element());
    BOOST_CHECK_THROW(document_zigzag({8}, 4, 3), Error);
    // Lengths that chunks do not divide: the layout itself checks that each token is owned once.
    BOOST_TEST(document_zigzag({7, 1, 30, 5}, 4, 2).tokens() == 43);
}

BOOST_AUTO_TEST_CASE(documents_go_to_as_few_ranks_as_hold_them_and_to_the_least_busy) {
    // Ranks of 4 tokens. 13 tokens need all four ranks; 6 need two, the first pair; 3 and 2 one each, the least busy.
    const auto layout = document_groups({3, 13, 6, 2}, 4, 4);
    const auto owner = [&](std::int64_t position) { return layout.owner_of(position).rank; };
    BOOST_TEST(owner(0) == 2);
    BOOST_TEST(owner(2) == 2);
    for (int token = 16; token < 22; ++token) BOOST_TEST(owner(token) < 2);
    BOOST_TEST(owner(22) == 3);
    BOOST_TEST(owner(23) == 3);
}

// Targets, a fifth above what was reached when they were set. Those of 2k tokens a GPU are hosts' times of programs in
// Python, of different days.
struct PublishedBound {
    const char* table;
    std::size_t figures;
    double mean, largest;
    friend std::ostream& operator<<(std::ostream& stream, const PublishedBound& bound) { return stream << bound.table; }
};
const PublishedBound published_bounds[] = {
    {"ring_flash_attention_8xh800", 6, 0.069, 0.114},
    {"peers_4xh200", 20, 0.035, 0.093},
    {"peers_8xh200", 24, 0.033, 0.120},
};

BOOST_DATA_TEST_CASE(published_rings_are_predicted_as_well_as_ever, boost::unit_test::data::make(published_bounds),
                     bound) {
    auto table = load_published(bound.table);
    predict_published(table);
    std::vector<double> errors;
    for (const auto& figure : table.figures)
        if (!figure.fitted && figure.tokens_per_gpu >= 8192) errors.push_back(figure.error(figure.predicted()));
    BOOST_TEST(errors.size() == bound.figures);
    BOOST_TEST(score(errors).mean < bound.mean);
    BOOST_TEST(score(errors).most < bound.largest);
}

// Rates of FlashAttention-3 on one H100, as read off MagiAttention's charts: 64:8 heads, D 128. The prices of the
// machine file are fitted to them within 4.4 %, and the charts were read within 1 %.
BOOST_AUTO_TEST_CASE(h100_runs_attention_at_the_published_rates_of_its_kernel) {
    const auto machine = sim::load_machine(RINGLAB_SOURCE_DIR "/experiments/machines/h100_cluster.toml");
    for (const auto& [mask, tokens, forward, backward] : {std::tuple{"causal", 8192, 655.6, 517.3},  // TFLOP/s
                                                          {"causal", 32768, 678.1, 584.0},
                                                          {"full", 8192, 671.4, 554.0},
                                                          {"full", 32768, 699.7, 599.4}}) {
        const auto plan = make_plan(Case{"", mask, "contiguous", "ring", "", 1, tokens},
                                    problem_from(with_shape("64:8/128/bf16", {})));
        for (const auto& [pass, published] : {std::pair{Pass::forward, forward}, std::pair{Pass::backward, backward}}) {
            const auto& schedule = *plan.schedule(pass);
            const auto seconds = layouts::to_seconds(sim::simulate(schedule, machine).makespan);
            BOOST_TEST(std::abs(pass_flop(schedule) / seconds / 1e12 / published - 1) < 0.054,
                       mask << " " << tokens << " " << to_string(pass));
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
