#include "random_invocation.hpp"

#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>

// Programs as users start them, with arguments and files that no user should: each ends in time, or says before that it
// will take longer; says what is wrong in one line, or has figures that are numbers.
//
//   RINGLAB_FUZZ=20000 RINGLAB_FUZZ_SEED=7 test_cli --run_test=cli_fuzz_invocations

namespace ringlab::cli::test {
namespace {

constexpr double longest_unannounced = 10;  // seconds

std::size_t setting(const char* variable, std::size_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? static_cast<std::size_t>(std::strtoull(text, nullptr, 10)) : otherwise;
}

/// What the files named fuzz.* are made of.
struct Files {
    std::string config =
        "# sizes\ntokens = 64\nranks = 2 4\nheads = 4:2\nlayouts = zigzag striped:4\nmasks = causal window:8,0+sink:2\n"
        "scale = 0.125\npad = true\nhead-dim = 8\n";
    std::string machine = contents_of(RINGLAB_SOURCE_DIR "/experiments/machines/h200_cluster.toml");
    std::string permutation, input;

    explicit Files(const Folder& folder) {
        for (int i = 0; i < 64; ++i) permutation += std::to_string((i * 5) % 64) + "\n";
        BOOST_REQUIRE(
            run(folder, gradient_equivalence, small + words_of("--input normal --head-dim 8 --save-tensors t -o r.h5"))
                .status == 0);
        input = contents_of(fs::directory_iterator(folder / "t")->path());
        BOOST_REQUIRE((!machine.empty() && input.size() > 2000u));
        fs::remove_all(folder / "t");
        fs::remove(folder / "r.h5");
    }

    void write(const Folder& folder, Random& random) const {
        const auto perhaps = [&](const std::string& good) {
            return below(random, 3) == 0 ? good : mutated(good, random);
        };
        write_file(folder / "fuzz.cfg", perhaps(config));
        write_file(folder / "fuzz.toml", perhaps(machine));
        write_file(folder / "fuzz.txt", perhaps(permutation));
        // Structure lies at the front of an HDF5 file and between its datasets.
        write_file(folder / "fuzz.h5", below(random, 4) == 0 ? input.substr(0, below(random, input.size()))
                                       : below(random, 2) == 0
                                           ? mutated(input.substr(0, 2000), random).substr(0, 2000) + input.substr(2000)
                                           : perhaps(input));
    }
};

/// A word of a table that no result is: not a number, infinite, or a time below zero.
std::string nonsense_in(const std::string& text, bool may_be_negative) {
    std::istringstream stream(text.substr(0, text.find("\n\n")));
    for (std::string word; stream >> word;) {
        if (word == "nan" || word == "-nan" || word == "inf" || word == "-inf" || word == "nan%") return word;
        if (!may_be_negative && word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])))
            return word;
    }
    return "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_fuzz_invocations)

BOOST_AUTO_TEST_CASE(random_invocations_end_in_time_with_figures_or_one_line) {
    const auto count = setting("RINGLAB_FUZZ", 120), seed = setting("RINGLAB_FUZZ_SEED", 1);
    const Folder folder;
    const Files files(folder);
    std::map<std::string, std::size_t> endings;
    double slowest = 0;
    std::string slowest_one;
    for (std::size_t i = 0; i < count; ++i) {
        Random random(static_cast<unsigned>(seed * 1'000'003 + i));  // each can be repeated by itself
        files.write(folder, random);
        const auto one = random_invocation(random);
        const auto leave_nothing = [&] {
            for (const auto& entry : folder.left())
                if (!entry.starts_with("fuzz.")) fs::remove_all(folder / entry);
        };
        auto ending = run(folder, one.program, one.arguments, longest_unannounced);
        if (ending.timed_out && ending.processor_seconds < 1) {  // it hangs, or waits for its turn on a busy machine
            leave_nothing();
            ending = run(folder, one.program, one.arguments, 12 * longest_unannounced);
        }
        std::ostringstream what;
        what << "number " << i << ": " << one;
        if (ending.timed_out) {
            BOOST_TEST(contains(ending.err, "[estimate]"), what.str() << " runs on without a word\n" << ending.err);
            ++endings["announced to be long, and stopped"];
        } else {
            check_ending(ending, what.str());
            ++endings["exit status " + std::to_string(ending.status)];
            if (ending.seconds > slowest) {
                slowest = ending.seconds;
                slowest_one = what.str();
            }
            if (ending.status == 0) {
                const auto nonsense = nonsense_in(ending.out, one.program == calibrate);
                BOOST_TEST(nonsense == "", what.str() << " ends with 0 and prints " << nonsense << "\n" << ending.out);
            }
        }
        leave_nothing();
        if (count > 1000 && (i + 1) % 500 == 0)
            std::cerr << "[" << i + 1 << "/" << count << "] slowest " << slowest << " s\n";
    }
    for (const auto& [ending, times] : endings) BOOST_TEST_MESSAGE(times << " times " << ending);
    BOOST_TEST_MESSAGE("slowest that was not stopped: " << slowest << " s, " << slowest_one);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
