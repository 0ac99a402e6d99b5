#pragma once

#include "layouts/require.hpp"

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace ringlab::layouts {

/// What a user types to choose something: "striped:16" is {name "striped", arguments "16"}.
struct Spec {
    std::string name;
    std::string arguments;

    static Spec parse(std::string_view text) {
        const auto colon = text.find(':');
        if (colon == std::string_view::npos) return {std::string(text), ""};
        return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
    }
};

/// Named factories of one kind ("layout", "mask", "schedule"). A file adds its own at start-up by a
/// namespace-scope `const Registration`, so a new one needs no edit elsewhere.
template <class Factory>
class Registry {
public:
    struct Entry {
        std::string usage;  ///< how to type it, for --help: "striped[:WIDTH]"
        std::string help;   ///< one line
        Factory factory;
    };

    explicit Registry(std::string kind) : kind_(std::move(kind)) {}

    void add(std::string name, Entry entry) { entries_.emplace(std::move(name), std::move(entry)); }

    /// Throws Error naming the known ones if `name` is not among them.
    const Entry& find(const std::string& name) const {
        const auto found = entries_.find(name);
        if (found != entries_.end()) return found->second;
        std::string known;
        for (const auto& [other, entry] : entries_) known += (known.empty() ? "" : ", ") + other;
        fail("unknown {} '{}'; known: {}", kind_, name, known);
    }

    const std::map<std::string, Entry>& entries() const { return entries_; }

private:
    std::string kind_;
    std::map<std::string, Entry> entries_;
};

/// Whole-number argument of a spec; throws Error that quotes the text if it is not one of at least `minimum`.
std::int64_t parse_count(std::string_view text, std::string_view what, std::int64_t minimum);

/// Lengths typed as "220,225,512x4" (512 four times) or "@FILE", a text file of the same, blanks allowed.
/// Throws Error on anything else, and on a length below 1.
std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view what);

}  // namespace ringlab::layouts
