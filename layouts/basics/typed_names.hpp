#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::layouts {

/// The one of `known` that is most similar to a mistyped `name`, as the text ", did you mean 'zigzag'?"; empty if none
/// is similar. Similar means that at most a third of the letters of `name` (at least one) are changed, missing, added
/// or swapped with a neighbour, or that `name` is the beginning of the known name.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

/// Text of an error: "unknown layout 'zigzga', did you mean 'zigzag'? Known: contiguous, file, striped, zigzag".
std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& known);

/// Parses a whole number with an optional suffix: "4096", "4k" (4000), "4Ki" (4096), likewise M, Mi, G and Gi; with
/// `grouped` also "4,096". nullopt if the text is no such number or the value is not below 2^63.
std::optional<std::int64_t> whole_number(std::string_view text, bool grouped);

/// A hint for messages about two numbers that differ only by a decimal or binary prefix, for instance
/// " (512k is 512000, 512Ki is 524288)"; empty for any other two numbers.
std::string unit_hint(std::int64_t a, std::int64_t b);

}  // namespace ringlab::layouts
