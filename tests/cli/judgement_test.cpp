// How results are judged, and how that ends.

#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <sstream>

namespace ringlab::cli::test {

BOOST_AUTO_TEST_SUITE(cli_judgement)

BOOST_AUTO_TEST_CASE(a_record_says_how_much_of_each_run_was_judged) {
    const auto little = words_of(
        "--tokens 64 --ranks 2 --masks causal full --layouts zigzag --input normal --heads 4:2 --head-dim 8 -o r.h5");
    for (const auto& program : {compare_layouts, gradient_equivalence, bf16_error})
        for (const auto& [limit, extent] : {std::pair{"64", "whole"}, {"63", "sampled"}}) {
            const Folder folder;
            const auto ending = run(folder, program, little + Words{"--judge-limit", limit});
            BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
            for (const auto& text :
                 experiments::hdf5::File::open(folder / "r.h5").dataset("runs/judged_extent").texts())
                BOOST_TEST(text == extent, program << " --judge-limit " << limit);
        }
}

// By processor time, in which starting up is less than two runs.
BOOST_DATA_TEST_CASE(repeats_are_executed_and_judged, boost::unit_test::data::make({gradient_equivalence, bf16_error}),
                     program) {
    const Folder folder;
    const auto seconds_of = [&](const std::string& repeats) {
        const auto ending =
            run(folder, program, {"--layouts", "zigzag", "--masks", "causal", "--schedules", "ring", "--ranks",    "2",
                                  "--tokens",  "256",    "--input", "normal", "--heads",     "4:2",  "--head-dim", "64",
                                  "--repeats", repeats,  "-o",      "r.h5",   "--overwrite"});
        BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
        const auto repeated = experiments::hdf5::File::open(folder / "r.h5").dataset("runs/repeats").integers();
        BOOST_TEST(repeated.front() == std::stoi(repeats));
        return ending.processor_seconds;
    };
    BOOST_TEST(seconds_of("80") > 3 * seconds_of("1"));
}

BOOST_AUTO_TEST_CASE(one_rank_on_an_ideal_machine_has_no_infinite_or_undefined_figures) {
    const Folder folder;
    for (const auto* machine : {"ideal", "h200_cluster"})
        for (const auto* model : {"tiles", "rate"}) {
            const auto ending = run(folder, predict,
                                    {"--ranks", "1", "--tokens-per-rank", "64", "--machines", machine,
                                     "--compute-model", model, "-o", "r.h5", "--overwrite"});
            BOOST_TEST(ending.status == 0, ending.err);
            std::istringstream table(ending.out);
            for (std::string word; table >> word;) {
                BOOST_TEST(word.find("inf") == word.npos, ending.out);
                BOOST_TEST(word.find("nan") == word.npos, ending.out);
            }
        }
}

BOOST_DATA_TEST_CASE(results_that_overflow_are_shown_and_are_a_failure,
                     boost::unit_test::data::make({compare_layouts, gradient_equivalence, bf16_error}), program) {
    const Folder folder;
    const auto ending =
        run(folder, program, small + words_of("--input normal --scale 1e300 --arithmetic fp32 -o r.h5"));
    BOOST_TEST(ending.status == 2, ending.err);
    BOOST_TEST((contains(ending.out, "inf") || contains(ending.out, "nan")), ending.out);
}

BOOST_DATA_TEST_CASE(where_nobody_sees_anything_nothing_takes_time_and_nothing_is_off,
                     boost::unit_test::data::make({compare_layouts, gradient_equivalence, bf16_error, predict}),
                     program) {
    const Folder folder;
    const auto blind =
        words_of("--masks padded-segments:64/0 --schedules ring --layouts zigzag --ranks 2 --tokens 64 -o r.h5");
    const auto ending = run(folder, program, blind + (program == predict ? Words{} : Words{"--input", "normal"}));
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(!contains(ending.out.substr(0, ending.out.find("\n\n")), "nan"), ending.out);
}

BOOST_AUTO_TEST_CASE(a_tolerance_that_overflows_lets_nothing_pass_and_is_shown) {
    const Folder folder;
    const auto ending =
        run(folder, gradient_equivalence, small + words_of("--input normal --scale 1e100 --arithmetic fp64 -o r.h5"));
    BOOST_TEST(ending.status == 2, ending.err);
    BOOST_TEST(contains(ending.out, " nan %"), ending.out);
}

BOOST_AUTO_TEST_CASE(every_policy_passes_by_its_own_tolerance) {
    const Folder folder;
    const auto ending = run(
        folder, gradient_equivalence,
        small + words_of("--arithmetic bf16 --policies carry gradients partials running --input normal real -o r.h5"));
    BOOST_TEST(ending.status == 0, ending.out);
    BOOST_TEST(contains(ending.out, "all pass"), ending.out);
    std::map<std::string, double> allowed;  // by run: the largest error of o
    for (const auto& [run, bounds] : runs_of(folder / "r.h5", "judged/tolerance_relative_rms"))
        allowed[run] = bounds[0];
    BOOST_TEST(allowed.size() == 8u);
    for (const auto* input : {"normal", "real"}) {
        const auto of = [&](const std::string& policy) {
            return allowed.at("causal zigzag P=4 S=64 ring " + policy + " " + input);
        };
        BOOST_TEST(of("carry") < of("partials"));
        BOOST_TEST(of("partials") < of("running"));
    }
}

BOOST_AUTO_TEST_CASE(a_tolerance_that_leaves_no_digit_is_said_to) {
    const Folder folder;
    const auto with_scale = [&](const std::string& scale) {
        return run(
            folder, gradient_equivalence,
            small + Words{"--input", "normal", "--arithmetic", "fp32", "--overwrite", "-o", "r.h5", "--scale", scale});
    };
    BOOST_TEST(contains(with_scale("1e6").out, "no digit is left"));
    BOOST_TEST(!contains(with_scale("0.1").out, "no digit is left"));
}

BOOST_AUTO_TEST_CASE(gradients_that_are_zero_in_exact_arithmetic_have_errors_that_are_numbers) {
    for (const auto* arithmetic : {"fp64", "fp32", "bf16", "fp16"}) {
        const Folder folder;
        // Rows that see themselves alone, by either mask.
        const auto ending =
            run(folder, gradient_equivalence,
                {"--masks", "window:0,0", "causal+documents:1x64", "--layouts", "zigzag", "--schedules", "ring",
                 "--ranks", "2", "--tokens", "64", "--input", "normal", "--arithmetic", arithmetic, "-o", "r.h5"});
        BOOST_TEST(ending.status == 0, ending.out);
        BOOST_TEST(!contains(ending.out, "inf"), ending.out);
    }
}

BOOST_AUTO_TEST_CASE(a_tolerance_that_is_exceeded_shows_in_the_exit_status) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence, small + Words{"--tolerance", "1e-30", "-o", "r.h5"});
    BOOST_TEST(ending.status == 2);
    BOOST_TEST(contains(ending.out, "EXCEEDED"), ending.out);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
