#include "experiments/options/options.hpp"

#include "layouts/basics/text_file.hpp"
#include "layouts/basics/typed_names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/program_options.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <type_traits>

namespace po = boost::program_options;

namespace ringlab::experiments {
namespace {

using Strings = std::vector<std::string>;

template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;

bool takes_list(const Option& option) {
    return std::visit([](auto* target) { return is_list<std::remove_pointer_t<decltype(target)>>; }, option.target);
}

bool is_flag(const Option& option) { return std::holds_alternative<bool*>(option.target); }

/// Whether 0 in the target means that the option was not given. Then a user cannot ask for 0.
bool zero_is_absence(const Option& option) {
    const bool is_number = std::holds_alternative<int*>(option.target) ||
                           std::holds_alternative<std::int64_t*>(option.target) ||
                           std::holds_alternative<double*>(option.target);
    return (is_number && !option.absent.empty()) || !option.none.empty();
}

/// " of at least 1", " from 1 to 1000", " above 0, or none", or nothing.
std::string range_text(const Option& option) {
    const auto number = [](double value) {
        return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                                    : fmt::format("{:g}", value);
    };
    const auto upwards = std::isfinite(option.high) ? fmt::format(" to {}", number(option.high)) : "";
    std::string text;
    if (zero_is_absence(option) && option.low <= 0)
        text = option.low < 0 ? " other than 0" : fmt::format(" above 0{}", upwards.empty() ? "" : ", up" + upwards);
    else if (std::isfinite(option.low))
        text = upwards.empty() ? fmt::format(" of at least {}", number(option.low))
                               : fmt::format(" from {}{}", number(option.low), upwards);
    return text + (option.none.empty() ? "" : ", or " + option.none);
}

/// Throws Error if the user gives a 0 that would silently mean the default.
void require_meant(const Option& option, const std::string& text, bool is_zero) {
    require(!is_zero || !zero_is_absence(option), "--{} {}: must be a number{}; without the option: {}", option.name,
            text, range_text(option), option.absent);
}

std::int64_t to_whole(const Option& option, const std::string& text, std::int64_t most) {
    const auto value = layouts::whole_number(text, true);
    const auto high = std::min(option.high, static_cast<double>(most));
    require(value && static_cast<double>(*value) >= option.low && static_cast<double>(*value) <= high && *value <= most,
            "--{} {}: must be a whole number{}, such as 4096, 4k (4000), 4Ki (4096) or 4,096", option.name, text,
            range_text(option));
    require_meant(option, text, *value == 0);
    return *value;
}

double to_number(const Option& option, const std::string& text) {
    if (!option.none.empty() && text == option.none) return 0;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool read = error == std::errc{} && end == text.data() + text.size();
    require(read && std::isfinite(value) && value >= option.low && value <= option.high,
            "--{} {}: must be a finite number{}", option.name, text, range_text(option));
    require_meant(option, text, value == 0);
    return value;
}

bool to_flag(const Option& option, const std::string& text) {
    for (const auto* yes : {"", "true", "yes", "on", "1"})
        if (text == yes) return true;
    for (const auto* no : {"false", "no", "off", "0"})
        if (text == no) return false;
    fail("--{} {}: must be true or false", option.name, text);
}

// One reader for each kind of target.

void read_value(const Option& option, bool& target, const std::string& text) {
    target = to_flag(option, text) != option.turns_off;
}
void read_value(const Option& option, int& target, const std::string& text) {
    target = static_cast<int>(to_whole(option, text, std::numeric_limits<int>::max()));
}
void read_value(const Option& option, std::int64_t& target, const std::string& text) {
    target = to_whole(option, text, std::numeric_limits<std::int64_t>::max());
}
void read_value(const Option& option, std::uint64_t& target, const std::string& text) {
    target = static_cast<std::uint64_t>(to_whole(option, text, std::numeric_limits<std::int64_t>::max()));
}
void read_value(const Option& option, double& target, const std::string& text) { target = to_number(option, text); }
void read_value(const Option& option, std::optional<double>& target, const std::string& text) {
    target = to_number(option, text);
}
void read_value(const Option& option, std::string& target, const std::string& text) {
    require(text.find_first_not_of(" \t") != std::string::npos, "--{} is given an empty value", option.name);
    const auto& choices = option.choices;
    if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end())
        fail("{}", unknown_choice(text, "--" + option.name, choices));
    target = text;
}

void read_values(const Option& option, const Strings& values) {
    std::visit(
        [&](auto* target) {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (is_list<T>) {
                target->clear();
                for (const auto& value : values) read_value(option, target->emplace_back(), value);
            } else {
                read_value(option, *target, values.empty() ? "" : values.front());
            }
        },
        option.target);
}

/// The value of the target as a user would type it. Empty if there is none, or if it is a 0 that means the default.
std::string text_of(const Option& option) {
    return std::visit(
        [&](auto* target) -> std::string {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (std::is_same_v<T, bool>)
                return *target != option.turns_off ? "true" : "false";
            else if constexpr (is_list<T>)
                return fmt::format("{}", fmt::join(*target, " "));
            else if constexpr (std::is_same_v<T, std::optional<double>>)
                return !*target                                ? ""
                       : **target == 0 && !option.none.empty() ? option.none
                                                               : fmt::format("{}", **target);
            else if constexpr (std::is_same_v<T, std::string>)
                return *target;
            else
                return *target == T{} && !option.absent.empty() ? "" : fmt::format("{}", *target);
        },
        option.target);
}

}  // namespace

std::string unknown_choice(const std::string& value, const std::string& what, const Strings& choices) {
    const auto hint = layouts::did_you_mean(value, choices);
    return fmt::format("{} is '{}'{} {} must be one of: {}", what, value, hint.empty() ? ";" : hint,
                       hint.empty() ? "it" : "It", fmt::join(choices, ", "));
}

std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
    std::string lines;
    std::size_t column = 0;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (column > 0 && column + 1 + word.size() > width) {
            lines += "\n" + std::string(indent, ' ');
            column = 0;
        }
        if (column > 0) lines += ' ';
        lines += word;
        column += word.size() + (column > 0);
    }
    return lines;
}

void Options::section(std::string title) { section_ = std::move(title); }

void Options::add(Option option) {
    const auto value = text_of(option);
    const auto shown = is_flag(option) ? "off" : value.empty() ? option.absent : value;
    entries_.push_back({std::move(option), section_, shown});
}

const Options::Entry& Options::find(const std::string& name) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
        return entry.option.name == name;
    });
    if (found != entries_.end()) return *found;
    fail_of_unknown("--" + name);
}

void Options::fail_of_unknown(const std::string& typed) const {
    Strings known;
    for (const auto& entry : entries_) known.push_back("--" + entry.option.name);
    const auto hint = typed.starts_with("--") ? layouts::did_you_mean(typed, known) : "";
    fail("unknown option '{}'{} --help shows the options", typed, hint.empty() ? ";" : hint);
}

void Options::read_command_line(int argc, const char* const* argv) {
    po::options_description all;
    for (const auto& [option, section, text] : entries_) {
        auto* value = po::value<Strings>();
        if (is_flag(option)) value->zero_tokens();
        if (takes_list(option)) value->multitoken();
        all.add_options()((option.name + (option.letter.empty() ? "" : "," + option.letter)).c_str(), value);
    }
    std::vector<Assignment> assignments;
    try {
        const auto parsed = po::command_line_parser(argc, argv)
                                .options(all)
                                .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
                                .run();
        for (const auto& option : parsed.options) {
            require(option.position_key == -1, "'{}' does not belong to an option; --help shows the options",
                    fmt::join(option.value, " "));
            assignments.push_back({find(option.string_key).option.name, option.value});
        }
    } catch (const po::unknown_option& error) {
        const auto typed = error.get_option_name();
        fail_of_unknown(typed.substr(0, typed.find('=')));
    } catch (const po::error& error) {
        fail("{}; --help shows the options", error.what());
    }
    take(assignments);
}

void Options::read_file(const std::string& path, const std::string& kind) {
    std::istringstream file(layouts::read_text(path, kind));
    po::options_description all;
    for (const auto& entry : entries_) all.add_options()(entry.option.name.c_str(), po::value<Strings>());
    try {
        std::vector<Assignment> assignments;
        for (const auto& line : po::parse_config_file(file, all, true).options) {
            const auto& option = find(line.string_key).option;
            Assignment assignment{option.name, line.value};
            if (takes_list(option)) {
                // Several values on one line come as one string; commas are part of specs, blanks are not.
                assignment.values.clear();
                for (const auto& value : line.value) {
                    std::istringstream words(value);
                    for (std::string word; words >> word;) assignment.values.push_back(word);
                }
                require(!assignment.values.empty(), "--{} is given an empty value", line.string_key);
            }
            assignments.push_back(std::move(assignment));
        }
        take(assignments);
    } catch (const po::error& error) {
        fail("{} '{}': {}", kind, path, error.what());
    } catch (const Error& error) {
        fail("{} '{}': {}", kind, path, error.what());
    }
}

void Options::take(const std::vector<Assignment>& assignments) {
    std::vector<Assignment> joined;
    for (const auto& assignment : assignments) {
        const auto same = std::find_if(joined.begin(), joined.end(),
                                       [&](const Assignment& other) { return other.name == assignment.name; });
        if (same == joined.end()) {
            joined.push_back(assignment);
            continue;
        }
        require(takes_list(find(assignment.name).option), "--{} is given twice", assignment.name);
        same->values.insert(same->values.end(), assignment.values.begin(), assignment.values.end());
    }
    for (const auto& [name, values] : joined)
        if (given_.insert(name).second) read_values(find(name).option, values);
}

void Options::require_fits(const std::string& backend) const {
    for (const auto& [option, section, shown] : entries_)
        require(option.backend.empty() || option.backend == backend || !given_.contains(option.name),
                "--{} is for --backend {}, not {}", option.name, option.backend, backend);
}

std::string Options::help() const {
    constexpr std::size_t column = 28, line = 116;
    std::string text =
        "In brackets: the default, or what is done without the option. N... and the like take several values, which\n"
        "make a sweep: --ranks 2 4 8. Whole numbers may be written 4k (4000), 4Ki (4096) or 4,096.\n";
    std::string section;
    for (const auto& entry : entries_) {
        const auto& option = entry.option;
        if (entry.section != section) text += fmt::format("\n{}\n", section = entry.section);
        auto usage = (option.letter.empty() ? "  --" : "  -" + option.letter + ", --") + option.name;
        if (!is_flag(option)) usage += " " + option.value + (takes_list(option) ? "..." : "");
        usage += usage.size() + 2 > column ? "\n" + std::string(column, ' ') : std::string(column - usage.size(), ' ');
        const auto whose = option.backend.empty() ? "" : "with --backend " + option.backend + ": ";
        const auto shown = whose + option.help + (entry.default_text.empty() ? "" : " [" + entry.default_text + "]");
        text += usage + wrapped(shown, column, line - column) + "\n";
    }
    return text;
}

std::string Options::text(const std::string& backend) const {
    std::string text;
    for (const auto& [option, section, shown] : entries_) {
        if (!option.decides_results || (!option.backend.empty() && option.backend != backend)) continue;
        const auto value = text_of(option);
        text += value.empty() ? fmt::format("# {}: {}\n", option.name, option.absent)
                              : fmt::format("{} = {}\n", option.name, value);
    }
    return text;
}

}  // namespace ringlab::experiments
