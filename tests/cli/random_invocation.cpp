#include "random_invocation.hpp"

#include "tests/layouts/mask_oracles.hpp"
#include "tests/registered.hpp"

#include <algorithm>
#include <map>

namespace ringlab::cli::test {
namespace {

/// The parts of a text between bars.
Words parts_of(const std::string& text) {
    Words parts{""};
    for (const char c : text)
        if (c == '|')
            parts.emplace_back();
        else
            parts.back() += c;
    return parts;
}

const auto numbers = parts_of(
    "0|1|2|3|4|-1|7|16|60|64|4k|8Ki|8,192|1024|1e9|1000000000|2147483647|2147483648|1048576|1048577|4294967296|"
    "9223372036854775807|9223372036854775808|1Gi|99999999999999999999|-9223372036854775808|0.5|1e-300|1e300|1e18|nan|"
    "inf|-inf|| |0x10|1,2|1000000000000000");
/// What is typed wrongly, or at a limit; what is right is asked of the registries.
const auto odd_layouts = parts_of(
    "striped:16|striped:0|striped:-1|striped:9223372036854775807|striped:4k|zigzag:1|spiral|file:fuzz.txt|file:|file:.|"
    "file:/dev/null|zig|striped:|:");
const auto odd_schedules = parts_of(
    "all-gather:1000000000|ring:1|ulysses:0|ulysses:9223372036854775807|double-ring|double-ring:-3|bidirectional:2|"
    "seen:9223372036854775807|seen:-1|pass-q:|ulyses:2|joined-ring:3|expanded:|expanded:expanded:ring");
const auto mask_specs = parts_of(
    "full|causal|window:8,0|window:0,0|window:8,0+sink:4|sink:3|prefix:5|prefix:0|block-causal:32x2|documents:30,34|"
    "causal+documents:1x64|documents:0|documents:@fuzz.txt|documents:1x99999999999|documents:9223372036854775807x2|"
    "valid:0-10|valid:5-3|window:9223372036854775807,9223372036854775807|sink:9223372036854775807|causal+|+|casual|"
    "documents:input|causal+causal+causal|window:,|valid:0-64+valid:63-64+full|valid:63-64|padded-segments:64/0|"
    "padded-segments:32/5,32|shared-question:16,24x2|prefix-documents:8,24,32,0|prefix-documents:8,24,31,1|chunks:7|"
    "chunks:9223372036854775807");
const auto words = parts_of(
    "normal|real|outlier|sink|offset|ring|pull|all-gather|all-gather:2|all-gather:0|all-gather:1000000000|fp64|fp32|"
    "bf16|fp16|fp8|carry|partials|running|strided|consecutive|threads|mpi|loopback|cpu|cuda|ideal|h200_cluster|"
    "h200_nvswitch_nccl|fuzz.toml|fuzz.cfg|fuzz.h5|fuzz.txt|tiles|rate|events|unshared|llama-3.1-8b|4:2|8:8|4:3|1:1|"
    "1000000:1000000|:|4:|0-1|5-2|0-9223372036854775807|%s%n|{}|\xff\xfe|a\nb|/|.|/dev/null|/proc/self/mem");

/// What such an option names is written, so that a fuzz must not draw names of which one may be a device.
bool is_written(const std::string& option) {
    return option == "-o" || option == "--trace" || option == "--save-tensors";
}

/// One of those above, or a join that fits the tokens of small_run().
std::string random_mask(Random& random) {
    if (below(random, 2) == 0) return any_of(random, mask_specs);
    mask_oracles::Random draws(random());
    return mask_oracles::random_join(draws, 64, 4);
}

template <class Factory>
std::string right_or_odd(Random& random, const layouts::Registry<Factory>& registry, const Words& odd) {
    return any_of(random, below(random, 3) == 0 ? odd : ringlab::tests::examples_in(registry));
}

/// Values that an option may be given, sensible ones and others.
std::string value_for(Random& random, const std::string& option) {
    if (!is_written(option) && below(random, 6) == 0) return any_of(random, words);
    if (option == "--layouts") return right_or_odd(random, layouts::layouts(), odd_layouts);
    if (option == "--schedules") return right_or_odd(random, layouts::schedules(), odd_schedules);
    if (option == "--masks") return random_mask(random);
    static const std::map<std::string, Words> by_option{
        {"--sinks", {"normal", "1.5", "-800", "1,2,3,4", "1,2", "inf", "1e308", "none", ""}},
        {"--latent", {"8+4", "16", "0+4", "8+8", "8+9223372036854775807", "none", "+", "1"}},
        {"--rotary",
         {"none", "100", "10000+dims:4", "100+first:2+pairs:interleaved", "100+pairs:thirds", "1+", "100+dims:-2",
          "100+scaling:linear:4", "100+scaling:llama3:8,1,4,64", "100+scaling:yarn:1e308,1e-308",
          "100+scaling:ntk:", "100+scaling:llama3:8,4,1,64+positions:documents", "+", "100+positions:local"}},
        {"--slow-gpus", {"0", "1", "1:2", "1:0.5", "2:1e300", "-1", "9:", ":"}},
        {"--gpus", {"0", "1", "8", "9", "-1", "1000000000"}},
        {"--span-ranks", {"0", "1", "2", "64", "-1", "9223372036854775807", "none"}},
        {"--heads",
         {"4:2", "1:1", "8", "4:3", "1000000:1000000", "1000000000000000", "0:0", "-4:2", "9223372036854775807"}},
        {"--input", {"normal", "outlier", "sink", "offset", "fuzz.h5", "real", "nothere.h5", "fuzz.txt"}},
        {"--arithmetic", {"fp64", "fp32", "bf16", "fp16", "fp8"}},
        {"--machines", {"ideal", "h200_cluster", "h200_nvswitch_nccl", "fuzz.toml", "abacus"}},
        {"--compute-model", {"tiles", "rate", "guess"}},
        {"--engine", {"events", "unshared"}},
        {"--policies", {"carry", "gradients", "partials", "running", "hope"}},
        {"--preset", {"llama-3.1-8b", "deepseek-v3", "fuzz.cfg", "fuzz.cfg", "gpt-9", "."}},
        {"--judge-limit", {"none", "1", "63", "0", "-1"}},
        {"--placement", {"consecutive", "strided", "file:fuzz.txt", "file:"}},
        {"--clock", {"calibrated", "sustained", "cuckoo"}},
        {"--trace", {"trace.json", "fuzz.h5", "missing/t.json", "."}},
        {"--save-tensors", {"tensors", "fuzz.h5", "missing/t"}},
        {"-o", {"out.h5", "missing/out.h5", ".", "fuzz.h5", "fuzz.txt"}},
    };
    const auto found = by_option.find(option);
    return any_of(random, found == by_option.end() ? numbers : found->second);
}

const auto common = parts_of(
    "--tokens|--tokens-per-rank|--batch|--heads|--head-dim|--value-dim|--scale|--soft-cap|--preset|--masks|-o|--resume|"
    "--overwrite|--nonsense|--help|--version");
const auto laid_out = parts_of("--layouts|--schedules|--schedules|--ranks|--pad");
const auto around = parts_of("--queries|--latent|--sinks|--dropout|--rotary|--rotary");
const auto measured = parts_of(
    "--input|--seed|--arithmetic|--replicas|--placement|--repeats|--timeout|--judge-limit|--save-tensors|--transport|"
    "--backend");
const auto predictions = parts_of("--machines|--compute-model|--engine|--trace|--span-ranks");
const auto disturbances = parts_of(
    "--policies|--clock|--replicas|--placement|--slow-gpus|--slow-links|--compute-noise|--start-skew|--transfer-noise|"
    "--repeats|--seed");

bool is_flag(const std::string& option) {
    for (const auto* flag : {"--pad", "--resume", "--overwrite", "--help", "--version", "--nonsense"})
        if (option == flag) return true;
    return false;
}

/// Sweeps of one small run, so that most of what is changed about them still ends in milliseconds.
Invocation small_run(Random& random) {
    switch (below(random, 11)) {
        case 9:
            return {decode, {"--tokens", "64",         "--ranks",    "2",       "--layouts", "zigzag",    "--schedules",
                             "merge",    "--head-dim", "8",          "--heads", "4:2",       "--repeats", "1",
                             "--steps",  "1",          "--machines", "ideal",   "-o",        "out.h5"}};
        case 10:
            return {advise,
                    {"--tokens", "4096", "--ranks", "2", "--layouts", "zigzag", "--schedules", "ring", "--head-dim",
                     "64", "--heads", "4:2", "-o", "out.h5"}};
        case 8:  // which gets as far as there are GPUs
            return {throughput,
                    {"--ranks", "1", "--tokens-per-rank", "64", "--layouts", "zigzag", "--masks", "causal", "--shapes",
                     "4:2/64", "--seconds", "0.001", "-o", "out.h5"}};
        case 0:
        case 1:
        case 2:
            return {predict,
                    {"--tokens", "64", "--ranks", "2", "--layouts", "zigzag", "--masks", "causal", "--machines",
                     "ideal", "--head-dim", "8", "--heads", "4:2", "-o", "out.h5"}};
        case 3:
            return {bf16_error,
                    {"--tokens", "64", "--ranks", "2", "--layouts", "zigzag", "--masks", "causal", "--input", "normal",
                     "--head-dim", "8", "--heads", "4:2", "--policies", "carry", "-o", "out.h5"}};
        case 4:
            return {compare_layouts,
                    {"--tokens",  "64",      "--ranks",    "2",          "--layouts", "zigzag",  "--masks",
                     "causal",    "--input", "normal",     "--head-dim", "8",         "--heads", "4:2",
                     "--repeats", "1",       "--machines", "ideal",      "-o",        "out.h5"}};
        case 5:
            return {calibrate,
                    {"--tokens", "16", "32", "--masks", "causal", "full", "window:5,0", "--head-dim", "8", "--heads",
                     "1:1", "--repeats", "1", "-o", "out.toml"}};
        default:
            return {gradient_equivalence,
                    {"--tokens", "64", "--ranks", "2", "--layouts", "zigzag", "--masks", "causal", "--schedules",
                     "ring", "--input", "normal", "--head-dim", "8", "--heads", "4:2", "-o", "out.h5"}};
    }
}

/// Takes an option and its values away, if it is there.
void remove(Words& arguments, const std::string& option) {
    const auto begin = std::find(arguments.begin(), arguments.end(), option);
    if (begin == arguments.end()) return;
    auto end = std::next(begin);
    while (end != arguments.end() && !end->starts_with("-")) ++end;
    arguments.erase(begin, end);
}

void change(Invocation& one, Random& random) {
    auto options = common;
    if (one.program != calibrate) options = options + laid_out;
    if (one.program != predict) options = options + measured;
    if (one.program == predict || one.program == compare_layouts) options = options + predictions;
    if (one.program == predict) options = options + disturbances;
    if (one.program != throughput && one.program != calibrate) options = options + around;
    if (one.program == advise) options = options + Words{"--gpus", "--layers", "--keep", "--resident"};
    for (auto changes = 1 + below(random, 3); changes > 0; --changes) {
        const auto option = any_of(random, options);
        remove(one.arguments, option);
        if (below(random, 12) == 0) continue;
        one.arguments.push_back(option);
        if (is_flag(option)) continue;
        one.arguments.push_back(value_for(random, option));
        if (!is_written(option) && below(random, 12) == 0) one.arguments.back() = mutated(one.arguments.back(), random);
        // An argument ends where its string does.
        one.arguments.back() = one.arguments.back().substr(0, one.arguments.back().find('\0'));
    }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Invocation& one) {
    out << fs::path(one.program).filename().string();
    for (const auto& argument : one.arguments) {
        out << " '";
        for (const char c : argument)
            if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) > 126)
                out << "\\x" << std::hex << int(static_cast<unsigned char>(c)) << std::dec;
            else
                out << c;
        out << "'";
    }
    return out;
}

Invocation random_invocation(Random& random) {
    auto one = small_run(random);
    change(one, random);
    return one;
}

}  // namespace ringlab::cli::test
