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

bool to_flag(const std::string& name, const std::string& text) {
    for (const auto* yes : {"", "true", "yes", "on", "1"})
        if (text == yes) return true;
    for (const auto* no : {"false", "no", "off", "0"})
        if (text == no) return false;
    fail("--{} {}: must be true or false", name, text);
}

/// The words of a line of a file: commas are part of specs, blanks are not.
Strings words_of(const Strings& values) {
    Strings all;
    for (const auto& value : values) {
        std::istringstream words(value);
        for (std::string word; words >> word;) all.push_back(word);
    }
    return all;
}

}  // namespace

bool Option::takes_list() const {
    return std::visit([](auto* target) { return is_list<std::remove_pointer_t<decltype(target)>>; }, target_);
}

/// Whether 0 in the target means that the option was not given. Then a user cannot ask for 0.
bool Option::zero_is_absence() const {
    const bool is_number = std::holds_alternative<int*>(target_) || std::holds_alternative<std::int64_t*>(target_) ||
                           std::holds_alternative<double*>(target_);
    return (is_number && !absent_.empty()) || none_;
}

/// " of at least 1", " from 1 to 1000", " above 0, or none", or nothing.
std::string Option::range_text() const {
    const auto number = [](double value) {
        return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                                    : fmt::format("{:g}", value);
    };
    const auto upwards = std::isfinite(high_) ? fmt::format(" to {}", number(high_)) : "";
    std::string text;
    if (zero_is_absence() && low_ <= 0)
        text = low_ < 0 ? " other than 0" : fmt::format(" above 0{}", upwards.empty() ? "" : ", up" + upwards);
    else if (std::isfinite(low_))
        text = upwards.empty() ? fmt::format(" of at least {}", number(low_))
                               : fmt::format(" from {}{}", number(low_), upwards);
    return text + (none_ ? ", or none" : "");
}

std::int64_t Option::to_whole(const std::string& text, std::int64_t most) const {
    if (none_ && text == "none") return 0;
    const auto value = layouts::whole_number(text, true);
    const auto high = std::min(high_, static_cast<double>(most));
    require(value && static_cast<double>(*value) >= low_ && static_cast<double>(*value) <= high && *value <= most,
            "--{} {}: must be a whole number{}, such as 4096, 4k (4000), 4Ki (4096) or 4,096", name_, text,
            range_text());
    require(*value != 0 || !zero_is_absence(), "--{} {}: must be a number{}; without the option: {}", name_, text,
            range_text(), absent_);
    return *value;
}

double Option::to_number(const std::string& text) const {
    if (none_ && text == "none") return 0;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool read = error == std::errc{} && end == text.data() + text.size();
    require(read && std::isfinite(value) && value >= low_ && value <= high_, "--{} {}: must be a finite number{}",
            name_, text, range_text());
    require(value != 0 || !zero_is_absence(), "--{} {}: must be a number{}; without the option: {}", name_, text,
            range_text(), absent_);
    return value;
}

template <class T>
void Option::read_one(T& target, const std::string& text) const {
    if constexpr (std::is_same_v<T, bool>) {
        target = to_flag(name_, text);
    } else if constexpr (std::is_integral_v<T>) {
        using Signed = std::make_signed_t<T>;
        target = static_cast<T>(to_whole(text, std::numeric_limits<Signed>::max()));
    } else if constexpr (std::is_same_v<T, std::string>) {
        require(text.find_first_not_of(" \t") != std::string::npos, "--{} is given an empty value", name_);
        if (!choices_.empty() && std::ranges::find(choices_, text) == choices_.end())
            fail("{}", unknown_choice(text, "--" + name_, choices_));
        target = text;
    } else {
        target = to_number(text);
    }
}

void Option::read(const Strings& values) const {
    std::visit(
        [&](auto* target) {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (is_list<T>) {
                target->clear();
                for (const auto& value : values) read_one(target->emplace_back(), value);
            } else {
                read_one(*target, values.empty() ? "" : values.front());
            }
        },
        target_);
}

/// The value of the target as a user would type it. Empty if there is none, or if it is a 0 that means the default.
std::string Option::text() const {
    return std::visit(
        [&](auto* target) -> std::string {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (std::is_same_v<T, bool>)
                return *target ? "true" : "false";
            else if constexpr (is_list<T>)
                return fmt::format("{}", fmt::join(*target, " "));
            else if constexpr (std::is_same_v<T, std::optional<double>>)
                return !*target ? "" : **target == 0 && none_ ? "none" : fmt::format("{}", **target);
            else if constexpr (std::is_same_v<T, std::string>)
                return *target;
            else
                return *target != T{} ? fmt::format("{}", *target) : !absent_.empty() ? "" : none_ ? "none" : "0";
        },
        target_);
}

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

Option& Options::add(std::string name, OptionTarget target, std::string value, std::string help) {
    auto& option = options_.emplace_back(std::move(name), target, std::move(value), std::move(help));
    option.section_ = section_;
    option.backend_ = backend_;
    return option;
}

const Option* Options::find_if_known(const std::string& name) const {
    const auto found = std::ranges::find(options_, name, &Option::name_);
    return found == options_.end() ? nullptr : &*found;
}

const Option& Options::find(const std::string& name) const {
    if (const auto* option = find_if_known(name)) return *option;
    fail_of_unknown("--" + name);
}

void Options::fail_of_unknown(const std::string& typed) const {
    Strings known;
    for (const auto& option : options_) known.push_back("--" + option.name_);
    const auto hint = typed.starts_with("--") ? layouts::did_you_mean(typed, known) : "";
    fail("unknown option '{}'{} --help shows the options", typed, hint.empty() ? ";" : hint);
}

void Options::read_command_line(int argc, const char* const* argv) {
    po::options_description all;
    for (auto& option : options_) {
        option.default_ = option.is_flag() ? "off" : option.text();
        if (option.default_.empty()) option.default_ = option.absent_;
        auto* value = po::value<Strings>();
        if (option.is_flag()) value->zero_tokens();
        if (option.takes_list()) value->multitoken();
        all.add_options()((option.name_ + (option.letter_.empty() ? "" : "," + option.letter_)).c_str(), value);
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
            assignments.push_back({find(option.string_key).name_, option.value});
        }
    } catch (const po::unknown_option& error) {
        const auto typed = error.get_option_name();
        fail_of_unknown(typed.substr(0, typed.find('=')));
    } catch (const po::error& error) {
        fail("{}; --help shows the options", error.what());
    }
    take(assignments);
}

Strings Options::read_file(const std::string& path, const std::string& kind, const Strings& not_here) {
    std::istringstream file(layouts::read_text(path, kind));
    po::options_description all;
    for (const auto& option : options_) all.add_options()(option.name_.c_str(), po::value<Strings>());
    Strings left_out;
    try {
        std::vector<Assignment> assignments;
        for (const auto& line : po::parse_config_file(file, all, true).options) {
            if (!find_if_known(line.string_key) && std::ranges::count(not_here, line.string_key) > 0) {
                left_out.push_back(line.string_key);
                continue;
            }
            const auto& option = find(line.string_key);
            auto values = option.takes_list() ? words_of(line.value) : line.value;
            require(!values.empty(), "--{} is given an empty value", line.string_key);
            assignments.push_back({option.name_, std::move(values)});
        }
        take(assignments);
    } catch (const std::exception& error) {
        fail("{} '{}': {}", kind, path, error.what());
    }
    return left_out;
}

void Options::take(const std::vector<Assignment>& assignments) {
    std::vector<Assignment> joined;
    for (const auto& assignment : assignments) {
        const auto same = std::ranges::find(joined, assignment.name, &Assignment::name);
        if (same == joined.end()) {
            joined.push_back(assignment);
            continue;
        }
        require(find(assignment.name).takes_list(), "--{} is given twice", assignment.name);
        same->values.insert(same->values.end(), assignment.values.begin(), assignment.values.end());
    }
    for (const auto& [name, values] : joined)
        if (given_.insert(name).second) find(name).read(values);
}

void Options::require_fits(const std::string& backend) const {
    for (const auto& option : options_)
        require(option.backend_.empty() || option.backend_ == backend || !given_.contains(option.name_),
                "--{} is for --backend {}, not {}", option.name_, option.backend_, backend);
}

std::string Options::help() const {
    constexpr std::size_t column = 28, line = 116;
    std::string text =
        "In brackets: the default. N... takes several values, which make a sweep: --ranks 2 4 8. 4k is 4000, 4Ki "
        "4096.\n";
    std::string section;
    for (const auto& option : options_) {
        if (option.section_ != section) text += fmt::format("\n{}\n", section = option.section_);
        auto usage = (option.letter_.empty() ? "  --" : "  -" + option.letter_ + ", --") + option.name_;
        if (!option.is_flag()) usage += " " + option.value_ + (option.takes_list() ? "..." : "");
        usage += usage.size() + 2 > column ? "\n" + std::string(column, ' ') : std::string(column - usage.size(), ' ');
        const auto whose = option.backend_.empty() ? "" : "with --backend " + option.backend_ + ": ";
        const auto shown = whose + option.help_ + (option.default_.empty() ? "" : " [" + option.default_ + "]");
        text += usage + wrapped(shown, column, line - column) + "\n";
    }
    return text;
}

std::string Options::text(const std::string& backend) const {
    std::string text;
    for (const auto& option : options_) {
        if (!option.decides_results_ || (!option.backend_.empty() && option.backend_ != backend)) continue;
        const auto value = option.text();
        text += value.empty() ? fmt::format("# {}: {}\n", option.name_, option.absent_)
                              : fmt::format("{} = {}\n", option.name_, value);
    }
    return text;
}

}  // namespace ringlab::experiments
