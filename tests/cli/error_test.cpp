#include "process.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ostream>

namespace ringlab::cli::test {
namespace {

/// A command line that cannot work, and what its message must say.
struct Mistake {
    std::string program;
    Words arguments;
    Words says;
};

std::ostream& operator<<(std::ostream& out, const Mistake& mistake) {
    out << fs::path(mistake.program).filename().string();
    for (const auto& argument : mistake.arguments) out << ' ' << argument;
    return out;
}

/// `small` with one option's value replaced, or an option added.
Words with(const std::string& option, const std::string& value) {
    auto words = small;
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
        if (words[i] == option) {
            words[i + 1] = value;
            return words;
        }
    return words + Words{option, value};
}

const std::vector<Mistake> mistakes{
    // How options are typed.
    {gradients, with("--nonsense", "1"), {"--nonsense", "--help"}},
    {gradients, {"--rank", "4"}, {"'--rank'", "did you mean '--ranks'?"}},
    {gradients, with("--batch", "2") + Words{"--batch", "2"}, {"--batch", "twice"}},
    {gradients, {"--pad", "stray"}, {"'stray'"}},
    {gradients, with("--layouts", ""), {"--layouts", "empty"}},
    {gradients, with("--arithmetic", "bf61"), {"did you mean 'bf16'?"}},
    {gradients, with("--tokens", "1.5k"), {"--tokens 1.5k", "4Ki"}},
    {gradients, with("--judge-limit", "0"), {"--judge-limit 0", "at least 1, or none"}},
    {gradients, with("--head-dim", "0"), {"--head-dim 0", "above 0", "that of the input"}},
    // An option of another program, of another backend, or one that another excludes.
    {predict, {"--input", "real"}, {"--input"}},
    {calibrate, {"--resume"}, {"'--resume'", "--help"}},
    {gradients, {"--transport", "copy"}, {"--transport", "--backend cuda"}},
    {gradients, with("--backend", "abacus"), {"'abacus'", "cpu"}},
    {gradients, with("--tokens-per-rank", "16"), {"--tokens", "--tokens-per-rank"}},
    {gradients, small + Words{"--resume", "--overwrite"}, {"--resume", "--overwrite"}},
    {throughput, {"--backend", "cpu", "--transports", "copy"}, {"--transports copy", "cpu", "threads"}},
    {throughput, {"--transports", "threads"}, {"--transports threads", "cuda", "copy, nccl"}},
    {validate, {"--measured", "missing.h5", "--layouts", "zigzag"}, {"--layouts"}},
    {validate, {"--measured", "all", "--without", "each", "--machines", "ideal"}, {"--without", "--machines"}},
    // Names and what they take; tests/layouts/basics_test.cpp has more of them.
    {gradients, with("--masks", "casual+sink:4"), {"did you mean 'causal'?"}},
    {gradients, {"--masks", "causal", "causal"}, {"occurs twice"}},
    {gradients, with("--input", "nromal"), {"did you mean 'normal'?"}},
    {bf16_error, {"--policies", "hope"}, {"'hope'", "carry"}},
    {predict, {"--machines", "h200_clutser"}, {"did you mean 'h200_cluster'?"}},
    {compare_layouts, {"--machines", "ideal", "ideal"}, {"two machine files", "'ideal'"}},
    {predict, {"--placement", "random"}, {"'random'", "strided", "file:PATH"}},
    {predict,
     {"--ranks", "256", "--machines", "ideal", "--masks", "causal+documents:64Kix8", "--tokens", "512k"},
     {"sum to 524288", "512000 tokens", "512k is 512000, 512Ki is 524288"}},
    {longest_context,
     {"--preset", "deepseek-v3", "--schedules", "ring", "expanded:pull"},
     {"schedule pull", "give pull, in which the latent travels"}},
    // Heads, and what a model adds.
    {gradients, with("--heads", "8:2"), {"8", "has 4"}},
    {gradients, with("--batch", "3"), {"--batch 3", "has 1"}},
    {gradients, with("--input", "normal") + Words{"--heads", "4:3"}, {"4", "3", "multiple"}},
    {gradients, with("--sinks", "inf"), {"--sinks inf", "finite"}},
    {gradients, with("--sinks", "1") + Words{"2", "3"}, {"3 logits", "query heads"}},
    {gradients, with("--dropout", "1"), {"dropout is 1", "below 1"}},
    {gradients, with("--rotary", "half"), {"--rotary half", "10000+dims:64", "none"}},
    {gradients, with("--rotary", "100+dims:63"), {"63", "even", "dims of --rotary"}},
    {gradients, with("--rotary", "100+positions:local"), {"'local'", "global, documents"}},
    {gradients, with("--rotary", "100+scaling:yarm:4,64"), {"did you mean 'yarn'?"}},
    {predict, {"--slow-gpus", "9"}, {"9 slow GPUs of 8 ranks"}},
    {predict, {"--slow-gpus", "1:0.5"}, {"--slow-gpus 1:0.5", "from 1"}},
    // Sizes that cannot be.
    {gradients, with("--tokens", "60"), {"60 tokens", "4 ranks", "multiple of 8", "pad them to 64"}},
    {gradients, with("--input", "normal") + Words{"--head-dim", "9223372036854775807"}, {"head and value dims"}},
    {gradients, {"--input", "normal", "--tokens", "4Gi", "--pad"}, {"4294967296 tokens", "2^31"}},
    {throughput, {"--ranks", "2", "--tokens-per-rank", "9223372036854775807"}, {"9223372036854775807 tokens", "2^31"}},
    {predict, {"--ranks", "1048576", "--tokens-per-rank", "1048576"}, {"1048576", "2^31"}},
    {decode, {"--tokens", "2", "--sequences", "3"}, {"3 sequences", "2 tokens", "--sequences"}},
    {calibrate, {"--tokens", "64"}, {"do not determine"}},
    {throughput, {"--ranks", "4", "--tokens-per-rank", "1001"}, {"4004", "zigzag"}},
    {throughput, {"--shapes", "32:8"}, {"--shapes 32:8", "32:8/128"}},
    {throughput, {"--shapes", "32:8/128", "32:8/128/bf16"}, {"occurs twice"}},
    // Machines with fewer GPUs or less memory, and this one.
    {predict,
     {"--preset", "llama-3.1-8b", "--ranks", "16"},
     {"--ranks 16", "has 8 GPUs", "these have room: gb200_nvl72 (72 GPUs), ", "h200_cluster (16384 GPUs)"}},
    {predict, {"--replicas", "2"}, {"2 rings of 8 ranks", "has 8 GPUs", "h200_cluster (16384 GPUs)"}},
    {longest_context, {"--confirm", "--ranks", "4096", "--schedules", "ring", "--machines", "h200_cluster"}, {"GPU"}},
    {throughput, {"--ranks", "4096"}, {"GPU"}},  // wherever it runs: no CUDA, no GPU, or too few of them
    {compare_layouts,
     {"--backend", "cuda", "--kernels", "portable", "--transport", "copy", "--ranks", "64", "--input", "normal",
      "--tokens", "4096"},
     {}},
    {validate, {}, {"--measured FILE"}},
    {throughput, {"--backend", "cpu", "--ranks", "4096"}, {"--ranks 4096", "processor of its own", "compare_layouts"}},
    {advise, {"--masks", "causal", "full"}, {"--masks has 2 values"}},
    {advise, {"--machines", "ideal"}, {"ideal", "--device-memory"}},
    {advise, {"--ranks", "8", "--gpus", "4"}, {"--ranks 8", "only 4 --gpus"}},
    {longest_context, {"--resident", "1000"}, {"leave nothing of 150.1 GB"}},
    // Files that are not there.
    {gradients, with("--input", "nothere.h5"), {"'nothere.h5'", "normal"}},
    {gradients, with("--masks", "documents:@nothere"), {"'nothere'"}},
    {validate, {"--measured", "missing.h5", "--machines", "ideal"}, {"missing.h5"}},
    {gradients, with("--output", "missing/record.h5"), {"missing/record.h5", "no folder"}},
    {predict, {"--trace", "missing/trace.json"}, {"missing/trace.json", "no folder"}},
};

/// One line on stderr that begins with the experiment's name, a status other than 0, and soon. The limit is far above
/// the milliseconds it takes, as the tests may share the processors with others.
void check_refusal(const std::string& program, const Ending& ending, const Words& says) {
    BOOST_TEST(!ending.timed_out);
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(ending.seconds < 5);
    const auto lines = lines_beside_progress(ending.err);
    BOOST_TEST(lines.size() == 1u, "stderr: " << ending.err);
    if (!lines.empty()) BOOST_TEST(lines[0].starts_with(fs::path(program).filename().string() + ": "), ending.err);
    for (const auto& part : says) BOOST_TEST(contains(ending.err, part), ending.err << " lacks " << part);
}

/// A file that cannot be used, and the option that takes it.
struct BadFile {
    std::string name, contents;
    Words options;
    Words says;
};

std::ostream& operator<<(std::ostream& out, const BadFile& file) { return out << file.name; }

std::string positions(int begin, int end) {
    std::string text;
    for (int i = begin; i < end; ++i) text += std::to_string(i) + "\n";
    return text;
}

const std::vector<BadFile> bad_files{
    {"key.cfg", "colour = 3\n", {"--preset", "key.cfg"}, {"key.cfg", "colour"}},
    {"value.cfg", "repeats = many\n", {"--preset", "value.cfg"}, {"value.cfg", "many", "repeats"}},
    {"short.txt", positions(0, 63), {"--layouts", "file:short.txt"}, {"short.txt", "63", "64"}},
    {"twice.txt", positions(0, 63) + "7\n", {"--layouts", "file:twice.txt"}, {"twice.txt", "7 twice"}},
    {"lengths.txt", "30 thirty", {"--masks", "documents:@lengths.txt"}, {"thirty"}},
    {"text.h5", "not HDF5", {"--input", "text.h5"}, {"text.h5"}},
    {"q.npy", "\x93NUMPY\x01", {"--input", "q.npy"}, {"'q.npy' is not HDF5", "h5py.File('qkv.h5', 'w')"}},
    {"folder", "", {"--save-tensors", "folder"}, {"folder", "is a file"}},
};

const std::vector<BadFile> bad_machines{
    {"syntax.toml", "[topology\nhosts = ", {}, {"syntax.toml"}},
    {"key.toml", "name = \"x\"\ncolour = 3\n", {}, {"key.toml"}},
    {"binary.toml", std::string("\0\xff\x01\n", 4), {}, {"binary.toml"}},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(cli_errors)

BOOST_DATA_TEST_CASE(a_mistake_gives_one_line_that_names_it_and_leaves_no_file,
                     boost::unit_test::data::make(mistakes)) {
    const Folder folder;
    check_refusal(sample.program, run(folder, sample.program, sample.arguments), sample.says);
    BOOST_TEST(folder.left() == Words{}, boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(a_bad_file_gives_one_line_that_names_it, boost::unit_test::data::make(bad_files)) {
    const Folder folder;
    write_file(folder / sample.name, sample.contents);
    auto arguments = small;
    if (sample.options[0].starts_with("--"))
        for (std::size_t i = 0; i < arguments.size(); i += 2)
            if (arguments[i] == sample.options[0]) {
                arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                                arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2);
                break;
            }
    check_refusal(gradient_equivalence, run(folder, gradient_equivalence, arguments + sample.options), sample.says);
    BOOST_TEST(folder.left() == Words{sample.name}, boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(a_bad_machine_file_gives_one_line_that_names_it, boost::unit_test::data::make(bad_machines)) {
    const Folder folder;
    write_file(folder / sample.name, sample.contents);
    check_refusal(predict, run(folder, predict, {"--machines", sample.name}), sample.says);
    BOOST_TEST(folder.left() == Words{sample.name}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_quoted_neither_ends_the_line_nor_spoils_it) {
    const Folder folder;
    const auto ending = run(folder, gradients, {"--input", "a\nb\x1b[2J\xc3\xa9", "-o", "r.h5"});
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(contains(ending.err, "'a b [2J\xc3\xa9'"), ending.err);
    BOOST_TEST(lines_beside_progress(ending.err).size() == 1u, ending.err);
}

BOOST_AUTO_TEST_CASE(a_simulated_time_that_no_timeline_holds_is_an_error) {
    const auto longest = words_of(
        "--ranks 16 --tokens-per-rank 128Mi --heads 128:8 --compute-model rate --layouts striped --machines "
        "h200_cluster -o r.h5");
    for (const auto* engine : {"events", "unshared"}) {
        const Folder folder;
        check_refusal(predict, run(folder, predict, longest + Words{"--engine", engine}), {"106 days", "fewer tokens"});
    }
}

BOOST_AUTO_TEST_CASE(padding_on_request_makes_sizes_that_do_not_divide_work) {
    const Folder folder;
    const auto ending = run(folder, gradient_equivalence, with("--tokens", "61") + Words{"--pad", "-o", "r.h5"});
    BOOST_TEST(ending.status == 0, ending.err);
    BOOST_TEST(runs_of(folder / "r.h5", "judged/relative_rms").size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_record_that_exists_is_touched_only_as_asked) {
    const Folder folder;
    const auto record = small + Words{"-o", "r.h5"};
    BOOST_TEST(run(folder, gradient_equivalence, record).status == 0);
    const auto before = contents_of(folder / "r.h5");
    check_refusal(gradient_equivalence, run(folder, gradient_equivalence, record), {"r.h5", "--resume", "--overwrite"});
    check_refusal(gradient_equivalence,
                  run(folder, gradient_equivalence, with("--tokens", "128") + Words{"-o", "r.h5", "--resume"}),
                  {"r.h5", "64", "128"});
    check_refusal(predict, run(folder, predict, {"-o", "r.h5", "--resume"}), {"r.h5"});
    BOOST_TEST((contents_of(folder / "r.h5") == before));
    BOOST_TEST(folder.left() == Words{"r.h5"}, boost::test_tools::per_element());
    BOOST_TEST(run(folder, gradient_equivalence, record + Words{"--resume"}).status == 0);
    BOOST_TEST(run(folder, gradient_equivalence, record + Words{"--overwrite"}).status == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
