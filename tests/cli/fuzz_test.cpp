#include "experiments/command_line/command_line.hpp"
#include "experiments/command_line/option_groups.hpp"
#include "experiments/record/hdf5.hpp"
#include "layouts/basics/require.hpp"
#include "process.hpp"
#include "tests/layouts/mask_oracles.hpp"

#include <boost/test/unit_test.hpp>

#include <random>
#include <set>

namespace ringlab::cli::test {
namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
}

const std::string& any_of(Random& random, const Words& words) { return words[below(random, words.size())]; }

/// One to four bytes changed, left out, put in or repeated, or all after one cut off.
std::string mutated(std::string text, Random& random) {
    for (auto changes = 1 + below(random, 4); changes > 0 && !text.empty(); --changes) {
        const auto at = below(random, text.size());
        switch (below(random, 5)) {
            case 0: text[at] = static_cast<char>(below(random, 256)); break;
            case 1: text.erase(at, 1 + below(random, 8)); break;
            case 2: text.insert(at, 1, static_cast<char>(below(random, 256))); break;
            case 3: text.insert(at, text.substr(at, 1 + below(random, 30))); break;
            default:
                if (below(random, 8) == 0) text.resize(at);
        }
    }
    return text;
}

const auto options = words_of(
    "--tokens --ranks --layouts --masks --schedules --heads --input --pad --scale --soft-cap --batch --seed "
    "--arithmetic --replicas --rotary --head-dim --value-dim --timeout --resume --tolerance --judge-limit --placement "
    "-o --tokens-per-rank --preset --nonsense -x -- stray");
const auto values =
    words_of(
        "0 1 2 -1 64 1e9 nan inf 99999999999999999999 causal zigzag striped:3 striped:-1 striped:99999999999 file: "
        "file:/dev/null window:1,1 window:, window:9223372036854775807,9223372036854775807 documents:1x64 documents:0 "
        "documents:1x99999999999 block-causal:32x2 prefix:-5 sink:3 causal+ + ++causal valid:5-3 "
        "causal+documents:input ring all-gather:0 pull 4:2 4: : 0:0 normal real fp32 bf16 strided %s%n {}") +
    Words{"", " ", "\xff\xfe", "a\nb"};

/// One of every kind.
void add_options(experiments::Options& known, experiments::Config& config) {
    add_tokens(known, config.sweep);
    add_attention(known, config.problem);
    add_inputs(known, config);
    add_sweep(known, config.sweep);
    add_padding(known, config.sweep);
    add_arithmetic(known, config.problem, {"fp64", "fp32", "bf16", "fp16"});
    add_processes(known, config.execution);
    add_replicas(known, config.execution);
    add_judge_limit(known, config.judging);
    add_tolerance(known, config.judging);
    add_queries(known, config.sweep);
    add_repeats(known, config.execution, "");
    add_machines(known, config.prediction);
    add_clock(known, config.prediction);
    add_memory(known, config.memory);
    known.add("seconds", &config.timing.repeat_seconds, "SECONDS", "").between(1e-6, 60);
}

/// What is wrong with a command line; "" if it is understood.
std::string refusal_of(const Words& arguments) {
    const experiments::Experiment experiment{"fuzz", "purpose", "example", add_options};
    std::vector<const char*> line{"fuzz"};
    for (const auto& argument : arguments) line.push_back(argument.c_str());
    experiments::Config defaults;
    defaults.output.path = "fuzz.h5";
    try {
        experiments::parse(experiment, defaults, static_cast<int>(line.size()), line.data());
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_fuzz)

BOOST_AUTO_TEST_CASE(a_value_that_an_option_cannot_have_is_named_with_its_option) {
    const std::vector<std::pair<std::string, std::string>> wrong{{"--ranks", "0 -1 many 1048577"},
                                                                 {"--batch", "0"},
                                                                 {"--head-dim", "-1 0"},
                                                                 {"--value-dim", "0"},
                                                                 {"--queries", "-1"},
                                                                 {"--seed", "-3"},
                                                                 {"--scale", "nan inf 0"},
                                                                 {"--soft-cap", "-1 0"},
                                                                 {"--replicas", "0"},
                                                                 {"--repeats", "0"},
                                                                 {"--timeout", "0 1e18"},
                                                                 {"--tolerance", "-1 inf"},
                                                                 {"--tokens", "0 81,92 -5"},
                                                                 {"--dropout", "nan"},
                                                                 {"--judge-limit", "-1 0 most"},
                                                                 {"--layers", "0"},
                                                                 {"--resident", "-1"},
                                                                 {"--device-memory", "0 1e7"},
                                                                 {"--keep", "nothing"},
                                                                 {"--clock", "cuckoo"},
                                                                 {"--seconds", "0 61"},
                                                                 {"--arithmetic", "fp8"},
                                                                 {"--placement", "random"},
                                                                 {"--beside", "-1"}};
    for (const auto& [option, values_of_it] : wrong)
        for (const auto& value : words_of(values_of_it)) {
            const auto refusal = refusal_of({option, value});
            BOOST_TEST((contains(refusal, option) && contains(refusal, value)),
                       option << " " << value << ": " << refusal);
        }
}

BOOST_AUTO_TEST_CASE(random_command_lines_are_understood_or_refused_in_one_line) {
    Random random(1);
    for (int i = 0; i < 5000; ++i) {
        Words arguments;
        for (auto count = 1 + below(random, 6); count > 0; --count) {
            arguments.push_back(any_of(random, options));
            if (below(random, 8) == 0) arguments.back() = mutated(arguments.back(), random);
            for (auto more = below(random, 3); more > 0; --more) arguments.push_back(any_of(random, values));
        }
        BOOST_TEST(refusal_of(arguments).find('\n') == std::string::npos, arguments.front());
    }
}

BOOST_AUTO_TEST_CASE(mutated_presets_are_understood_or_refused_in_one_line) {
    const Folder folder;
    const std::string good =
        "# sizes\ntokens = 64\nranks = 2 4\nheads = 4:2\nlayouts = zigzag striped:4\n"
        "masks = causal window:8,0+sink:2\nscale = 0.125\npad = true\nseed = 3\n";
    Random random(2);
    for (int i = 0; i < 2000; ++i) {
        const auto text = mutated(good, random);
        write_file(folder / "fuzz.cfg", text);
        BOOST_TEST(refusal_of({"--preset", (folder / "fuzz.cfg").string()}).find('\n') == std::string::npos, text);
    }
}

// The judge asks the same mask as the run that it judges: who sees whom is compared with what masks' oracles say.
BOOST_AUTO_TEST_CASE(random_joined_masks_run_and_their_records_hold_what_the_oracle_sees) {
    constexpr int tokens = 48;
    const Folder folder;
    mask_oracles::Random random(1);
    std::set<std::string> joins{"shared-question:20,10,18+window:18,0+sink:3"};
    while (joins.size() < 30) joins.insert(mask_oracles::random_join(random, tokens, 4));
    const auto sizes =
        Words{"--tokens", std::to_string(tokens)} +
        words_of("--ranks 4 --layouts zigzag --schedules ring --heads 4:2 --head-dim 8 --input normal -o r.h5 --masks");
    const auto ending = run(folder, gradient_equivalence, sizes + Words(joins.begin(), joins.end()), 60);
    BOOST_TEST(ending.status == 0, ending.out + ending.err);
    const auto masks = experiments::hdf5::File::open(folder / "r.h5").dataset("runs/mask").texts();
    const auto names = experiments::hdf5::File::open(folder / "r.h5").dataset("run").texts();
    const auto map = [&](const std::string& column) { return runs_of(folder / "r.h5", "maps/" + column); };
    const auto begin = map("row_begin"), end = map("row_end"), sink = map("row_sink"), valid = map("key_valid"),
               earlier_begin = map("row_earlier_begin"), earlier_end = map("row_earlier_end");
    for (std::size_t i = 0; i < names.size(); ++i) {
        const auto& name = names[i];
        const mask_oracles::Joined oracle(masks[i], tokens);
        const auto ranges = earlier_begin.at(name).size() / tokens;
        int wrong = 0;
        for (std::size_t row = 0; row < tokens; ++row)
            for (std::size_t key = 0; key < tokens; ++key) {
                const auto in = [&](double first, double last) {
                    return first <= static_cast<double>(key) && static_cast<double>(key) < last;
                };
                bool seen = in(begin.at(name)[row], end.at(name)[row]) || in(0, sink.at(name)[row]);
                for (auto at = row * ranges; at < (row + 1) * ranges; ++at)
                    seen |= in(earlier_begin.at(name)[at], earlier_end.at(name)[at]);
                wrong +=
                    (seen && valid.at(name)[key] == 1) != oracle.sees(static_cast<int>(row), static_cast<int>(key));
            }
        BOOST_TEST(wrong == 0, masks[i]);
    }
    BOOST_TEST(names.size() == joins.size());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
