#include "experiments/options/values.hpp"

#include "experiments/options/options.hpp"
#include "layouts/basics/registry.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace ringlab::experiments {

namespace {

/// The whole of `text` as a number; nothing if it is none.
std::optional<double> number_in(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc{} && end == text.data() + text.size();
    return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

/// A term "NAME:VALUE" of --rotary.
void read_rotary_term(const std::string& term, layouts::Rotary& rotary) {
    const auto colon = term.find(':');
    const auto name = term.substr(0, colon), value = colon == std::string::npos ? "" : term.substr(colon + 1);
    switch (parse_choice(name, "a term of --rotary", {"dims", "first", "pairs", "positions", "scaling"})) {
        case 0: rotary.dims = layouts::parse_count(value, "dims of --rotary", 1); break;
        case 1: rotary.first = layouts::parse_count(value, "first of --rotary", 0); break;
        case 2:
            rotary.pairs = layouts::Rotary::Pairs{
                static_cast<int>(parse_choice(value, "pairs of --rotary", {"half", "interleaved"}))};
            break;
        case 3:
            rotary.positions = layouts::Rotary::Positions{
                static_cast<int>(parse_choice(value, "positions of --rotary", {"global", "documents"}))};
            break;
        default: rotary.scaling = layouts::parse_rotary_scaling(value);
    }
}

}  // namespace

void parse_stragglers(const std::string& text, const std::string& option, int& number, double& factor) {
    if (text.empty()) return;
    const auto parts = fields_of(text, ':');
    const auto slow = layouts::parse_count(parts.front(), option, 0);
    const auto slower = parts.size() == 1 ? factor : number_in(parts.back()).value_or(0);
    require(parts.size() <= 2 && slow <= 1 << 20 && slower >= 1 && slower <= 1e6,
            "{} {}: must be N or N:FACTOR, with a factor from 1 to 1000000", option, text);
    number = static_cast<int>(slow);
    factor = slower;
}

layouts::Rotary parse_rotary(const std::string& text) {
    layouts::Rotary rotary;
    if (text.empty() || text == "none") return rotary;
    const auto terms = fields_of(text, '+');
    const auto base = number_in(terms.front());
    require(base && *base > 0,
            "--rotary {}: must begin with the base, a number above 0 as in 10000+dims:64, or be none", text);
    rotary.base = *base;
    for (std::size_t i = 1; i < terms.size(); ++i) read_rotary_term(terms[i], rotary);
    return rotary;
}

std::pair<std::int64_t, std::int64_t> parse_heads(const std::string& text) {
    const auto colon = text.find(':');
    const auto query = layouts::parse_count(std::string_view(text).substr(0, colon), "the number of query heads", 1);
    if (colon == std::string::npos) return {query, query};
    return {query, layouts::parse_count(std::string_view(text).substr(colon + 1), "the number of kv heads", 1)};
}

std::size_t parse_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices) {
    const auto found = std::find(choices.begin(), choices.end(), value);
    if (found == choices.end()) fail("{}", unknown_choice(value, what, choices));
    return static_cast<std::size_t>(found - choices.begin());
}

std::vector<std::string> fields_of(const std::string& text, char separator) {
    std::vector<std::string> fields{""};
    for (const char c : text) {
        if (c == separator)
            fields.emplace_back();
        else
            fields.back() += c;
    }
    return fields;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

double percentile(std::vector<double> values, double percent) {
    std::sort(values.begin(), values.end());
    const auto at = percent / 100 * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const auto above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace ringlab::experiments
