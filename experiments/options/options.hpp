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

/// An option as --help shows it. Its default is the value that the target has when the option is added.
struct Option {
    std::string name;
    std::string value;  ///< the word for its value in --help: "N", "FILE"
    std::string help;
    OptionTarget target;
    std::string absent = "";  ///< what is done without it, if the default (nothing, 0, an empty list) does not say so.
                              ///< Records keep this text, and --resume compares it
    double low = -std::numeric_limits<double>::infinity();  ///< least value of a number
    double high = std::numeric_limits<double>::infinity();
    std::vector<std::string> choices = {};  ///< if the value must be one of these
    std::string letter = "";                ///< "o" if it may be written -o
    std::string none = "";                  ///< a word that means 0, where 0 differs from what `absent` says
    bool turns_off = false;                 ///< a flag that makes its target false
    bool decides_results = true;            ///< stands in Options::text()
    std::string backend = "";               ///< the only backend that has the option; empty: all have it
};

/// The options of a program: one place that reads them, judges their values and explains them.
///
/// Sources are read one after another; what an earlier one gave, a later one does not change. Within one source a list
/// given several times adds up, anything else may be given once.
class Options {
public:
    /// A heading in --help for what is added next.
    void section(std::string title);
    void add(Option option);

    /// Throws Error, one line that names the option, the value and what would be right.
    void read_command_line(int argc, const char* const* argv);

    /// Lines "name = value", several values between blanks. Throws Error that names the file as well.
    void read_file(const std::string& path, const std::string& kind);

    /// Throws Error if an option was given that another backend than `backend` has.
    void require_fits(const std::string& backend) const;

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

    struct Entry {
        Option option;
        std::string section, default_text;
    };

    const Entry& find(const std::string& name) const;
    [[noreturn]] void fail_of_unknown(const std::string& typed) const;
    void take(const std::vector<Assignment>& assignments);

    std::string section_;
    std::vector<Entry> entries_;
    std::set<std::string> given_;
};

/// "--arithmetic is 'fp8', did you mean 'fp16'? It must be one of: ...".
std::string unknown_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices);

/// `text` in lines of at most `width`, all but the first behind `indent` blanks.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width);

}  // namespace ringlab::experiments
