#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace ringlab::experiments {

/// Where an option's value goes, and what kind it is. A flag (bool) takes none. Whole numbers are sizes: 4k, 8Ki and
/// 8,192 are understood. Vectors take several.
using OptionTarget =
    std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::optional<double>*, std::string*,
                 std::vector<int>*, std::vector<std::int64_t>*, std::vector<std::string>*>;

/// An option as --help shows it. Its default is what the target holds when a command line is read.
class Option {
public:
    Option(std::string name, OptionTarget target, std::string value, std::string help)
        : name_(std::move(name)), target_(target), value_(std::move(value)), help_(std::move(help)) {}

    /// What is done without it, if the default (nothing, 0, an empty list) does not say so. Records keep this text, and
    /// --resume compares it. A number with such a text cannot be set to 0.
    Option& without(std::string what) { return absent_ = std::move(what), *this; }
    Option& at_least(double low) { return low_ = low, *this; }
    Option& between(double low, double high) { return low_ = low, high_ = high, *this; }
    Option& one_of(std::vector<std::string> choices) { return choices_ = std::move(choices), *this; }
    /// The word "none" means 0, where 0 differs from what without() says.
    Option& or_none() { return none_ = true, *this; }
    Option& short_name(const std::string& letter) { return letter_ = letter, *this; }
    /// Records do not keep it.
    Option& changes_no_result() { return decides_results_ = false, *this; }

private:
    friend class Options;

    std::string name_;
    OptionTarget target_;
    std::string value_, help_;  // the word for its value in --help: "N", "FILE"
    std::string absent_, letter_;
    double low_ = -std::numeric_limits<double>::infinity(), high_ = std::numeric_limits<double>::infinity();
    std::vector<std::string> choices_;
    bool none_ = false, decides_results_ = true;
    std::string section_, backend_, default_;

    // Of options.cpp alone.
    bool takes_list() const;
    bool is_flag() const { return std::holds_alternative<bool*>(target_); }
    bool zero_is_absence() const;
    std::string range_text() const;
    std::int64_t to_whole(const std::string& text, std::int64_t most) const;
    double to_number(const std::string& text) const;
    void read(const std::vector<std::string>& values) const;
    template <class T>
    void read_one(T& target, const std::string& text) const;
    std::string text() const;
};

/// The options of a program: one place that reads them, judges their values and explains them.
///
/// Sources are read one after another; what an earlier one gave, a later one does not change. Within one source a list
/// given several times adds up, anything else may be given once.
class Options {
public:
    /// A heading in --help for what is added next.
    void section(std::string title) { section_ = std::move(title); }

    /// The only backend that has the options that are added next; empty: all have them.
    void only_for_backend(std::string backend) { backend_ = std::move(backend); }

    /// The target must outlive this object. The reference is valid until the next one is added.
    Option& add(std::string name, OptionTarget target, std::string value, std::string help);
    Option& add_flag(std::string name, bool& target, std::string help) {
        return add(std::move(name), &target, "", std::move(help));
    }

    /// Throws Error, one line that names the option, the value and what would be right.
    void read_command_line(int argc, const char* const* argv);

    /// Lines "name = value", several values between blanks. Options of `not_here` that the program lacks are left out;
    /// returns those. Throws Error that names the file as well.
    std::vector<std::string> read_file(const std::string& path, const std::string& kind,
                                       const std::vector<std::string>& not_here);

    /// Throws Error if an option was given that another backend than `backend` has.
    void require_fits(const std::string& backend) const;

    bool has(const std::string& name) const { return find_if_known(name) != nullptr; }
    /// Names of the options that were given, wherever.
    const std::set<std::string>& given() const { return given_; }

    /// All options with their defaults, for --help.
    std::string help() const;

    /// Name = value, a line each, of the options that decide results with this backend, given or not, in the form of
    /// read_file(); comments stand for those without a value.
    std::string text(const std::string& backend) const;

private:
    struct Assignment {
        std::string name;
        std::vector<std::string> values;
    };

    const Option* find_if_known(const std::string& name) const;
    const Option& find(const std::string& name) const;
    [[noreturn]] void fail_of_unknown(const std::string& typed) const;
    void take(const std::vector<Assignment>& assignments);

    std::string section_, backend_;
    std::vector<Option> options_;
    std::set<std::string> given_;
};

/// "--arithmetic is 'fp8', did you mean 'fp16'? It must be one of: ...".
std::string unknown_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices);

/// `text` in lines of at most `width`, all but the first behind `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width);

}  // namespace ringlab::experiments
