#pragma once

#include "layouts/registry.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::layouts {

/// Which of `known` a mistyped name was perhaps meant to be, as ", did you mean 'zigzag'?"; empty if none is near: a
/// third of its letters changed, left out, put in or swapped with the next, or its end not typed.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

/// "unknown layout 'zigzga', did you mean 'zigzag'? Known: contiguous, file, striped, zigzag".
std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& known);

/// registry.find(name) for names that a person types: the Error guesses what was meant.
template <class Factory>
const typename Registry<Factory>::Entry& find_typed(const Registry<Factory>& registry, std::string_view kind,
                                                    const std::string& name) {
    if (registry.entries().contains(name)) return registry.find(name);
    std::vector<std::string> known;
    for (const auto& [other, entry] : registry.entries()) known.push_back(other);
    throw Error(unknown_name(kind, name, known));
}

/// The entry that a spec as "striped:16" begins with the name of. Throws Error as find_typed(), and on a colon with
/// nothing behind it, which would else mean the default.
template <class Factory>
const typename Registry<Factory>::Entry& find_spec(const Registry<Factory>& registry, std::string_view kind,
                                                   std::string_view text) {
    const auto& entry = find_typed(registry, kind, Spec::parse(text).name);
    require(!text.ends_with(':'), "{} '{}' has nothing behind its colon; write it as {}", kind, text, entry.usage);
    return entry;
}

/// A whole number, perhaps in thousands or millions: "4096", "4k" (4000), "4Ki" (4096), and so on with M and G; with
/// `grouped` also "4,096". Nothing if it is none, or not below 2^63.
std::optional<std::int64_t> whole_number(std::string_view text, bool grouped);

/// " (512k is 512000, 512Ki is 524288)" of two numbers that differ by what people mean by k, M or G; else empty.
std::string unit_hint(std::int64_t a, std::int64_t b);

}  // namespace ringlab::layouts
