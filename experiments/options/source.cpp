#include "experiments/options/source.hpp"

#include "experiments/files/resources.hpp"
#include "experiments/inputs/inputs_random.hpp"
#include "experiments/options/values.hpp"
#include "layouts/basics/checked_arithmetic.hpp"
#include "layouts/basics/typed_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>

namespace ringlab::experiments {

namespace {

constexpr std::int64_t generated_tokens = 512;

/// The longest sequence that is asked for; 0 if that is up to the input.
std::int64_t longest(const SweepConfig& sweep) {
    std::int64_t most = 0;
    for (const auto tokens : sweep.tokens) most = std::max(most, tokens);
    for (const auto tokens : sweep.tokens_per_rank)
        for (const auto ranks : sweep.ranks)
            most = std::max(most, layouts::checked_product({tokens, ranks}).value_or(tokens));
    return most;
}

/// Whether the mask can be made for every length that is asked for: one that is a list of lengths is for their sum.
bool fits(const std::string& mask, const SweepConfig& sweep, const InputData& data) {
    try {
        for (const auto ranks : sweep.ranks)
            for (const auto tokens : sequence_lengths(sweep, ranks, data.problem.tokens))
                layouts::make_mask(expand_mask(mask, tokens, data.document_lengths), tokens);
    } catch (const Error&) {
        return false;
    }
    return true;
}

}  // namespace

void fit_to_inputs(Config& config) {
    const auto given = [&](const char* option) { return config.given.contains(option); };
    const auto note = [&]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
        config.notes.push_back(fmt::format(text, std::forward<Args>(args)...));
    };
    if (given("preset") && !given("input") && std::erase(config.sweep.inputs, "real") > 0) {
        if (config.sweep.inputs.empty()) config.sweep.inputs.push_back("normal");
        note("the preset's sizes are not those of the real input: inputs are generated, {} (--input names others)",
             fmt::join(config.sweep.inputs, ", "));
    }
    if (given("input") && !given("heads")) config.problem.heads.clear();
    const Source source(config.problem, config.sweep.inputs, config.execution.replicas);
    const bool from_file = source.tokens() > 0;
    // Several lengths by default are a sweep that the experiment needs.
    if (!given("tokens") && !given("tokens-per-rank") && config.sweep.tokens.size() <= 1 &&
        config.sweep.tokens_per_rank.empty()) {
        if (given("input") && from_file) config.sweep.tokens.clear();
        if (!from_file && (config.sweep.tokens.empty() || given("preset"))) {
            config.sweep.tokens = {generated_tokens};
            note("{} tokens, as generated inputs have no length of their own (--tokens says another)",
                 generated_tokens);
        }
    }
    const auto most = longest(config.sweep);
    for (const auto& input : config.sweep.inputs) {
        const auto data = source.inspect(input);
        if (!given("masks") && data.document_lengths.empty() && std::erase_if(config.sweep.masks, [](const auto& mask) {
                                                                    return mask.find("documents:input") != mask.npos;
                                                                }) > 0)
            note("masks of documents:input are left out, as input {} has no documents", input);
        if (!given("masks")) {
            auto fitting = config.sweep.masks;
            std::erase_if(fitting, [&](const auto& mask) { return !fits(mask, config.sweep, data); });
            // A length that no mask can have is an error, which making one of them tells.
            if (!fitting.empty()) {
                for (const auto& mask : config.sweep.masks)
                    if (std::find(fitting.begin(), fitting.end(), mask) == fitting.end())
                        note("mask {} is left out, as it is for another number of tokens", mask);
                config.sweep.masks = fitting;
            }
        }
        if (most > 0 && most < data.problem.tokens)
            note("of the {} tokens of input {} the first {} are taken (--tokens {} takes all)", data.problem.tokens,
                 input, most, data.problem.tokens);
    }
}

layouts::DType dtype_from(const std::string& arithmetic) {
    using layouts::DType;
    constexpr DType dtypes[] = {DType::fp64, DType::fp32, DType::bf16, DType::fp16};
    return dtypes[parse_choice(arithmetic, "--arithmetic", {"fp64", "fp32", "bf16", "fp16"})];
}

std::string Source::path_of(const std::string& input) const {
    if (input == "real") return find_resource("real_attention", "data", ".h5");
    for (const auto& kind : input_kinds())
        if (kind.name == input) return "";
    if (std::filesystem::exists(input) && !std::filesystem::is_directory(input)) return input;
    std::vector<std::string> names{"real"};
    for (const auto& kind : input_kinds()) names.push_back(kind.name);
    const auto hint = layouts::did_you_mean(input, names);
    fail("input '{}' is neither a file nor one of those that Ringlab knows{} {}", input,
         hint.empty() ? ":" : hint + " Known:", fmt::join(names, ", "));
}

namespace {

/// What --sinks says, for so many query heads.
std::vector<double> sinks_of(const ProblemConfig& config, std::int64_t query_heads) {
    const auto count = static_cast<std::size_t>(query_heads);
    std::vector<double> sinks;
    if (config.sinks == std::vector<std::string>{"normal"}) {
        for (std::size_t head = 0; head < count; ++head)
            sinks.push_back(random_normal(config.seed, {.tensor = 255, .head = static_cast<std::uint32_t>(head)}));
        return sinks;
    }
    std::istringstream words(fmt::format("{}", fmt::join(config.sinks, ",")));
    for (std::string word; std::getline(words, word, ',');) {
        double value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        require(error == std::errc{} && end == word.data() + word.size() && std::isfinite(value),
                "--sinks {}: must be finite numbers, one for all query heads or one for each, or normal", word);
        sinks.push_back(value);
    }
    require(sinks.size() <= 1 || sinks.size() == count,
            "--sinks: there are {} logits for {} query heads; give one for all of them, one for each, or normal",
            sinks.size(), count);
    if (sinks.size() == 1) sinks.resize(count, sinks.front());
    return sinks;
}

}  // namespace

layouts::Problem problem_from(const ProblemConfig& config) {
    layouts::Problem problem;
    std::tie(problem.query_heads, problem.kv_heads) = parse_heads(!config.heads.empty()      ? config.heads
                                                                  : config.latent.is_given() ? "4:4"
                                                                                             : "4:2");
    problem.batch = config.batch;
    problem.head_dim = config.head_dim == 0 ? 128 : config.head_dim;
    problem.value_dim = config.value_dim == 0 ? problem.head_dim : config.value_dim;
    problem.scale = config.scale;
    problem.soft_cap = config.soft_cap.value_or(0);
    problem.dtype = dtype_from(config.arithmetic);
    problem.rotary = config.rotary;
    problem.latent = config.latent;
    problem.dropout = config.dropout;
    problem.sinks = sinks_of(config, problem.query_heads);
    return problem;
}

void Source::apply_overrides(const std::string& input, layouts::Problem& problem) const {
    require(!config_.latent.is_given(),
            "--latent {}: input '{}' holds K and V; latents are generated, by --input normal", config_.latent_spec,
            input);
    const auto require_same = [&](const char* option, std::int64_t asked, std::int64_t held) {
        require(asked == 0 || asked == held,
                "{} {} does not fit input '{}', which has {}; leave it out, or say --input normal", option, asked,
                input, held);
    };
    if (!config_.heads.empty()) {
        const auto [query_heads, kv_heads] = parse_heads(config_.heads);
        require(query_heads == problem.query_heads && kv_heads == problem.kv_heads,
                "--heads {} does not fit input '{}', which has {}:{}; leave it out, or say --input normal",
                config_.heads, input, problem.query_heads, problem.kv_heads);
    }
    require_same("--batch", config_.batch == 1 ? 0 : config_.batch, problem.batch);  // 1 is the default
    require_same("--head-dim", config_.head_dim, problem.head_dim);
    require_same("--value-dim", config_.value_dim, problem.value_dim);
    if (config_.scale != 0) problem.scale = config_.scale;
    if (config_.soft_cap) problem.soft_cap = *config_.soft_cap;
    problem.rotary = config_.rotary;
    problem.dropout = config_.dropout;
    problem.sinks = sinks_of(config_, problem.query_heads);
}

InputData Source::inspect(const std::string& input) const {
    const auto path = path_of(input);
    if (path.empty()) return {problem_from(config_), {}, {}};
    if (!inspected_.contains(input))
        inspected_[input] =
            inspect_inputs(path, {.tokens = 0, .dtype = dtype_from(config_.arithmetic), .seed = config_.seed});
    auto data = inspected_.at(input);
    apply_overrides(input, data.problem);
    return data;
}

std::int64_t Source::tokens() const {
    std::int64_t shortest = 0;
    for (const auto& input : inputs_) {
        const auto tokens = inspect(input).problem.tokens;
        if (tokens > 0) shortest = shortest == 0 ? tokens : std::min(shortest, tokens);
    }
    return shortest;
}

const std::vector<InputData>& Source::get(const Case& setup, const layouts::Problem& plan) {
    auto name = fmt::format("{} {} {}", setup.input, setup.tokens, plan.tokens);
    for (const auto& rows : plan.queries) name += fmt::format(" {}-{}", rows.begin, rows.end);
    if (name == held_name_) return held_;
    held_.clear();
    const auto path = path_of(setup.input);
    for (int replica = 0; replica < replicas_; ++replica) {
        const auto seed = config_.seed + static_cast<std::uint64_t>(replica);
        InputData data;
        if (path.empty()) {
            auto problem = problem_from(config_);
            problem.tokens = setup.tokens;
            problem.queries = plan.queries;
            data = generate_inputs(setup.input, problem, seed);
        } else {
            data = load_inputs(path, {setup.tokens, dtype_from(config_.arithmetic), seed});
            apply_overrides(setup.input, data.problem);
        }
        if (plan.tokens > setup.tokens) pad_inputs(data, plan.tokens);
        keep_queries(data, plan.queries);
        held_.push_back(std::move(data));
    }
    held_name_ = name;
    return held_;
}

std::map<std::string, std::string> Source::files() const {
    std::map<std::string, std::string> files;
    for (const auto& input : inputs_)
        if (const auto path = path_of(input); !path.empty()) files[input] = path;
    return files;
}

}  // namespace ringlab::experiments
