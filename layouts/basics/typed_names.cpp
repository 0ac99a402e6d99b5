#include "layouts/basics/typed_names.hpp"

#include "layouts/basics/checked_arithmetic.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace ringlab::layouts {
namespace {

std::string lower(std::string_view text) {
    std::string low(text);
    for (auto& c : low) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return low;
}

/// Edit distance: the fewest letters to change, delete, insert or swap with a neighbour that turn `a` into `b` (optimal
/// string alignment).
std::size_t edits(std::string_view a, std::string_view b) {
    std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i)
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            cost[i][j] =
                std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    return cost[a.size()][b.size()];
}

/// Whether the commas in `text` separate groups of three digits, as in 1,234,567.
bool is_grouped(std::string_view text) {
    const auto first = text.find(',');
    if (first == 0 || first > 3 || (text.size() - first) % 4 != 0) return false;
    for (std::size_t i = 0; i < text.size(); ++i)
        if ((i >= first && (i - first) % 4 == 0) != (text[i] == ',')) return false;
    return true;
}

}  // namespace

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
    constexpr std::size_t longest = 64;
    if (name.empty() || name.size() > longest) return "";
    const auto typed = lower(name);
    const std::string* nearest = nullptr;
    std::size_t distance = std::max<std::size_t>(1, name.size() / 3) + 1;
    for (const auto& other : known) {
        const auto candidate = lower(other);
        const bool cut_short = typed.size() > 1 && candidate.starts_with(typed);
        const auto apart = cut_short ? 1 : edits(typed, candidate);
        if (apart >= distance || apart >= other.size()) continue;
        distance = apart;
        nearest = &other;
    }
    return nearest ? fmt::format(", did you mean '{}'?", *nearest) : "";
}

std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& known) {
    const auto hint = did_you_mean(name, known);
    return fmt::format("unknown {} '{}'{} {}: {}", kind, name, hint.empty() ? ";" : hint,
                       hint.empty() ? "known" : "Known", fmt::join(known, ", "));
}

std::optional<std::int64_t> whole_number(std::string_view text, bool grouped) {
    struct Unit {
        std::string_view suffix;
        std::int64_t factor;
    };
    constexpr Unit units[] = {{"Ki", 1 << 10}, {"Mi", 1 << 20},  {"Gi", 1 << 30},     {"k", 1000},
                              {"K", 1000},     {"M", 1'000'000}, {"G", 1'000'000'000}};
    std::int64_t factor = 1, value = 0;
    for (const auto& unit : units)
        if (text.ends_with(unit.suffix)) {
            factor = unit.factor;
            text.remove_suffix(unit.suffix.size());
            break;
        }
    std::string digits(text);
    if (grouped && text.find(',') != std::string_view::npos) {
        if (!is_grouped(text)) return {};
        std::erase(digits, ',');
    }
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size()) return {};
    return checked_product({value, factor});
}

std::string unit_hint(std::int64_t a, std::int64_t b) {
    const auto [decimal, binary] = std::minmax(a, b);
    std::int64_t thousands = 1, kibi = 1;
    for (const auto* unit : {"k", "M", "G"}) {
        thousands *= 1000;
        kibi *= 1024;
        const auto count = decimal / thousands;
        if (count > 0 && decimal % thousands == 0 && checked_product({count, kibi}) == binary)
            return fmt::format(" ({0}{1} is {2}, {0}{3}i is {4})", count, unit, decimal, *unit == 'k' ? "K" : unit,
                               binary);
    }
    return "";
}

}  // namespace ringlab::layouts
