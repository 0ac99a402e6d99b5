// Experiments that predict.

#include "experiments/record/hdf5.hpp"
#include "process.hpp"

#include <fmt/format.h>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

namespace ringlab::cli::test {

BOOST_AUTO_TEST_SUITE(cli_prediction)

BOOST_AUTO_TEST_CASE(predict_takes_seconds_for_1024_ranks) {
    const Folder folder;
    const auto ending = run(
        folder, predict,
        words_of(
            "--ranks 1024 --layouts zigzag --compute-model rate --machines h200_cluster --tokens-per-rank 512 -o r.h5"),
        120);
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(ending.seconds < 60);  // about 4 s on a busy core
    BOOST_TEST(contains(ending.out, "1024"), ending.out);
}

BOOST_AUTO_TEST_CASE(the_machine_of_five_keys_in_the_documentation_is_predicted_and_its_derived_figures_are_recorded) {
    const Folder folder;
    const auto page = contents_of(RINGLAB_SOURCE_DIR "/docs/how-to/cluster.md");
    const auto begin = page.find("```toml\n") + 8;
    const auto machine = page.substr(begin, page.find("```", begin) - begin);
    write_file(folder / "mine.toml", machine);
    const auto words = words_of("--ranks 32 --tokens-per-rank 1k --layouts zigzag --machines mine.toml -o");
    const auto ending = run(folder, predict, words + Words{"r.h5"});
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    const auto line = page.substr(page.find("\nOn mine: ") + 1);
    BOOST_TEST(contains(ending.out, line.substr(0, line.find('\n') + 1)), ending.out);
    const auto record = experiments::hdf5::File::open(folder / "r.h5");
    const auto provenance = record.group("provenance/0");
    BOOST_TEST(provenance.text("machine_mine_text") == machine);
    BOOST_TEST(contains(provenance.text("machine_mine_derived"), "gpu.multiprocessors = 132: derived: as H200"));
    // A fifth key less.
    const auto without = machine.substr(0, machine.find("device_memory"));
    write_file(folder / "mine.toml", without);
    const auto refused = run(folder, predict, words + Words{"s.h5"});
    BOOST_TEST(refused.status == 1);
    BOOST_TEST(contains(refused.err, "mine.toml: key 'device_memory.gigabytes' is missing"), refused.err);
}

BOOST_AUTO_TEST_CASE(what_a_predicted_pass_goes_to_adds_up_in_the_table_and_in_the_record) {
    const Folder folder;
    const auto words = words_of(
        "--ranks 2 32 --tokens-per-rank 1k --layouts zigzag -o r.h5 --machines h200_cluster --schedules ring pull");
    const auto ending = run(folder, predict, words);
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    const auto record = experiments::hdf5::File::open(folder / "r.h5");
    const auto causes = record.dataset("cause").texts();
    BOOST_TEST(causes == (Words{"compute", "launches", "exposed transfer", "waiting for peers", "tail", "imbalance",
                                "attends", "begin and end", "issue", "links", "memory", "shared"}),
               boost::test_tools::per_element());
    const auto seconds = record.dataset("predicted/time_by_cause").doubles();  // (run, machine, pass, cause)
    const auto whole = record.dataset("predicted/makespan").doubles();
    const auto ranks = record.dataset("runs/ranks").integers();
    for (std::size_t i = 0; i < whole.size(); ++i) {
        const auto sum = [&](std::size_t first, std::size_t end) {
            const auto begin = seconds.begin() + static_cast<std::ptrdiff_t>(i * causes.size());
            return std::accumulate(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(end),
                                   0.0);
        };
        if (ranks.at(i / 2) != 2) {
            BOOST_TEST(std::isnan(sum(0, causes.size())));  // more ranks than it was asked of
            continue;
        }
        BOOST_TEST(std::abs(sum(0, 4) - whole[i]) < 1e-11);  // picoseconds
        BOOST_TEST(std::abs(sum(6, causes.size()) - whole[i]) < 1e-11);
    }
    const auto table = ending.out.substr(ending.out.find("compute  launches"));
    std::istringstream lines(table);
    std::size_t rows = 0;
    for (std::string line; std::getline(lines, line) && !line.empty();) {
        if (!line.starts_with("h200_cluster ")) continue;
        std::istringstream words_of_line(line);
        const Words cells(std::istream_iterator<std::string>(words_of_line), {});
        double sum = 0;
        for (std::size_t k = 8; k < 12; ++k) sum += std::stod(cells.at(k));
        BOOST_TEST(std::abs(sum - 100) < 0.21, line);  // four numbers of one decimal
        ++rows;
    }
    BOOST_TEST(rows == 4u);
    for (const std::string word : {"attends", "begin and end", "issue", "links", "memory", "compute", "launches",
                                   "exposed transfer", "waiting for peers", "tail", "imbalance"})
        BOOST_TEST(contains(ending.out, "\n  " + word), word);  // defined below
}

BOOST_AUTO_TEST_CASE(packed_documents_are_predicted_beside_their_bound) {
    const Folder folder;
    const auto words = words_of(
        "--ranks 4 --tokens 8192 --layouts zigzag planned --machines h200_nvswitch_copy_engine --schedules seen");
    const auto ending =
        run(folder, predict, words + Words{"--masks", "causal", "causal+documents:4096,512x8", "-o", "r.h5"});
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    BOOST_TEST(contains(ending.out, "of bound"), ending.out);
    const auto record = experiments::hdf5::File::open(folder / "r.h5");
    const auto masks = record.dataset("runs/mask").texts();
    for (const std::string pass : {"forward", "backward"}) {
        const auto shares = record.dataset("runs/share_of_bound_" + pass + "_h200_nvswitch_copy_engine").doubles();
        for (std::size_t i = 0; i < masks.size(); ++i)
            BOOST_TEST((masks[i] == "causal" ? std::isnan(shares[i]) : shares[i] > 0.2 && shares[i] < 1),
                       masks[i] << ": " << shares[i]);
    }
    const auto causal = run(folder, predict, words + Words{"--masks", "causal", "-o", "c.h5"});
    BOOST_TEST(!contains(causal.out, "of bound"), causal.out);
}

BOOST_AUTO_TEST_CASE(a_trace_is_json_of_the_first_run_and_its_first_ranks) {
    const Folder folder;
    const auto shown = [&](const Words& ranks) {
        const auto ending = run(
            folder, predict,
            words_of(
                "--tokens-per-rank 512 --layouts zigzag --machines ideal --trace t.json -o r.h5 --overwrite --ranks") +
                ranks);
        BOOST_TEST(ending.status == 0, ending.err);
        std::set<std::int64_t> processes;  // a rank of a pass each
        const auto trace = nlohmann::json::parse(contents_of(folder / "t.json"));
        for (const auto& event : trace.at("traceEvents"))
            if (event.at("ph") == "X") {
                processes.insert(event.at("pid").get<std::int64_t>());
                BOOST_TEST(event.at("dur").get<double>() >= 0);
            }
        return processes.size();
    };
    BOOST_TEST(shown({"4"}) == 2 * 4u);
    BOOST_TEST(shown({"4", "8"}) == 2 * 4u);
    BOOST_TEST(shown({"68"}) == 2 * 64u);
}

BOOST_AUTO_TEST_CASE(execution_traces_are_a_file_for_each_run_pass_and_gpu_and_replace_only_their_like) {
    const Folder folder;
    const auto words = words_of(
        "--ranks 4 --tokens-per-rank 512 --layouts zigzag --schedules ring pull --machines ideal --chakra et -o r.h5");
    const auto ending = run(folder, predict, words);
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    BOOST_TEST(contains(ending.out, "Execution traces: 16 files"), ending.out);
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder / "et"))
        files[entry.path().filename().string()] = contents_of(entry.path());
    BOOST_TEST(files.size() == 16u);
    for (const auto* schedule : {"ring", "pull"})
        for (const auto* pass : {"forward", "backward"})
            for (int gpu = 0; gpu < 4; ++gpu)
                BOOST_TEST(
                    files.contains(fmt::format("causal_zigzag_P=4_S=2048_{}_{}_ideal.{}.et", schedule, pass, gpu)));
    const auto again = run(folder, predict, words + Words{"--overwrite"});
    BOOST_TEST(again.status == 0, again.err);
    for (const auto& [name, bytes] : files) BOOST_TEST((contents_of((folder / "et") / name) == bytes), name);

    const auto refused = [&](const Words& more, const std::string& why) {
        const auto refusal = run(folder, predict, words + more);
        BOOST_TEST(refusal.status == 1);
        BOOST_TEST(contains(refusal.err, why), refusal.err);
    };
    fs::remove(folder / "r.h5");
    refused({}, ".0.et' exists; --overwrite replaces it");
    const auto mine = (folder / "et") / files.begin()->first;
    write_file(mine, "mine");
    refused({"--overwrite"}, "is no execution trace of Ringlab");
    BOOST_TEST(contents_of(mine) == "mine");
    fs::remove_all(folder / "et");
    write_file(folder / "et", "a file");
    refused({}, "--chakra 'et' is a file; give a folder");
    fs::remove(folder / "et");
    BOOST_TEST(!fs::exists(folder / "et"));
    BOOST_TEST(!fs::exists(folder / "r.h5"));
}

BOOST_AUTO_TEST_CASE(a_machine_file_with_a_rate_alone_is_predicted_by_it_and_one_that_contradicts_itself_is_told) {
    const Folder folder;
    const auto shipped =
        contents_of(fs::path(RINGLAB_SOURCE_DIR) / "experiments/machines/h200_nvswitch_copy_engine.toml");
    const auto slower =
        std::regex_replace(shipped, std::regex("teraflops = \\{ value = 598"), "teraflops = { value = 300");
    std::ofstream(folder / "contradicts.toml") << slower;
    std::ofstream(folder / "rate.toml") << std::regex_replace(
        std::regex_replace(slower, std::regex("\n(full|partial)_tile_us = [^\n]*"), ""),
        std::regex("gpus_per_host = \\{ value = 8"), "gpus_per_host = { value = 4");
    const auto forward_ms = [&](const std::string& machine, const std::string& note) {
        const auto ending =
            run(folder, predict,
                {"--ranks", "4", "--tokens-per-rank", "8192", "--layouts", "contiguous", "--masks", "full", "--heads",
                 "32:8", "--head-dim", "128", "--machines", "./" + machine + ".toml", "-o", machine + ".h5"});
        BOOST_TEST(ending.status == 0, ending.err);
        BOOST_TEST(contains(ending.err, "[note] ./" + machine + ".toml: "), ending.err);
        BOOST_TEST(contains(ending.err, note), ending.err);
        const auto record = experiments::hdf5::File::open(folder / (machine + ".h5"));
        BOOST_TEST(contains(record.dataset("predicted/notes").texts().at(0), "teraflops"));
        return record.dataset("predicted/makespan").doubles().at(0) * 1e3;
    };
    // 4 blocks of 4 * 8192^2 * 128 FLOP for each of 32 heads, 3.665 ms at 300 TFLOP/s, in 2048 items, which 132
    // processors take in 16 rounds; launches and what surrounds them are below 1 %.
    const auto by_rate = forward_ms("rate", "teraflops: attention.forward (300 TFLOP/s)");
    BOOST_TEST(by_rate == 4 * 3.665 * 16 * 132 / 2048, boost::test_tools::tolerance(0.02));
    const auto by_tiles =
        forward_ms("contradicts", "attention.forward 618.2 TFLOP/s by full_tile_us, 300 by teraflops");
    BOOST_TEST(by_tiles < 0.55 * by_rate);
}

namespace {

boost::test_tools::assertion_result has_two_processors(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result result(std::thread::hardware_concurrency() >= 2);
    if (!result) result.message() << "one processor alone, so ranks would take turns";
    return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rings_of_processors_are_scored_on_a_calibrated_machine_file,
                     *boost::unit_test::precondition(has_two_processors)) {
    const Folder folder;
    const auto calibrated =
        run(folder, calibrate, words_of("--tokens 128 192 256 --repeats 1 --arithmetic fp32 -o this_cpu.toml"));
    BOOST_REQUIRE_MESSAGE(calibrated.status == 0, calibrated.err);
    const auto timed = run(folder, throughput,
                           words_of("--backend cpu --ranks 2 --tokens-per-rank 128 --heads 4:2 --head-dim 64 --masks "
                                    "causal --layouts contiguous zigzag --seconds 0.001 --warm-up 0 -o rings.h5"));
    BOOST_REQUIRE_MESSAGE(timed.status == 0, timed.err);
    const auto scored = run(folder, validate, words_of("--measured rings.h5 --machines ./this_cpu.toml -o v.h5"));
    BOOST_REQUIRE_MESSAGE(scored.status == 0, scored.err);
    BOOST_TEST(contains(scored.out, "predicted balance"), scored.out);
    const auto rings = experiments::hdf5::File::open(folder / "rings.h5"),
               record = experiments::hdf5::File::open(folder / "v.h5");
    for (const std::string pass : {"forward", "backward"}) {
        const auto column = [&](const std::string& name) {
            return record.dataset("runs/" + name + "_" + pass).doubles();
        };
        const auto measured = column("seconds_measured"), predicted = column("seconds_predicted"),
                   error = column("error");
        const auto timed_seconds = rings.dataset("runs/rate_" + pass + "_seconds").doubles();
        BOOST_TEST_REQUIRE(measured.size() == 2u);
        for (std::size_t i = 0; i < 2; ++i) {
            BOOST_TEST(std::abs(measured[i] / timed_seconds[i] - 1) < 1e-6);  // samples are of single precision
            BOOST_TEST(std::abs(error[i] - (predicted[i] / measured[i] - 1)) < 1e-12);
        }
    }
}

BOOST_AUTO_TEST_CASE(rings_of_a_record_are_predicted_beside_what_was_measured_of_them) {
    const Folder folder;
    const std::string measured = RINGLAB_SOURCE_DIR "/experiments/results/validate_4xh200.h5";
    const auto ending = run(folder, validate, {"--measured", measured, "--machines", "ideal", "-o", "v.h5"});
    BOOST_REQUIRE_MESSAGE(ending.status == 0, ending.err);
    const auto now = experiments::hdf5::File::open(folder / "v.h5");
    // A machine where nothing but attention takes time.
    for (const auto error : now.dataset("runs/error_forward").doubles()) BOOST_TEST(error < 0);
    const auto ends = [](const auto& file) {  // of what was measured, all together
        const auto sources = file.dataset("source").texts();
        const auto place = std::find(sources.begin(), sources.end(), "measured") - sources.begin();
        const auto source = file.dataset("spans/source").integers();
        const auto end = file.dataset("spans/end").doubles();
        double sum = 0;
        for (std::size_t i = 0; i < end.size(); ++i) sum += source[i] == place ? end[i] : 0;
        return sum;
    };
    const auto before = ends(experiments::hdf5::File::open(measured));
    BOOST_TEST(before > 0);
    BOOST_TEST(std::abs(ends(now) / before - 1) < 1e-9);
}

BOOST_AUTO_TEST_CASE(advice_is_a_table_a_record_and_json_that_agree) {
    const Folder folder;
    const auto words =
        words_of("--tokens 16k --ranks 4 --machines h200_nvswitch_copy_engine -o a.h5 --json advice.json");
    const auto ending = run(folder, advise, words);
    BOOST_REQUIRE(ending.status == 0);
    const auto json = nlohmann::json::parse(contents_of(folder / "advice.json"));
    const auto record = experiments::hdf5::File::open(folder / "a.h5");
    const auto places = record.dataset("runs/place").integers();
    const auto schedules = record.dataset("runs/schedule").texts();
    const auto seconds = record.dataset("runs/seconds_predicted_backward").doubles();
    std::size_t ranked = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        if (places[i] == 0) continue;
        ++ranked;
        const auto& entry = json.at("ranked").at(static_cast<std::size_t>(places[i] - 1));
        BOOST_TEST(entry.at("schedule") == schedules[i]);
        BOOST_TEST(entry.at("seconds_predicted_backward").get<double>() == seconds[i]);
    }
    BOOST_TEST(ranked == json.at("ranked").size());
    BOOST_TEST(contains(ending.out, json.at("ranked").at(0).at("schedule").get<std::string>()), ending.out);

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
        const auto ending = run(folder, longest_context,
                                {"--schedules", "ring", "--keep", "kv", "--device-memory", gigabytes, "-o", file});
        BOOST_REQUIRE(ending.status == 0);
        return experiments::hdf5::File::open(folder / file).dataset("runs/longest_tokens").doubles().front();
    };
    const auto less = tokens("100", "less.h5"), more = tokens("200", "more.h5");
    // Nearly all of it goes as tokens; work lists grow a little faster, and what is reserved does not grow.
    BOOST_TEST(more > 1.9 * less);
    BOOST_TEST(more < 2.05 * less);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
