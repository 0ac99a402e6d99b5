#pragma once

#include "layouts/basics/basic_types.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// "0-7" -> [0, 8), "" -> everything. Throws Error.
layouts::Interval parse_range(const std::string& text, const std::string& what);

/// "32:8" -> {32, 8}. Throws Error.
std::pair<std::int64_t, std::int64_t> parse_heads(const std::string& text);

/// `value` as one of the choices, by position. Throws Error that lists them.
std::size_t parse_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices);

/// The fields of "a,b,,c": four. Even an empty text has one.
std::vector<std::string> fields_of(const std::string& text, char separator);

/// The median of at least one value; of an even number of values the larger one of the two in the middle.
double median(std::vector<double> values);

/// The percentile of at least one value, interpolated between neighbours in order, as NumPy does.
double percentile(std::vector<double> values, double percent);

}  // namespace ringlab::experiments
