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
    {gradients, with("--nonsense", "1"), {"--nonsense", "--help"}},
    {gradients, {"--rank", "4"}, {"'--rank'", "did you mean '--ranks'?"}},
    {gradients, {"--layout=zigzag"}, {"did you mean '--layouts'?"}},
    {gradients, {"-z"}, {"'-z'", "--help"}},
    {gradients, with("--batch", "2") + Words{"--batch", "2"}, {"--batch", "twice"}},
    {gradients, {"--pad", "stray"}, {"'stray'"}},
    {gradients, {"--tokens"}, {"--tokens"}},
    {predict, {"--input", "real"}, {"--input"}},
    {gradients, with("--layouts", "spiral"), {"layout", "'spiral'", "zigzag"}},
    {gradients, with("--layouts", "zigzga"), {"did you mean 'zigzag'?"}},
    {gradients, with("--layouts", "striped:0"), {"width", "'0'"}},
    {gradients, with("--layouts", "zigzag:3"), {"zigzag", "'3'"}},
    {gradients, with("--layouts", "striped:"), {"'striped:'", "nothing after its colon", "striped[:WIDTH]"}},
    {gradients, with("--masks", "causal:"), {"'causal:'", "nothing after its colon"}},
    {gradients, with("--masks", "full+window:"), {"'window:'", "window:LEFT,RIGHT"}},
    {gradients, with("--masks", "causal+sink:"), {"'sink:'", "sink:N"}},
    {gradients, with("--schedules", "seen:"), {"'seen:'", "seen[:GAP[:RANKS[:CUT]]]"}},
    {gradients, with("--schedules", "seen:1:2:3:4"), {"GAP, RANKS and CUT", "'seen:1:2:3:4'"}},
    {gradients, with("--schedules", "seen:1:2:0"), {"the keys between cuts", "'0'"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-scaling", "none:"}, {"'none:'", "nothing after its colon"}},
    {gradients, with("--layouts", ""), {"--layouts", "empty"}},
    {gradients, with("--masks", "diagonal"), {"mask", "'diagonal'", "causal"}},
    {gradients, with("--masks", "casual+sink:4"), {"did you mean 'causal'?"}},
    {gradients, with("--masks", "window:5"), {"window:5", "window:LEFT,RIGHT"}},
    {gradients, with("--masks", "documents:30,30"), {"60", "64"}},
    {gradients, with("--masks", "documents:@nothere"), {"'nothere'"}},
    {gradients, with("--sinks", "1 2 3"), {"--sinks 1 2 3"}},
    {gradients, with("--sinks", "inf"), {"--sinks inf", "finite"}},
    {gradients, with("--sinks", "1") + Words{"2", "3"}, {"3 logits", "query heads"}},
    {gradients, with("--masks", "chunks:0"), {"chunks", "'0'"}},
    {gradients, with("--dropout", "1"), {"dropout is 1", "below 1"}},
    {gradients, with("--dropout", "-0.1"), {"dropout is -0.1", "below 1"}},
    {gradients, with("--dropout", "nan"), {"--dropout nan", "finite"}},
    {gradients, with("--dropout-seed", "3"), {"--dropout-seed", "--dropout"}},
    {gradients, with("--dropout", "0.1") + Words{"--dropout-seed", "-1"}, {"--dropout-seed -1", "at least 0"}},
    {gradients, with("--rotary-dims", "64"), {"--rotary-dims", "--rotary"}},
    {gradients, with("--rotary", "0.5"), {"0.5", "above 1"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-dims", "63"}, {"63", "even", "--rotary-dims"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-first", "4096"}, {"4096", "--rotary-first"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-pairs", "quarters"}, {"'quarters'", "half, interleaved"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-positions", "local"}, {"'local'", "global, documents"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-scaling", "yarm:4,64"}, {"did you mean 'yarn'?"}},
    {gradients, with("--rotary", "100") + Words{"--rotary-scaling", "yarn:4"}, {"yarn:FACTOR,LENGTH"}},
    {gradients, with("--masks", "padded-segments:60,4/5"), {"'4/5'", "5 tokens in a room of 4"}},
    {gradients, with("--queries", "-1"), {"--queries", "-1"}},
    {gradients, with("--schedules", "merge:star"), {"tree", "'star'"}},
    {decode, {"--tokens", "2", "--sequences", "3"}, {"3 sequences", "2 tokens", "--sequences"}},
    {decode, {"--masks", "causal"}, {"--masks"}},
    {predict,
     {"--queries", "1", "--engine", "symmetric", "--compute-model", "rate", "--ranks", "4", "--tokens", "4096"},
     {"query row", "symmetric"}},
    {gradients, with("--schedules", "teleport"), {"'teleport'", "ring"}},
    {gradients, with("--schedules", "all-gather:3"), {"3", "2"}},
    {predict, {"--machines", "abacus"}, {"'abacus'", "h200_cluster"}},
    {predict, {"--preset", "gpt-9"}, {"'gpt-9'", "llama-3.1-8b"}},
    {predict, {"--preset", "llama-3-8b"}, {"did you mean 'llama-3.1-8b'?"}},
    {predict, {"--machines", "h200_clutser"}, {"did you mean 'h200_cluster'?"}},
    {gradients, with("--input", "nromal"), {"did you mean 'normal'?"}},
    {gradients, with("--arithmetic", "bf61"), {"did you mean 'bf16'?"}},
    {gradients, with("--input", "nothere.h5"), {"'nothere.h5'", "normal"}},
    {gradients, with("--input", "."), {"'.'", "normal"}},
    {bf16_error, {"--policies", "hope"}, {"'hope'", "carry"}},
    {predict, {"--placement", "random"}, {"'random'", "strided", "file:PATH"}},
    {predict, {"--placement", "file:missing.txt"}, {"'missing.txt'"}},
    {predict, {"--slow-gpus", "9"}, {"9 slow GPUs of 8 ranks"}},
    {predict, {"--slow-links", "-1"}, {"--slow-links -1"}},
    {predict, {"--slow-gpu-factor", "0.5"}, {"--slow-gpu-factor 0.5", "from 1"}},
    {predict, {"--compute-noise", "nan"}, {"--compute-noise nan"}},
    {predict,
     {"--preset", "llama-3.1-8b", "--ranks", "16"},
     {"--ranks 16", "has 8 GPUs", "these have room: gb200_nvl72 (72 GPUs), ", "h200_cluster (16384 GPUs)"}},
    {compare_layouts, {"--ranks", "16", "--machines", "8xh800"}, {"--ranks 16", "'8 H800", "h200_rails (2048 GPUs)"}},
    {predict,
     {"--ranks", "256", "--machines", "ideal", "--masks", "causal+documents:64Kix8", "--tokens", "512k"},
     {"sum to 524288", "512000 tokens", "512k is 512000, 512Ki is 524288"}},
    {longest_context,
     {"--preset", "deepseek-v3", "--schedules", "ring", "expanded:pull"},
     {"schedule pull", "give pull, in which the latent travels"}},
    {predict, {"--replicas", "2"}, {"2 rings of 8 ranks", "has 8 GPUs", "h200_cluster (16384 GPUs)"}},
    {predict, {"--replicas", "1Mi"}, {"1048576 rings of 8 ranks", "2^20"}},
    {predict, {"--engine", "symmetric", "--compute-model", "rate", "--slow-gpus", "1"}, {"symmetric", "undisturbed"}},
    {gradients, with("--backend", "abacus"), {"'abacus'", "cpu"}},
    {gradients, with("--transport", "pigeon"), {"'pigeon'", "loopback"}},
    {gradients, with("--placement", "random"), {"'random'", "strided"}},
    {gradients, with("--arithmetic", "fp8"), {"'fp8'", "bf16"}},
    {predict, {"--compute-model", "guess"}, {"'guess'", "tiles"}},
    {gradients, with("--tokens", "60"), {"60 tokens", "4 ranks", "multiple of 8", "pad them to 64"}},
    {gradients, with("--tokens", "1000000"), {"1000000", "2048"}},
    {gradients, with("--tokens", "0"), {"--tokens 0"}},
    {gradients, with("--tokens", "99999999999999999999"), {"99999999999999999999"}},
    {gradients, with("--tokens-per-rank", "16"), {"--tokens", "--tokens-per-rank"}},
    {gradients, with("--ranks", "0"), {"--ranks 0"}},
    {gradients, with("--ranks", "many"), {"many"}},
    {gradients, {"--masks", "causal", "causal"}, {"occurs twice"}},
    {gradients, with("--heads", "8:2"), {"8", "has 4"}},
    {gradients, with("--batch", "3"), {"--batch 3", "has 1"}},
    {gradients, with("--batch", "0"), {"--batch 0"}},
    {gradients, with("--head-dim", "-1"), {"--head-dim -1"}},
    {gradients, with("--head-dim", "0"), {"--head-dim 0", "above 0", "that of the input"}},
    {predict, {"--head-dim", "0"}, {"--head-dim 0", "above 0"}},
    {predict, {"--value-dim", "0"}, {"--value-dim 0", "the head dim"}},
    {predict, {"--scale", "0"}, {"--scale 0", "other than 0", "1/sqrt(head dim)"}},
    {predict, {"--soft-cap", "0"}, {"--soft-cap 0", "above 0, or none"}},
    {predict, {"--rotary", "0"}, {"--rotary 0", "above 0, or none"}},
    {predict, {"--rotary", "100", "--rotary-dims", "0"}, {"--rotary-dims 0", "all from the first one on"}},
    {predict, {"--threads", "0"}, {"--threads 0", "one for each processor"}},
    {advise, {"--gpus", "0"}, {"--gpus 0", "above 0, up to 1048576"}},
    {longest_context, {"--device-memory", "0"}, {"--device-memory 0", "the machine file says"}},
    {longest_context, {"--hidden", "0"}, {"--hidden 0", "query heads x head dim"}},
    {gradients, with("--input", "normal") + Words{"--heads", "4:3"}, {"4", "3", "multiple"}},
    {gradients, with("--input", "normal") + Words{"--heads", "four"}, {"'four'"}},
    {gradients, with("--input", "normal") + Words{"--seed", "-3"}, {"--seed -3"}},
    {gradients, with("--scale", "nan"), {"scale", "nan"}},
    {gradients, with("--soft-cap", "-1"), {"soft-cap", "-1"}},
    {gradients, with("--replicas", "0"), {"--replicas 0"}},
    {gradients, with("--repeats", "0"), {"--repeats 0"}},
    {gradients, with("--timeout", "nan"), {"--timeout nan"}},
    {gradients, with("--timeout", "1e18"), {"--timeout 1e18", "0.001 to 1000000"}},
    {gradients, with("--timeout", "inf"), {"--timeout inf", "finite"}},
    {gradients, with("--timeout", "1e-300"), {"--timeout 1e-300", "0.001"}},
    {gradients, with("--tolerance", "inf"), {"--tolerance inf", "finite"}},
    {gradients, with("--tokens", "81,92"), {"--tokens 81,92", "4,096"}},
    {gradients, with("--tokens", "1.5k"), {"--tokens 1.5k", "4Ki"}},
    {gradients, with("--ranks", "2Gi"), {"--ranks 2Gi", "1048576"}},
    {gradients, with("--input", "normal") + Words{"--head-dim", "9223372036854775807"}, {"head and value dims"}},
    {gradients, with("--input", "normal") + Words{"--batch", "9223372036854775807"}, {"smaller batch"}},
    {compare_layouts, {"--input", "normal", "--tokens", "9223372036854775807"}, {"9223372036854775807 tokens", "2^31"}},
    {gradients, {"--input", "normal", "--tokens", "4Gi", "--pad"}, {"4294967296 tokens", "2^31"}},
    {bf16_error,
     {"--input", "normal", "--tokens", "9223372036854775807", "--pad"},
     {"9223372036854775807 tokens", "2^31"}},
    {throughput, {"--ranks", "2", "--tokens-per-rank", "9223372036854775807"}, {"9223372036854775807 tokens", "2^31"}},
    {predict, {"--head-dim", "9223372036854775807"}, {"9223372036854775807", "head and value dims"}},
    {predict, {"--value-dim", "9223372036854775807"}, {"9223372036854775807", "head and value dims"}},
    {predict, {"--heads", "1000000000000000"}, {"1000000000000000", "heads"}},
    {predict, {"--batch", "9223372036854775807"}, {"9223372036854775807", "smaller batch"}},
    {gradients, with("--judge-limit", "-1"), {"--judge-limit -1"}},
    {gradients, with("--tolerance", "nan"), {"--tolerance nan"}},
    {gradients, small + Words{"--resume", "--overwrite"}, {"--resume", "--overwrite"}},
    {gradients, with("--output", "missing/record.h5"), {"missing/record.h5", "no folder"}},
    {gradients, with("--output", ""), {"--output"}},
    {gradients, with("--config", "missing.cfg"), {"'missing.cfg'"}},
    {gradients, with("--config", "."), {"'.'"}},
    {gradients, with("--layouts", "file:missing.txt"), {"'missing.txt'"}},
    {predict, {"--masks", "documents:input"}, {"documents:input"}},
    {predict, {"--trace", "missing/trace.json"}, {"missing/trace.json", "no folder"}},
    {predict, {"--trace", "trace.json", "--trace-ranks", "5"}, {"--trace-ranks", "'5'", "0-7"}},
    {predict, {"--trace", "trace.json", "--trace-steps", "5-2"}, {"--trace-steps", "'2'"}},
    {predict, {"--trace-ranks", "0-1"}, {"--trace-ranks", "--trace"}},
    {predict, {"--trace-steps", "0-1"}, {"--trace-steps", "--trace"}},
    {predict, {"--trace-runs", "2"}, {"--trace-runs", "--trace"}},
    {predict, {"--ranks", "1048576", "--tokens-per-rank", "1048576"}, {"1048576", "2^31"}},
    {compare_layouts, {"--machines", "ideal", "ideal"}, {"two machine files", "'ideal'"}},
    {compare_layouts, {"--layouts", "spiral"}, {"'spiral'"}},
    {calibrate, {"--layouts", "zigzag"}, {"'--layouts'", "--help"}},
    {calibrate, {"--resume"}, {"'--resume'", "--help"}},
    {calibrate, {"--tokens", "64"}, {"do not determine"}},
    {calibrate, {"--tokens-per-rank", "64"}, {"3 timed lengths and masks do not determine"}},
    {longest_context, {"--confirm", "--ranks", "4096", "--schedules", "ring", "--machines", "h200_cluster"}, {"GPU"}},
    {throughput, {"--ranks", "4096"}, {"GPU"}},  // wherever it runs: no CUDA, no GPU, or too few of them
    {advise, {"--masks", "causal", "full"}, {"--masks has 2 values"}},
    {advise, {"--tokens", "1k", "2k"}, {"--tokens has 2 values"}},
    {advise, {"--keep", "kv", "cache"}, {"--keep has 2 values"}},
    {advise, {"--keep", "everythin"}, {"'everythin'", "everything"}},
    {advise, {"--machines", "ideal"}, {"ideal", "--device-memory"}},
    {advise, {"--machines", "h200_clutser"}, {"h200_clutser", "h200_cluster"}},
    {advise, {"--ranks", "4096"}, {"--ranks 4096", "has 8 GPUs"}},
    {advise, {"--gpus", "9"}, {"--gpus 9", "has 8 GPUs"}},
    {advise, {"--ranks", "8", "--gpus", "4"}, {"--ranks 8", "only 4 --gpus"}},
    {advise, {"--masks", "documents:10,20"}, {"documents"}},
    {advise, {"--layouts", "zigzga"}, {"zigzga", "zigzag"}},
    {advise, {"--reserved", "151"}, {"leave nothing of 150.1 GB"}},
    {advise, {"--json", "there_is_no/such.json"}, {"--json"}},
    {longest_context, {"--machines", "ideal"}, {"ideal", "--device-memory"}},
    {longest_context, {"--ranks", "4096"}, {"--ranks 4096", "has 8 GPUs"}},
    {longest_context, {"--keep", "nothing"}, {"'nothing'", "checkpoint"}},
    {longest_context, {"--layers", "0"}, {"--layers 0"}},
    {longest_context, {"--resident", "1000"}, {"leave nothing of 150.1 GB"}},
    {longest_context, {"--tokens", "1k"}, {"--tokens"}},
    {longest_context, {"--schedules", "rign"}, {"rign", "ring"}},
    {throughput, {"--shapes", "32:8"}, {"--shapes 32:8", "32:8/128"}},
    {throughput, {"--shapes", "32:8/128/fp8"}, {"'fp8'", "bf16"}},
    {throughput, {"--arithmetic", "fp32"}, {"fp32", "bf16"}},
    {throughput, {"--shapes", "32:8/128", "32:8/128/bf16"}, {"occurs twice"}},
    {throughput, {"--transports", "pigeon"}, {"'pigeon'", "nccl"}},
    {throughput, {"--kernels", "magic"}, {"'magic'", "portable"}},
    {throughput, {"--kernels", "hopper", "--ranks", "4096"}, {"GPU"}},
    {gradients, {"--transport", "copy"}, {"--transport", "--backend cuda"}},
    {gradients, {"--check-finite"}, {"--check-finite", "--backend cuda"}},
    {gradients, {"--kernels", "magic"}, {"'magic'", "portable", "hopper"}},
    {gradients, {"--kernels", "hoper"}, {"did you mean 'hopper'?"}},
    {gradients, {"--kernels", "hopper"}, {"--kernels", "--backend cuda"}},
    {compare_layouts,
     {"--backend", "cuda", "--kernels", "portable", "--transport", "copy", "--ranks", "64", "--input", "normal",
      "--tokens", "4096"},
     {}},  // no CUDA, no GPU, or too few of them
    {throughput, {"--beside", "luck"}, {"'luck'", "ceilings"}},
    {throughput, {"--seconds", "0"}, {"--seconds 0"}},
    {throughput, {"--warm-up", "nan"}, {"--warm-up nan"}},
    {throughput, {"--rounds", "0"}, {"--rounds 0"}},
    {throughput, {"--ranks", "4", "--tokens-per-rank", "1001"}, {"4004", "zigzag"}},
    {validate, {"--ranks", "1"}, {"--ranks 2"}},
    {validate, {"--ranks", "4096"}, {"GPU"}},
    {validate, {"--backend", "cpu", "--ranks", "4096"}, {"--ranks 4096", "processor of its own", "compare_layouts"}},
    {validate, {"--backend", "cpu", "--transports", "copy"}, {"--transports copy", "cpu", "threads"}},
    {validate, {"--transports", "threads"}, {"--transports threads", "cuda", "copy, nccl"}},
    {validate, {"--measured", "missing.h5"}, {"missing.h5"}},
    {validate, {"--measured", "missing.h5", "--layouts", "zigzag"}, {"--measured", "--layouts"}},
    {validate, {"--measured", "all", "--without", "each", "--machines", "ideal"}, {"--without", "--machines"}},
    {validate, {"--measured", "all", "--explain", "--transports", "nccl"}, {"--explain", "--transports"}},
    {validate, {"--backend", "abacus"}, {"'abacus'", "cpu"}},
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
    {"key.cfg", "colour = 3\n", {"--config", "key.cfg"}, {"key.cfg", "colour"}},
    {"value.cfg", "repeats = many\n", {"--config", "value.cfg"}, {"value.cfg", "many", "repeats"}},
    {"words.cfg", "just words\n", {"--config", "words.cfg"}, {"words.cfg", "just words"}},
    {"preset.cfg", "layers = 80\n", {"--preset", "preset.cfg"}, {"preset.cfg", "layers"}},
    {"short.txt", positions(0, 63), {"--layouts", "file:short.txt"}, {"short.txt", "63", "64"}},
    {"long.txt", positions(0, 65), {"--layouts", "file:long.txt"}, {"long.txt"}},
    {"twice.txt", positions(0, 63) + "7\n", {"--layouts", "file:twice.txt"}, {"twice.txt", "7 twice"}},
    {"letters.txt", "zero one\n", {"--layouts", "file:letters.txt"}, {"letters.txt", "zero"}},
    {"empty.txt", "", {"--layouts", "file:empty.txt"}, {"empty.txt"}},
    {"lengths.txt", "30 thirty", {"--masks", "documents:@lengths.txt"}, {"thirty"}},
    {"text.h5", "not HDF5", {"--input", "text.h5"}, {"text.h5"}},
    {"empty.h5", "", {"--input", "empty.h5"}, {"empty.h5"}},
    {"q.npy", "\x93NUMPY\x01", {"--input", "q.npy"}, {"'q.npy' is not HDF5", "h5py.File('qkv.h5', 'w')"}},
    {"folder", "", {"--save-tensors", "folder"}, {"folder", "is a file"}},
};

const std::vector<BadFile> bad_machines{
    {"empty.toml", "", {}, {"empty.toml", "missing"}},
    {"syntax.toml", "[topology\nhosts = ", {}, {"syntax.toml"}},
    {"type.toml", "name = 3\n", {}, {"type.toml", "name"}},
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
    const auto ending = run(folder, gradients, {"--input", "a\nb\x1b[2J\xff\xc3\xa9\xc3", "-o", "r.h5"});
    BOOST_TEST(ending.status == 1);
    BOOST_TEST(contains(ending.err, "'a b [2J?\xc3\xa9?'"), ending.err);
    BOOST_TEST(lines_beside_progress(ending.err).size() == 1u, ending.err);
}

BOOST_AUTO_TEST_CASE(a_simulated_time_that_no_timeline_holds_is_an_error) {
    const Words longest{
        "--ranks", "16",        "--tokens-per-rank", "128Mi",      "--heads",      "128:8", "--compute-model",
        "rate",    "--layouts", "striped",           "--machines", "h200_cluster", "-o",    "r.h5"};
    for (const auto* engine : {"events", "symmetric"}) {
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

BOOST_AUTO_TEST_CASE(a_foreign_or_truncated_record_is_refused_and_left_as_it_is) {
    const Folder folder;
    const auto record = small + Words{"-o", "r.h5"};
    BOOST_TEST(run(folder, gradient_equivalence, record).status == 0);
    const auto whole = contents_of(folder / "r.h5");
    for (const auto& contents : {std::string("a text"), std::string(), whole.substr(0, whole.size() / 2)}) {
        write_file(folder / "r.h5", contents);
        check_refusal(gradient_equivalence, run(folder, gradient_equivalence, record + Words{"--resume"}), {"r.h5"});
        BOOST_TEST((contents_of(folder / "r.h5") == contents));
    }
    BOOST_TEST(folder.left() == Words{"r.h5"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::cli::test
