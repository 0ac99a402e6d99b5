#pragma once

#include "layouts/basics/require.hpp"
#include "layouts/basics/typed_names.hpp"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace ringlab::layouts {

/// A name with optional arguments, as a user types it: "striped:16" has the name "striped" and the arguments "16".
struct Spec {
    std::string name;
    std::string arguments;

    static Spec parse(std::string_view text) {
        const auto colon = text.find(':');
        if (colon == std::string_view::npos) return {std::string(text), ""};
        return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
    }
};

/// Named factories of one kind ("layout", "mask", "schedule"). A source file registers its factory at start-up through
/// a constant at namespace scope (Registration), so a new one needs no edit elsewhere.
template <class Factory>
class Registry {
public:
    struct Entry {
        std::string usage;  ///< its name and how to type it, for --help: "striped[:WIDTH]"
        std::string help;   ///< one line
        Factory factory;
        /// Specs to try it with, over a few tokens on up to eight ranks, for suites that run over all that is
        /// registered.
        std::vector<std::string> examples = {};
    };

    explicit Registry(std::string kind) : kind_(std::move(kind)) {}

    void add(Entry entry) {
        auto name = entry.usage.substr(0, entry.usage.find_first_of(":["));
        entries_.emplace(std::move(name), std::move(entry));
    }

    /// The entry of `name`. Throws Error that suggests a similar name, and lists the known ones, if there is none.
    const Entry& find(const std::string& name) const {
        const auto found = entries_.find(name);
        if (found != entries_.end()) return found->second;
        std::vector<std::string> known;
        for (const auto& [other, entry] : entries_) known.push_back(other);
        throw Error(unknown_name(kind_, name, known));
    }

    /// The factory for a spec such as "striped:16", and its arguments. Throws Error as find() does, for arguments of a
    /// name that takes none, and if nothing follows the colon, which would otherwise silently mean the default.
    std::pair<const Factory&, std::string> find_spec(std::string_view text) const {
        auto [name, arguments] = Spec::parse(text);
        const auto& entry = find(name);
        require(!text.ends_with(':'), "{} '{}' has nothing after its colon; write it as {}", kind_, text, entry.usage);
        require(arguments.empty() || entry.usage != name, "{} {} takes no arguments, got '{}'", kind_, name, arguments);
        return {entry.factory, std::move(arguments)};
    }

    const std::map<std::string, Entry>& entries() const { return entries_; }

private:
    std::string kind_;
    std::map<std::string, Entry> entries_;
};

/// A namespace-scope object of this type adds an entry to the registry that a function such as layouts() returns. All
/// tests of its kind run over the entry's examples.
template <auto registry>
struct Registration {
    using Entry = typename std::remove_reference_t<decltype(registry())>::Entry;
    explicit Registration(Entry entry) { registry().add(std::move(entry)); }
};

/// Parses a whole number, with the suffixes of whole_number(). Throws Error that names `what` and quotes the text if it
/// is not a whole number of at least `minimum`.
std::int64_t parse_count(std::string_view text, std::string_view what, std::int64_t minimum);

/// Parses lengths: "220,225,512x4" (512 four times), or "@FILE" for a text file with such a list. Commas, blanks and
/// line breaks separate. Throws Error on anything else, on a length below 1 and on more than 2^24 lengths.
std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view what);

}  // namespace ringlab::layouts
