#include "experiments/options/values.hpp"

#include "experiments/options/options.hpp"
#include "layouts/basics/registry.hpp"

#include <algorithm>
#include <limits>

namespace ringlab::experiments {

layouts::Interval parse_range(const std::string& text, const std::string& what) {
    if (text.empty()) return {0, std::numeric_limits<std::int64_t>::max()};
    const auto dash = text.find('-');
    require(dash != std::string::npos, "{} is '{}'; it must be FIRST-LAST, as in 0-7", what, text);
    const auto first = layouts::parse_count(std::string_view(text).substr(0, dash), what, 0);
    const auto last = layouts::parse_count(std::string_view(text).substr(dash + 1), what, first);
    return {first, std::min(last, std::numeric_limits<std::int64_t>::max() - 1) + 1};
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
