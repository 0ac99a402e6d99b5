// How an experiment is told what to do, and what it does with a terminal, a disk or memory that will not do.

#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace ringlab::cli::test {

BOOST_AUTO_TEST_SUITE(cli_options)

BOOST_DATA_TEST_CASE(help_says_the_purpose_and_an_example,
                     boost::unit_test::data::make({compare_layouts, decode, gradient_equivalence, bf16_error, predict,
                                                   calibrate, throughput, validate, advise, longest_context}),
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
}

BOOST_AUTO_TEST_CASE(the_version_is_printed) {
    const Folder folder;
    const auto version = run(folder, predict, {"--version"});
    BOOST_TEST(version.status == 0);
    BOOST_TEST(version.out.starts_with("predict of Ringlab 0."), version.out);
}

BOOST_AUTO_TEST_CASE(a_preset_gives_what_the_command_line_leaves_open) {
    const Folder folder;
    write_file(folder / "sweep.cfg",
               "# a sweep\ntokens-per-rank = 1Ki\nlayouts = zigzag striped:4\nheads = 16:2\nrotary = 100\n");
    const auto ending =
        run(folder, predict, words_of("--preset sweep.cfg --layouts contiguous --ranks 2 4 --machines ideal -o r.h5"));
    BOOST_TEST(ending.status == 0, ending.err);
    const auto file = experiments::hdf5::File::open(folder / "r.h5");
    BOOST_TEST(file.dataset("run").texts() ==
               (std::vector<std::string>{"causal contiguous P=2 S=2048 ring", "causal contiguous P=4 S=4096 ring"}));
    BOOST_TEST(file.dataset("runs/query_heads").integers() == (std::vector<std::int64_t>{16, 16}));
    const auto configuration = file.text("configuration");
    for (const auto* line : {"layouts = contiguous\n", "ranks = 2 4\n", "heads = 16:2\n", "batch = 1\n",
                             "compute-model = tiles\n", "masks = causal\n", "rotary = 100\n", "# scale: "})
        BOOST_TEST(contains(configuration, line), configuration);
    // Attention alone is not rotated.
    const auto quick =
        words_of("--tokens 16 --ranks 2 --layouts zigzag --schedules merge --repeats 1 --machines ideal -o d.h5");
    const auto noted = run(folder, decode, quick + Words{"--preset", "sweep.cfg"});
    BOOST_TEST(noted.status == 0, noted.err);
    BOOST_TEST(contains(noted.err, "without the preset's rotary"), noted.err);
}

BOOST_AUTO_TEST_CASE(sizes_may_be_written_as_people_write_them) {
    const Folder folder;
    const auto ending =
        run(folder, predict,
            words_of("--tokens 4k 8Ki 16,000 --ranks 4 --layouts zigzag --masks window:1k,0 --machines ideal -o r.h5"));
    BOOST_TEST(ending.status == 0, ending.err);
    std::set<std::string> names;
    const auto file = experiments::hdf5::File::open(folder / "r.h5");
    for (const auto& name : file.dataset("run").texts()) names.insert(name);
    BOOST_TEST(
        names == (std::set<std::string>{"window:1k,0 zigzag P=4 S=4000 ring", "window:1k,0 zigzag P=4 S=8192 ring",
                                        "window:1k,0 zigzag P=4 S=16000 ring"}),
        boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_a_preset_or_an_input_brings_is_taken_away_by_none) {
    const Folder folder;
    const auto predicted =
        run(folder, predict,
            words_of("--preset gemma-2-27b-local --soft-cap none --rotary none --tokens 256 --machines ideal -o p.h5"));
    BOOST_TEST(predicted.status == 0, predicted.err);
    const auto plain = experiments::hdf5::File::open(folder / "p.h5");
    BOOST_TEST(plain.dataset("runs/soft_cap").doubles().front() == 0);
    BOOST_TEST(plain.dataset("runs/rotary").texts().front() == "none");

    const Words tiny = small + Words{"--head-dim", "8"};
    BOOST_REQUIRE(
        run(folder, gradient_equivalence, tiny + words_of("--input normal --soft-cap 5 --save-tensors t -o capped.h5"))
            .status == 0);
    fs::rename(fs::directory_iterator(folder / "t")->path(), folder / "mine.h5");
    for (const auto& [cap, expected] : {std::pair<Words, double>{{}, 5}, {{"--soft-cap", "none"}, 0}}) {
        const auto ending =
            run(folder, gradient_equivalence, tiny + Words{"--input", "mine.h5", "-o", "r.h5", "--overwrite"} + cap);
        BOOST_TEST(ending.status == 0, ending.err);
        const auto record = experiments::hdf5::File::open(folder / "r.h5");
        BOOST_TEST(record.dataset("runs/soft_cap").doubles().front() == expected);
        BOOST_TEST(contains(record.text("configuration"), "soft-cap = none\n") == (expected == 0));
    }
}

BOOST_AUTO_TEST_CASE(the_list_says_of_every_name_what_it_stands_for) {
    const Folder folder;
    const auto list = run(folder, predict, {"--list"}).out;
    std::istringstream lines(list);
    std::string section, name;
    std::map<std::string, std::string> said;  // by section and name
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("  ")) section = line;
        if (!line.starts_with("  ")) continue;
        if (line[2] != ' ') name = line.substr(2, line.find(' ', 2) - 2), line = line.substr(2 + name.size());
        if (const auto text = line.find_first_not_of(' '); text != line.npos)
            said[section + "/" + name] += line.substr(text) + " ";
        else
            said[section + "/" + name];
    }
    for (const auto& [entry, text] : said) BOOST_TEST(text.size() > 10u, entry << " says '" << text << "'");
    BOOST_TEST(contains(said["Machines/h200_nvswitch_copy_engine"], "up to 8 ranks"), list);
    BOOST_TEST(contains(said["Machines/h200_nvswitch_copy_engine"], "assumed; not scored on measured rings"), list);
    BOOST_TEST(contains(said["Machines/4xh200_calibrated"], " measured rings "), list);
    BOOST_TEST(contains(said["Machines/4xh200_calibrated"], " % off on average"), list);
    BOOST_TEST(contains(said["Machines/8xh800"], "0 of its 49 figures are measured or fitted"), list);
    BOOST_TEST(contains(said["Machines/8xh800"], "not scored"), list);
    BOOST_TEST(contains(said["Presets/llama-3.1-8b"], "32 query heads share 8 key/value heads"), list);
}

BOOST_DATA_TEST_CASE(a_preset_works_at_the_first_try, boost::unit_test::data::make({compare_layouts, predict}),
                     program) {
    const Folder folder;
    write_file(folder / "small.cfg", "heads = 4:2\nhead-dim = 16\n");
    const auto ending = run(
        folder, program,
        {"--preset", "small.cfg", program == predict ? "--batch" : "--arithmetic", program == predict ? "1" : "fp32"},
        300);
    BOOST_TEST(ending.status == 0, ending.err);
    if (program != predict) BOOST_TEST(contains(ending.err, "[note] "), ending.err);
}

BOOST_AUTO_TEST_CASE(an_input_file_gives_its_own_number_of_tokens_unless_told_otherwise) {
    const Folder folder;
    // A file of 96 tokens with heads of its own.
    const auto fast = words_of("--layouts zigzag --masks causal --schedules ring --ranks 4");
    BOOST_REQUIRE(
        run(folder, gradient_equivalence,
            fast + words_of("--tokens 96 --input normal --head-dim 8 --heads 6:3 --save-tensors t -o made.h5"))
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

BOOST_AUTO_TEST_CASE(masks_of_the_default_that_are_for_another_length_are_left_out_and_said_to_be) {
    const Folder folder;
    const auto fast = words_of("--layouts zigzag --schedules ring --ranks 2 --tokens 96 -o r.h5");
    const auto ending = run(folder, gradient_equivalence, fast);
    BOOST_TEST(ending.status == 0, ending.err);
    for (const auto* mask : {"prefix:100", "block-causal:64x8"})
        BOOST_TEST(contains(ending.err, std::string("[note] mask ") + mask + " is left out"), ending.err);
    BOOST_TEST(runs_of(folder / "r.h5", "judged/relative_rms").size() == 4u);
    const auto asked = run(folder, gradient_equivalence, fast + Words{"--overwrite", "--masks", "block-causal:64x8"});
    BOOST_TEST(asked.status == 1);
    BOOST_TEST(contains(asked.err, "block-causal:64x8 sum to 512, the sequence has 96 tokens"), asked.err);
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
    BOOST_TEST(
        run(folder, gradient_equivalence, small + words_of("--input real --arithmetic fp64 --resume -o r.h5")).status ==
        0);
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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
