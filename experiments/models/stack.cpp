#include "experiments/models/stack.hpp"

#include "experiments/files/resources.hpp"
#include "layouts/basics/registry.hpp"
#include "layouts/basics/require.hpp"
#include "layouts/basics/text_file.hpp"
#include "layouts/basics/typed_names.hpp"

#include <algorithm>
#include <sstream>

namespace ringlab::experiments {
namespace {

/// Without comments, in words.
std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> words;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream rest(line.substr(0, line.find('#')));
        for (std::string word; rest >> word;) words.push_back(word);
    }
    return words;
}

std::int64_t shorter(std::string_view length, std::int64_t factor, const std::string& what) {
    return std::max<std::int64_t>(1, layouts::parse_count(length, what, 0) / factor);
}

std::string term_scaled_down(const std::string& term, std::int64_t factor) {
    const auto spec = layouts::Spec::parse(term);
    const std::string_view arguments = spec.arguments;
    if (spec.arguments.empty()) return term;
    if (spec.name == "chunks" || spec.name == "sink")
        return fmt::format("{}:{}", spec.name, shorter(arguments, factor, "a length in mask " + term));
    require(spec.name == "window", "mask {} cannot be scaled down; windows, chunks and sinks can", term);
    const auto comma = std::min(arguments.find(','), arguments.size() - 1);
    // The row's own token is one of the window's.
    const auto left = layouts::parse_count(arguments.substr(0, comma), "the window's LEFT", 0) + 1;
    const auto right = layouts::parse_count(arguments.substr(comma + 1), "the window's RIGHT", 0);
    return fmt::format("window:{},{}", std::max<std::int64_t>(1, left / factor) - 1, right / factor);
}

}  // namespace

Stack parse_stack(const std::string& text, const std::string& file) {
    constexpr const char* right =
        "write it as '46 layers: LOCAL GLOBAL' or '62 layers: 5x LOCAL GLOBAL', with names of presets";
    const auto words = words_of(text);
    require(words.size() >= 3 && words[1] == "layers:", "stack '{}' does not begin with a number of layers; {}", file,
            right);
    const auto count = layouts::parse_count(words[0], "the layers of stack '" + file + "'", 1);
    require(count <= 10000, "stack '{}' has {} layers; at most 10000 are supported", file, count);
    Stack stack;
    std::vector<std::size_t> pattern;
    std::int64_t times = 1;
    for (std::size_t i = 2; i < words.size(); ++i) {
        const auto& word = words[i];
        if (word.size() > 1 && word.back() == 'x' && word.find_first_not_of("0123456789") == word.size() - 1) {
            times = layouts::parse_count(std::string_view(word).substr(0, word.size() - 1), "layers of one kind", 1);
            require(times <= count && i + 1 < words.size(),
                    "stack '{}': {} before no preset, or more than its {} layers; {}", file, word, count, right);
            continue;
        }
        const auto known = std::find(stack.kinds.begin(), stack.kinds.end(), word);
        const auto kind = static_cast<std::size_t>(known - stack.kinds.begin());
        if (known == stack.kinds.end()) stack.kinds.push_back(word);
        pattern.insert(pattern.end(), static_cast<std::size_t>(times), kind);
        times = 1;
    }
    for (std::size_t layer = 0; layer < static_cast<std::size_t>(count); ++layer)
        stack.layers.push_back(pattern[layer % pattern.size()]);
    require(pattern.size() <= stack.layers.size(), "stack '{}' lists {} layers and has {}; {}", file, pattern.size(),
            count, right);
    return stack;
}

Stack load_stack(const std::string& name) {
    const auto path = find_resource(name, "stacks", ".stack");
    return parse_stack(layouts::read_text(path, "stack"), path);
}

StackSchedules choose_schedules(const Stack& stack, const std::vector<std::vector<PassSeconds>>& seconds) {
    StackSchedules best;
    for (const auto& of_kind : seconds) {
        auto& chosen = best.chosen.emplace_back();
        for (std::size_t pass = 0; pass < chosen.size(); ++pass)
            chosen[pass] = static_cast<std::size_t>(
                std::ranges::min_element(of_kind, {}, [&](const PassSeconds& one) { return one[pass]; }) -
                of_kind.begin());
    }
    std::vector<double> by_schedule(seconds.front().size(), 0);
    for (const auto kind : stack.layers) {
        for (std::size_t pass = 0; pass < best.seconds.size(); ++pass)
            best.seconds[pass] += seconds[kind][best.chosen[kind][pass]][pass];
        for (std::size_t i = 0; i < by_schedule.size(); ++i)
            by_schedule[i] += seconds[kind][i][0] + seconds[kind][i][1];
    }
    const auto single = std::ranges::min_element(by_schedule);
    best.single = static_cast<std::size_t>(single - by_schedule.begin());
    best.single_seconds = *single;
    return best;
}

std::string scaled_down(const std::string& mask, std::int64_t factor) {
    std::istringstream terms(mask);
    std::string scaled;
    for (std::string term; std::getline(terms, term, '+');)
        scaled += (scaled.empty() ? "" : "+") + term_scaled_down(term, factor);
    return scaled;
}

layouts::Problem one_kv_head(layouts::Problem problem) {
    const auto group = problem.query_heads_per_kv_head();
    problem.query_heads = group;
    problem.kv_heads = 1;
    if (!problem.sinks.empty()) problem.sinks.resize(static_cast<std::size_t>(group));
    return problem;
}

std::int64_t kept_bytes(const layouts::Problem& p, std::int64_t tokens) {
    const auto numbers = p.query_heads * (p.head_dim + p.value_dim) + p.kv_heads * (p.head_dim + p.value_dim);
    constexpr std::int64_t lse_bytes = 4;
    return p.batch * tokens * (numbers * layouts::bytes_of(p.dtype) + p.query_heads * lse_bytes);
}

}  // namespace ringlab::experiments
