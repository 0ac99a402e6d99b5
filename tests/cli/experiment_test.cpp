#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <fmt/format.h>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <thread>

namespace ringlab::cli::test {

BOOST_AUTO_TEST_SUITE(cli_experiments)

BOOST_DATA_TEST_CASE(help_says_the_purpose_and_an_example,
                     boost::unit_test::data::make({compare_layouts, decode, gradient_equivalence, bf16_error,
                                                   model_stack, packings, list_positions, predict, calibrate,
                                                   throughput, validate, advise, longest_context, layer_gradients,
                                                   faults}),
                     program) {
    const Folder folder;
    const auto name = fs::path(program).filename().string();
    const auto ending = run(folder, program, {"--help"});
    BOOST_TEST(ending.status == 0);
    BOOST_TEST(ending.err == "");
    BOOST_TEST(ending.out.starts_with(name + "\n\n"));
    const auto first_option = std::min(ending.out.find("--masks"), ending.out.find("--ranks"));
    BOOST_TEST(first_option > name.size() + 100, "no purpose before the options");
    BOOST_TEST(contains(ending.out, "For instance:\n  " + name + " --"), ending.out);
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());

    // Every option says its default, or what is done without it, in brackets at its end.
    std::istringstream lines(ending.out.substr(ending.out.find("What is computed")));
    std::string option, said;
    const auto check = [&] {
        if (!option.empty()) BOOST_TEST(said.ends_with("]"), name << " " << option << " says " << said);
        option.clear();
    };
    for (std::string line; std::getline(lines, line) && line != "For instance:";) {
        BOOST_TEST(line.size() <= 120u, line);
        if (line.starts_with("  -")) check(), option = line.substr(0, line.find_first_of(" \n", 6));
        if (line.empty()) check();
        said = line;
    }
    const auto machine_file = contains(ending.out, "machine file (TOML");
    BOOST_TEST(machine_file == (program == calibrate), ending.out);

    const auto version = run(folder, program, {"--version"});
    BOOST_TEST(version.status == 0);
    BOOST_TEST(version.out.starts_with(name + " of Ringlab 0."), version.out);

    const auto list = run(folder, program, {"--list"});
    BOOST_TEST(list.status == 0);
    for (const auto* known : {"zigzag", "block-causal", "all-gather", "h200_cluster", "llama-3.1-70b"})
        BOOST_TEST(contains(list.out, known), list.out);
}

BOOST_AUTO_TEST_CASE(a_record_says_how_much_of_each_run_was_judged) {
    const Words little{"--tokens", "64",        "--ranks", "2",  "--masks", "causal",
                       "full",     "--layouts", "zigzag",  "-o", "r.h5"};
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

BOOST_AUTO_TEST_CASE(a_config_file_gives_what_the_command_line_leaves_open) {
    const Folder folder;
    write_file(folder / "sweep.cfg",
               "# a sweep\ntokens = 128\nranks = 2\nlayouts = zigzag striped:4\nmasks = causal\n"
               "algorithms = ring\npad = true\n");
    const auto ending = run(folder, gradient_equivalence, {"--config", "sweep.cfg", "--tokens", "62", "-o", "r.h5"});
    BOOST_TEST(ending.status == 0, ending.err);
    std::set<std::string> names;
    for (const auto& [name, errors] : runs_of(folder / "r.h5", "judged/relative_rms")) names.insert(name);
    BOOST_TEST(
        names == (std::set<std::string>{"causal zigzag P=2 S=62 ring real", "causal striped:4 P=2 S=62 ring real"}),
        boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_command_line_comes_before_config_files_and_presets) {
    const Folder folder;
    write_file(folder / "sweep.cfg", "tokens-per-rank = 1Ki\nlayouts = zigzag\nheads = 16:2\n");
    const auto ending = run(folder, predict,
                            {"--config", "sweep.cfg", "--preset", "llama-3.1-70b", "--layouts", "contiguous", "--ranks",
                             "2", "4", "--machines", "ideal", "-o", "r.h5"});
    BOOST_TEST(ending.status == 0, ending.err);
    const auto file = experiments::hdf5::File::open(folder / "r.h5");
    BOOST_TEST(file.dataset("run").texts() ==
               (std::vector<std::string>{"causal contiguous P=2 S=2048 ring", "causal contiguous P=4 S=4096 ring"}));
    BOOST_TEST(file.dataset("runs/query_heads").integers() == (std::vector<std::int64_t>{16, 16}));
    const auto configuration = file.text("configuration");
    for (const auto* line : {"layouts = contiguous\n", "ranks = 2 4\n", "heads = 16:2\n", "batch = 1\n",
                             "compute-model = tiles\n", "masks = causal\n", "# scale: "})
        BOOST_TEST(contains(configuration, line), configuration);
}

BOOST_AUTO_TEST_CASE(sizes_may_be_written_as_people_write_them) {
    const Folder folder;
    const auto ending = run(folder, predict,
                            {"--tokens", "4k", "8Ki", "16,000", "--ranks", "4", "--layouts", "zigzag", "--masks",
                             "window:1k,0", "--machines", "ideal", "-o", "r.h5"});
    BOOST_TEST(ending.status == 0, ending.err);
    std::set<std::string> names;
    const auto file = experiments::hdf5::File::open(folder / "r.h5");
    for (const auto& name : file.dataset("run").texts()) names.insert(name);
    BOOST_TEST(
        names == (std::set<std::string>{"window:1k,0 zigzag P=4 S=4000 ring", "window:1k,0 zigzag P=4 S=8192 ring",
                                        "window:1k,0 zigzag P=4 S=16000 ring"}),
        boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(positions_of_a_rank_are_listed_in_its_own_order) {
    const Folder folder;
    const auto ending = run(folder, list_positions,
                            {"--layouts", "zigzag", "--tokens", "16", "--ranks", "2", "--masks",
                             "causal+documents:6,10", "--rotary", "10000", "--rotary-positions", "documents"});
    BOOST_TEST(ending.status == 0);
    BOOST_TEST(ending.err == "");
    std::string expected = "rank,index,token,position\n";
    const std::vector<std::vector<int>> tokens{{0, 1, 2, 3, 12, 13, 14, 15}, {4, 5, 6, 7, 8, 9, 10, 11}};
    for (std::size_t rank = 0; rank < 2; ++rank)
        for (std::size_t i = 0; i < 8; ++i)
            expected += fmt::format("{},{},{},{}\n", rank, i, tokens[rank][i],
                                    tokens[rank][i] < 6 ? tokens[rank][i] : tokens[rank][i] - 6);
    BOOST_TEST(ending.out == expected);
    const auto one = run(folder, list_positions, {"--tokens", "16", "--ranks", "2", "--rank", "1"});
    BOOST_TEST(one.out.starts_with("rank,index,token,position\n1,0,4,4\n"), one.out);
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(packings_are_the_same_for_the_same_seed_and_balanced_shares_them_best) {
    const Folder folder;
    write_file(folder / "lengths.txt", "10 300 40 77\n5 900\n");
    const Words arguments{"--lengths", "lengths.txt", "--packings", "6",          "--measured-packings",
                          "2",         "--tokens",    "1024",       "--ranks",    "4",
                          "--layouts", "zigzag",      "balanced",   "--head-dim", "8"};
    const auto balance_of = [&](const std::string& record, const Words& more) {
        const auto ending = run(folder, packings, arguments + more + Words{"-o", record});
        BOOST_TEST_REQUIRE(ending.status == 0, ending.err);
        return runs_of(folder / record, "work/packing_balance");
    };
    const auto first = balance_of("a.h5", {}), again = balance_of("b.h5", {"--threads", "1"});
    const auto other = balance_of("c.h5", {"--seed", "2"});
    BOOST_TEST((first == again));
    BOOST_TEST((first != other));
    const auto zigzag =
        first.begin()->first.find("zigzag") != std::string::npos ? first.begin() : std::next(first.begin());
    const auto balanced = zigzag == first.begin() ? std::next(first.begin()) : first.begin();
    BOOST_TEST_REQUIRE(zigzag->second.size() == 6u);
    for (std::size_t i = 0; i < 6; ++i) BOOST_TEST(balanced->second[i] <= zigzag->second[i]);
    BOOST_TEST(runs_of(folder / "a.h5", "measured/packing_balance").begin()->second.size() ==
               4u);  // both passes of two
}

BOOST_AUTO_TEST_CASE(a_latent_travels_agrees_with_the_reference_and_costs_less_traffic) {
    const Folder folder;
    const Words heads{"--heads", "4", "--head-dim", "24", "--value-dim", "16", "--latent", "32+8"};
    for (const std::string arithmetic : {"fp64", "bf16"}) {
        const auto ending = run(folder, gradient_equivalence,
                                heads + Words{"--tokens",  "96",      "--ranks",         "1",       "4",
                                              "--layouts", "zigzag",  "--masks",         "causal",  "--algorithms",
                                              "ring",      "ulysses", "expanded:ring",   "--input", "normal",
                                              "--rotary",  "100",     "--rotary-first",  "16",      "--arithmetic",
                                              arithmetic,  "-o",      arithmetic + ".h5"});
        BOOST_TEST(ending.status == 0, ending.out + ending.err);
    }
    const auto ending = run(folder, predict,
                            heads + Words{"--tokens", "4096", "--ranks", "8", "--algorithms", "ring", "expanded:ring",
                                          "--layouts", "zigzag", "--machines", "h200_nvswitch_nccl", "-o", "p.h5"});
    BOOST_TEST_REQUIRE(ending.status == 0, ending.err);
    const auto record = experiments::hdf5::File::open((folder / "p.h5").string());
    BOOST_TEST(record.dataset("runs/latent").texts().at(0) == "32+8");
    const auto bytes = record.dataset("runs/bytes_travelling_forward").doubles();
    BOOST_TEST(bytes.at(0) * 4 * (24 + 16) == bytes.at(1) * (32 + 8));
    const auto refused = run(folder, gradient_equivalence, heads + Words{"--input", "real", "--ranks", "2"});
    BOOST_TEST(refused.status == 1);
    BOOST_TEST(refused.err.find("--input normal") != std::string::npos, refused.err);
}

BOOST_AUTO_TEST_CASE(what_rotates_is_predicted_and_measured_beside_the_passes) {
    const Folder folder;
    const auto ending = run(folder, compare_layouts,
                            small + Words{"--repeats", "1", "--rotary", "10000", "--machines", "ideal",
                                          "h200_nvswitch_nccl", "-o", "r.h5"});
    BOOST_TEST_REQUIRE(ending.status == 0, ending.err);
    const auto record = experiments::hdf5::File::open((folder / "r.h5").string());
    const auto number = [&](const std::string& column) { return record.dataset("runs/" + column).doubles().at(0); };
    for (const std::string pass : {"forward", "backward"}) {
        BOOST_TEST(number("rotation_measured_" + pass) >= 0);
        BOOST_TEST(number("rotation_predicted_" + pass + "_h200_nvswitch_nccl") > 1e-6);
        BOOST_TEST(number("rotation_predicted_" + pass + "_ideal") == 0);
    }
    BOOST_TEST(record.dataset("runs/rotary").texts().at(0) ==
               "base 10000, all dims from 0, half, scaling none, global positions");
}

BOOST_AUTO_TEST_CASE(a_stack_adds_up_its_layers) {
    const Folder folder;
    write_file(folder / "near.cfg", "heads = 4:2\nhead-dim = 16\nmasks = window:63,0\nsinks = normal\n");
    write_file(folder / "far.cfg", "heads = 8:2\nhead-dim = 16\nsoft-cap = 20\n");
    write_file(folder / "model.stack", "5 layers: 2x near.cfg far.cfg\n");
    const auto ending =
        run(folder, model_stack,
            {"--stack", "model.stack", "--tokens", "1024", "--scale-down", "4", "--ranks", "2", "--layouts", "zigzag",
             "--machines", "ideal", "2cpus_calibrated", "--repeats", "1", "-o", "r.h5"});
    BOOST_TEST_REQUIRE(ending.status == 0, ending.out << ending.err);
    const auto number = [&](const std::string& name, const std::string& column) {
        const auto record = experiments::hdf5::File::open((folder / "r.h5").string());
        const auto names = record.dataset("run").texts();
        const auto at = std::find(names.begin(), names.end(), name + " zigzag") - names.begin();
        return record.dataset("runs/" + column).doubles().at(static_cast<std::size_t>(at));
    };
    for (const std::string column :
         {"seconds_predicted_forward_2cpus_calibrated", "scaled_compute_measured_backward"}) {
        auto of_stack = column;
        of_stack.insert(column.starts_with("scaled") ? 7 : 0, "stack_");
        // Layers: near, near, far, near, near.
        BOOST_TEST(number("stack", of_stack) == 4 * number("near.cfg", column) + number("far.cfg", column),
                   boost::test_tools::tolerance(1e-12));
    }
    BOOST_TEST(number("near.cfg", "share_of_tolerance") < 1);
    BOOST_TEST(number("far.cfg", "share_of_tolerance") < 1);
    BOOST_TEST(number("near.cfg", "share_of_tolerance") > 0);
}

BOOST_AUTO_TEST_CASE(dropout_is_judged_recorded_and_predicted) {
    const Folder folder;
    const Words dropped{"--dropout", "0.25", "--dropout-seed", "9"};
    const Words sinks{"--sinks=1.5,-2,4,0"};
    const Words case_words{"--tokens",
                           "200",
                           "--ranks",
                           "4",
                           "--layouts",
                           "contiguous",
                           "zigzag",
                           "striped",
                           "--masks",
                           "causal",
                           "full+valid:0-70,90-190",
                           "--algorithms",
                           "ring",
                           "pull",
                           "pass-q",
                           "merge",
                           "--pad",
                           "-o",
                           "g.h5"};
    const auto judged = run(folder, gradient_equivalence, case_words + dropped + sinks);
    BOOST_TEST(judged.status == 0, judged.out << judged.err);
    const auto of = experiments::hdf5::File::open((folder / "g.h5").string());
    for (const auto& text : of.dataset("runs/dropout").texts()) BOOST_TEST(text == "0.25, seed 9");
    const auto seconds = [&](const std::string& file, const Words& more) {
        const auto ending = run(folder, predict,
                                Words{"--tokens", "4096", "--ranks", "4", "--layouts", "zigzag", "--masks", "causal",
                                      "--machines", "2cpus_calibrated", "-o", file} +
                                    more);
        BOOST_TEST_REQUIRE(ending.status == 0, ending.err);
        return experiments::hdf5::File::open((folder / file).string())
            .dataset("runs/seconds_predicted_forward_2cpus_calibrated")
            .doubles()
            .at(0);
    };
    BOOST_TEST(seconds("with.h5", dropped) > 1.2 * seconds("without.h5", {}));
}

BOOST_DATA_TEST_CASE(a_preset_works_at_the_first_try,
                     boost::unit_test::data::make({compare_layouts, gradient_equivalence, bf16_error, predict,
                                                   calibrate}),
                     program) {
    const Folder folder;
    write_file(folder / "small.cfg", "heads = 4:2\nhead-dim = 16\n");
    const auto ending = run(
        folder, program,
        {"--preset", "small.cfg", program == predict ? "--batch" : "--arithmetic", program == predict ? "1" : "fp32"},
        300);
    BOOST_TEST(ending.status == 0, ending.err);
    if (program != predict && program != calibrate) BOOST_TEST(contains(ending.err, "[note] "), ending.err);
}

BOOST_AUTO_TEST_CASE(an_input_file_gives_its_own_number_of_tokens_unless_told_otherwise) {
    const Folder folder;
    // A file of 96 tokens with heads of its own.
    const Words fast{"--layouts", "zigzag", "--masks", "causal", "--algorithms", "ring", "--ranks", "4"};
    BOOST_REQUIRE(run(folder, gradient_equivalence,
                      fast + Words{"--tokens", "96", "--input", "normal", "--head-dim", "8", "--heads", "6:3",
                                   "--save-tensors", "t", "-o", "made.h5"})
                      .status == 0);
    fs::rename(fs::directory_iterator(folder / "t")->path(), folder / "mine.h5");
    const auto names = [&](const std::string& program, const Words& more, const std::string& record) {
        const auto ending = run(folder, program, fast + Words{"--input", "mine.h5", "-o", record} + more);
        BOOST_TEST(ending.status == 0, ending.err);
        const auto cut = contains(ending.err, "of the 96 tokens of input mine.h5 the first 64 are taken");
        BOOST_TEST(cut == !more.empty(), ending.err);
        const auto file = experiments::hdf5::File::open(folder / record);
        return file.dataset("run").texts();
    };
    for (const auto& program : {gradient_equivalence, bf16_error, compare_layouts}) {
        const auto record = fs::path(program).filename().string();
        for (const auto& name : names(program, {}, record + "-whole.h5")) BOOST_TEST(contains(name, "S=96 "), name);
        for (const auto& name : names(program, {"--tokens", "64"}, record + "-cut.h5"))
            BOOST_TEST(contains(name, "S=64 "), name);
    }
}

BOOST_AUTO_TEST_CASE(the_same_command_twice_keeps_what_the_first_one_left) {
    const Folder folder;
    const auto first = run(folder, gradient_equivalence, small);
    BOOST_REQUIRE(first.status == 0);
    const auto before = contents_of(folder / "gradient_equivalence.h5");
    const auto second = run(folder, gradient_equivalence, small);
    BOOST_TEST(second.status == 0, second.err);
    BOOST_TEST(contains(second.err, "'gradient_equivalence.h5' exists"), second.err);
    BOOST_TEST(contains(second.out, "Record: gradient_equivalence-2.h5"), second.out);
    BOOST_TEST((contents_of(folder / "gradient_equivalence.h5") == before));
    BOOST_TEST(run(folder, gradient_equivalence, small + Words{"--resume"}).status == 0);
    BOOST_TEST(folder.left() == (Words{"gradient_equivalence-2.h5", "gradient_equivalence.h5"}),
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_printed_is_a_failure) {
    const Folder folder;
    for (const auto& words : {small, Words{"--help"}, Words{"--list"}}) {
        std::string command = "exec '" + gradient_equivalence + "'";
        for (const auto& word : words) command += " '" + word + "'";
        const auto ending = run(folder, "sh", {"-c", command + " > /dev/full"});
        BOOST_TEST(ending.status == 1);
        BOOST_TEST(lines_beside_progress(ending.err).size() == 1u, ending.err);
        BOOST_TEST(contains(ending.err, "gradient_equivalence: cannot write to standard output"), ending.err);
    }
}

// OpenBLAS would ask for room for ever, as it does before main where there are some 400 MB. The sanitizers need more
// than any limit.
#ifndef __SANITIZE_ADDRESS__
BOOST_AUTO_TEST_CASE(too_small_an_address_space_is_refused_before_anything_runs) {
    const Folder folder;
    std::string command = "ulimit -v 600000; exec '" + gradient_equivalence + "'";
    for (const auto& word : small) command += " '" + word + "'";
    const auto ending = run(folder, "sh", {"-c", command});
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(contains(ending.err, "ulimit -v"), ending.err);
}
#endif

BOOST_AUTO_TEST_CASE(one_rank_on_an_ideal_machine_has_no_infinite_or_undefined_figures) {
    const Folder folder;
    for (const auto* machine : {"ideal", "h200_cluster"})
        for (const auto* model : {"tiles", "rate"}) {
            const auto ending = run(folder, predict,
                                    {"--ranks", "1", "--tokens-per-rank", "64", "--machines", machine,
                                     "--compute-model", model, "-o", "r.h5", "--overwrite"});
            BOOST_TEST(ending.status == 0, ending.err);
            std::istringstream table(ending.out.substr(0, ending.out.find("Exposed:")));
            for (std::string word; table >> word;) {
                BOOST_TEST(word.find("inf") == word.npos, ending.out);
                BOOST_TEST(word.find("nan") == word.npos, ending.out);
            }
        }
}

BOOST_DATA_TEST_CASE(results_that_overflow_are_shown_and_are_a_failure,
                     boost::unit_test::data::make({compare_layouts, gradient_equivalence, bf16_error}), program) {
    const Folder folder;
    const auto ending = run(
        folder, program, small + Words{"--input", "normal", "--scale", "1e300", "--arithmetic", "fp32", "-o", "r.h5"});
    BOOST_TEST(ending.status == 2, ending.err);
    BOOST_TEST((contains(ending.out, "inf") || contains(ending.out, "nan")), ending.out);
}

BOOST_AUTO_TEST_CASE(a_tolerance_that_overflows_lets_nothing_pass_and_is_shown) {
    const Folder folder;
    const auto ending =
        run(folder, gradient_equivalence,
            small + Words{"--input", "normal", "--scale", "1e100", "--arithmetic", "fp64", "-o", "r.h5"});
    BOOST_TEST(ending.status == 2, ending.err);
    BOOST_TEST(contains(ending.out, " nan %"), ending.out);
}

BOOST_AUTO_TEST_CASE(every_policy_passes_by_its_own_tolerance) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence,
                            small + Words{"--arithmetic", "bf16", "--policies", "carry", "gradients", "partials",
                                          "running", "--input", "normal", "real", "-o", "r.h5"});
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
                {"--masks", "window:0,0", "causal+documents:1x64", "--layouts", "zigzag", "--algorithms", "ring",
                 "--ranks", "2", "--tokens", "64", "--input", "normal", "--arithmetic", arithmetic, "-o", "r.h5"});
        BOOST_TEST(ending.status == 0, ending.out);
        BOOST_TEST(!contains(ending.out, "inf"), ending.out);
    }
}

BOOST_AUTO_TEST_CASE(masks_of_the_default_that_are_for_another_length_are_left_out_and_said_to_be) {
    const Folder folder;
    const Words fast{"--layouts", "zigzag", "--algorithms", "ring", "--ranks", "2", "--tokens", "96", "-o", "r.h5"};
    const auto ending = run(folder, gradient_equivalence, fast);
    BOOST_TEST(ending.status == 0, ending.err);
    for (const auto* mask : {"prefix:100", "block-causal:64x8"})
        BOOST_TEST(contains(ending.err, std::string("[note] mask ") + mask + " is left out"), ending.err);
    BOOST_TEST(runs_of(folder / "r.h5", "judged/relative_rms").size() == 4u);
    const auto asked = run(folder, gradient_equivalence, fast + Words{"--overwrite", "--masks", "block-causal:64x8"});
    BOOST_TEST(asked.status == 1);
    BOOST_TEST(contains(asked.err, "block-causal:64x8 sum to more than the 96 tokens"), asked.err);
}

BOOST_AUTO_TEST_CASE(few_query_rows_are_equal_too_and_named_in_the_record) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence,
                            {"--masks",
                             "causal+documents:30,34",
                             "padded-segments:20/16,12/0,32/30",
                             "--queries",
                             "0",
                             "1",
                             "5",
                             "--layouts",
                             "zigzag",
                             "--algorithms",
                             "ring",
                             "merge:tree",
                             "--ranks",
                             "4",
                             "--tokens",
                             "64",
                             "--input",
                             "normal",
                             "-o",
                             "r.h5"});
    BOOST_TEST(ending.status == 0, ending.out << ending.err);
    const auto rows = runs_of(folder / "r.h5", "judged/relative_rms");
    BOOST_TEST(rows.size() == 12u);
    BOOST_TEST(rows.contains("causal+documents:30,34 zigzag P=4 S=64 merge:tree Q=5 normal"));
}

BOOST_AUTO_TEST_CASE(decode_judges_every_step_and_says_so) {
    const Folder folder;
    const Words fast{"--tokens", "100",       "--sequences", "3",          "--steps",      "3",     "--ranks",
                     "4",        "--layouts", "contiguous",  "zigzag",     "--algorithms", "merge", "merge:tree",
                     "ring",     "--repeats", "1",           "--machines", "ideal",        "-o",    "r.h5"};
    const auto ending = run(folder, decode, fast);
    BOOST_TEST(ending.status == 0, ending.out << ending.err);
    BOOST_TEST(contains(ending.out, "All pass."), ending.out);
    BOOST_TEST(runs_of(folder / "r.h5", "decode/relative_rms").size() == 6u);
    const auto strict = run(folder, decode, fast + Words{"--overwrite", "--tolerance", "1e-30"});
    BOOST_TEST(strict.status == 2);
    BOOST_TEST(contains(strict.out, "NOT ALL PASS."), strict.out);
}

BOOST_AUTO_TEST_CASE(a_tolerance_that_is_exceeded_shows_in_the_exit_status) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence, small + Words{"--tolerance", "1e-30", "-o", "r.h5"});
    BOOST_TEST(ending.status == 2);
    BOOST_TEST(contains(ending.out, "EXCEEDED"), ending.out);
}

// With fp32 carry a ring errs as one device does: o by about 2.3e-3 on Gaussian inputs; real inputs, with their sharper
// rows, stay within half and twice of it for o, and gradients, with dS rounded as well, below 1e-2.
BOOST_AUTO_TEST_CASE(compare_layouts_on_the_real_input_finds_zigzag_balanced_and_bf16_errors_in_their_band) {
    const Folder folder;
    const auto ending = run(folder, compare_layouts,
                            {"--masks", "causal", "--layouts", "contiguous", "zigzag", "--ranks", "8", "--tokens",
                             "1024", "--repeats", "1", "--machines", "ideal", "-o", "r.h5"});
    BOOST_REQUIRE(ending.status == 0);
    const auto file = experiments::hdf5::File::open(folder / "r.h5");
    const auto names = file.dataset("run").texts();
    const auto number = [&](const std::string& layout, const std::string& column) {
        const auto run = std::find(names.begin(), names.end(), "causal " + layout + " P=8 S=1024 ring real");
        BOOST_REQUIRE((run != names.end()));
        return file.dataset("runs/" + column).doubles().at(static_cast<std::size_t>(run - names.begin()));
    };
    // d + r f over the mean, c = 128 tokens a rank: (d + 7 f) / (d + 3.5 f), which is 2 - 1/P but for 1/c.
    const double d = 128.0 * 129 / 2, f = 128.0 * 128;
    BOOST_TEST(number("zigzag", "balance_cells") == 1.0, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(number("contiguous", "balance_cells") == (d + 7 * f) / (d + 3.5 * f),
               boost::test_tools::tolerance(1e-12));
    BOOST_TEST(std::abs(number("contiguous", "balance_cells") - (2 - 1.0 / 8)) < 1e-3);
    for (const auto* layout : {"zigzag", "contiguous"}) {
        for (const std::string pass : {"forward", "backward"}) {
            // Time is noisy; largest over mean is between 1 and the number of ranks whatever the noise.
            const auto balance = number(layout, "balance_measured_" + pass);
            BOOST_TEST(balance >= 1);
            BOOST_TEST(balance <= 8);
            // An error of prediction is what its definition says.
            const auto predicted = number(layout, "balance_predicted_" + pass + "_ideal");
            BOOST_TEST(number(layout, "prediction_error_balance_" + pass + "_ideal") == predicted / balance - 1,
                       boost::test_tools::tolerance(1e-12));
        }
        const auto errors = runs_of(folder / "r.h5", "judged/relative_rms")
                                .at(std::string("causal ") + layout + " P=8 S=1024 ring real");
        BOOST_REQUIRE(errors.size() == 7u);  // o, o unrounded, lse, dq, dk, dv, dsinks
        BOOST_TEST(errors[0] == number(layout, "error_rms_o"));
        BOOST_TEST((errors[0] > 1.2e-3 && errors[0] < 4.6e-3), "o " << errors[0]);
        BOOST_TEST(errors[1] < errors[0]);
        BOOST_TEST(errors[2] < 1e-4);
        for (std::size_t gradient = 3; gradient < 6; ++gradient)
            BOOST_TEST((errors[gradient] > 5e-4 && errors[gradient] < 1e-2), gradient << ": " << errors[gradient]);
    }
    for (const auto& name : file.group("runs").members()) {
        const auto column = file.group("runs").dataset(name);
        BOOST_TEST(column.shape() == std::vector<std::int64_t>{2}, name);
        BOOST_TEST(column.text("description").size() > 3u, name);
    }
    const auto machine = file.group("provenance/0").text("machine_ideal_text");
    BOOST_TEST(machine == contents_of(RINGLAB_SOURCE_DIR "/experiments/machines/ideal.toml"));
}

// What a user did not say is in the record all the same.
BOOST_AUTO_TEST_CASE(the_configuration_of_a_record_is_complete) {
    const Folder folder;
    BOOST_REQUIRE(run(folder, gradient_equivalence, small + Words{"-o", "r.h5"}).status == 0);
    const auto text = "\n" + experiments::hdf5::File::open(folder / "r.h5").text("configuration");
    for (const std::string line :
         {"experiment = gradient_equivalence", "input = real", "layouts = zigzag", "masks = causal", "ranks = 4",
          "tokens = 64", "arithmetic = fp64", "seed = 1", "repeats = 1", "backend = cpu", "mpi = false"})
        BOOST_TEST(contains(text, "\n" + line + "\n"), text);
    BOOST_TEST(!contains(text, "kernels"), text);  // of another backend
    // The same said in full is the same configuration.
    BOOST_TEST(run(folder, gradient_equivalence,
                   small + Words{"--input", "real", "--arithmetic", "fp64", "--resume", "-o", "r.h5"})
                   .status == 0);
}

BOOST_AUTO_TEST_CASE(predict_takes_seconds_for_1024_ranks) {
    const Folder folder;
    const auto ending = run(folder, predict,
                            {"--ranks", "1024", "--layouts", "zigzag", "--compute-model", "rate", "--machines",
                             "h200_cluster", "--tokens-per-rank", "512", "-o", "r.h5"},
                            120);
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(ending.seconds < 60);  // about 4 s on a busy core
    BOOST_TEST(contains(ending.out, "1024"), ending.out);
}

BOOST_AUTO_TEST_CASE(a_trace_is_json_of_the_ranks_and_runs_asked_for) {
    const Folder folder;
    const auto trace_of = [&](const Words& more) {
        const auto ending = run(folder, predict,
                                Words{"--ranks", "4", "--tokens-per-rank", "512", "--layouts", "zigzag", "--machines",
                                      "ideal", "--trace", "t.json", "-o", "r.h5", "--overwrite"} +
                                    more);
        BOOST_TEST(ending.status == 0, ending.err);
        return nlohmann::json::parse(contents_of(folder / "t.json"));
    };
    const auto events = [](const nlohmann::json& trace) {
        std::size_t complete = 0;
        for (const auto& event : trace.at("traceEvents"))
            if (event.at("ph") == "X" && event.at("cat") != "wait") {
                ++complete;
                BOOST_TEST(event.at("dur").get<double>() >= 0);
            }
        return complete;
    };
    const auto all = events(trace_of({})), some = events(trace_of({"--trace-ranks", "1-2"})),
               first_step = events(trace_of({"--trace-ranks", "1-2", "--trace-steps", "0-0"}));
    BOOST_TEST(first_step > 0u);
    BOOST_TEST(first_step < some);
    BOOST_TEST(some < all);
    BOOST_TEST(2 * some == all);  // the ranks of a zigzag ring all do the same
}

BOOST_AUTO_TEST_CASE(a_calibrated_machine_file_serves_prediction) {
    const Folder folder;
    const auto ending =
        run(folder, calibrate,
            {"--tokens", "128", "192", "256", "--repeats", "1", "--arithmetic", "fp32", "--output", "this_cpu.toml"});
    BOOST_REQUIRE(ending.status == 0);
    BOOST_TEST(run(folder, calibrate, {"--output", "this_cpu.toml"}).status == 1);
    const auto predicted =
        run(folder, predict,
            {"--machines", "./this_cpu.toml", "--tokens-per-rank", "512", "--head-dim", "128", "-o", "r.h5"});
    BOOST_TEST(predicted.status == 0, predicted.err);
    if (std::thread::hardware_concurrency() < 2) return;
    const auto scored = run(
        folder, validate,
        {"--backend", "cpu", "--machines", "./this_cpu.toml", "--tokens-per-rank", "128", "--heads", "4:2", "--masks",
         "causal", "--layouts", "contiguous", "zigzag", "--seconds", "0.001", "--warm-up", "0", "-o", "v.h5"});
    BOOST_REQUIRE(scored.status == 0);
    BOOST_TEST(contains(scored.out, "predicted balance"), scored.out);
    const auto record = experiments::hdf5::File::open(folder / "v.h5");
    for (const auto* pass : {"forward", "backward"}) {
        const auto column = [&](const std::string& name) { return record.dataset("runs/" + name).doubles(); };
        const auto measured = column(fmt::format("rate_{}_seconds", pass)),
                   predicted_seconds = column(fmt::format("seconds_predicted_{}_this_cpu", pass)),
                   error = column(fmt::format("error_{}_this_cpu", pass));
        BOOST_TEST_REQUIRE(measured.size() == 2u);
        for (std::size_t i = 0; i < 2; ++i)
            BOOST_TEST(std::abs(error[i] - (predicted_seconds[i] / measured[i] - 1)) < 1e-12);
    }
}

BOOST_AUTO_TEST_CASE(rings_of_a_record_are_predicted_again_and_not_run) {
    const Folder folder;
    const std::string measured = RINGLAB_SOURCE_DIR "/experiments/results/validate_2xh200.h5";
    const auto ending =
        run(folder, validate, {"--measured", measured, "--machines", "2xh200_calibrated", "ideal", "-o", "again.h5"});
    BOOST_REQUIRE(ending.status == 0);
    const auto before = experiments::hdf5::File::open(measured),
               now = experiments::hdf5::File::open(folder / "again.h5");
    BOOST_TEST(before.dataset("runs/name").texts() == now.dataset("runs/name").texts(),
               boost::test_tools::per_element());
    for (const std::string column :
         {"rate_forward_seconds", "rate_backward_seconds", "rate_both_spread", "period_backward", "extra_bytes"})
        BOOST_TEST(before.dataset("runs/" + column).doubles() == now.dataset("runs/" + column).doubles(),
                   boost::test_tools::per_element());
    // Another machine, where nothing but attention takes time.
    for (const auto error : now.dataset("runs/error_forward_ideal").doubles()) BOOST_TEST(error < 0);
    const auto ends = [](const auto& file) {  // of what was measured, all together
        const auto sources = file.dataset("source").texts();
        const auto place = std::find(sources.begin(), sources.end(), "measured") - sources.begin();
        const auto source = file.dataset("spans/source").integers();
        const auto end = file.dataset("spans/end").doubles();
        double sum = 0;
        for (std::size_t i = 0; i < end.size(); ++i) sum += source[i] == place ? end[i] : 0;
        return sum;
    };
    BOOST_TEST(ends(before) > 0);
    BOOST_TEST(std::abs(ends(now) / ends(before) - 1) < 1e-9);
}

BOOST_AUTO_TEST_CASE(advice_is_a_table_a_record_and_json_that_agree) {
    const Folder folder;
    const Words words{"--tokens", "16k",  "--ranks", "4",          "--machines", "h200_nvswitch_copy_engine",
                      "-o",       "a.h5", "--json",  "advice.json"};
    const auto ending = run(folder, advise, words);
    BOOST_REQUIRE(ending.status == 0);
    const auto json = nlohmann::json::parse(contents_of(folder / "advice.json"));
    const auto record = experiments::hdf5::File::open(folder / "a.h5");
    const auto places = record.dataset("runs/place").integers();
    const auto schedules = record.dataset("runs/algorithm").texts();
    const auto seconds = record.dataset("runs/seconds_predicted_backward").doubles();
    std::size_t ranked = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        if (places[i] == 0) continue;
        ++ranked;
        const auto& entry = json.at("ranked").at(static_cast<std::size_t>(places[i] - 1));
        BOOST_TEST(entry.at("schedule") == schedules[i]);
        BOOST_TEST(entry.at("backward_seconds").get<double>() == seconds[i]);
    }
    BOOST_TEST(ranked == json.at("ranked").size());
    BOOST_TEST(contains(ending.out, json.at("ranked").at(0).at("reason").get<std::string>()), ending.out);

    // What is there stays, unless it is said otherwise; and only what advise itself wrote is replaced.
    BOOST_TEST(run(folder, advise, words).status == 1);
    BOOST_TEST(run(folder, advise, words + Words{"--overwrite"}).status == 0);
    write_file(folder / "advice.json", "{\"mine\": 1}");
    BOOST_TEST(run(folder, advise, words + Words{"--overwrite"}).status == 1);
    BOOST_TEST(contents_of(folder / "advice.json") == "{\"mine\": 1}");
}

BOOST_AUTO_TEST_CASE(the_longest_context_of_less_memory_is_shorter) {
    const Folder folder;
    const auto tokens = [&](const std::string& gigabytes, const std::string& file) {
        const auto ending =
            run(folder, longest_context,
                {"--algorithms", "ring", "--keep", "kv", "--reserved", "0", "--device-memory", gigabytes, "-o", file});
        BOOST_REQUIRE(ending.status == 0);
        return experiments::hdf5::File::open(folder / file).dataset("runs/longest_tokens").doubles().front();
    };
    const auto less = tokens("10", "less.h5"), more = tokens("20", "more.h5");
    // Nearly all of it goes as tokens; work lists grow a little faster.
    BOOST_TEST(more > 1.9 * less);
    BOOST_TEST(more < 2.05 * less);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
