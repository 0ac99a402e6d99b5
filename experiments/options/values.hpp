#pragma once

#include "layouts/problem/rotary.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// "32:8" -> {32, 8}. Throws Error.
std::pair<std::int64_t, std::int64_t> parse_heads(const std::string& text);

/// "2:1.5", or "2" with the factor that there was -> number of stragglers and how many times slower they are. `option`
/// is for the message. Throws Error.
void parse_stragglers(const std::string& text, const std::string& option, int& number, double& factor);

/// "none", or a base with terms joined by +: "10000+dims:64+first:128+pairs:interleaved+scaling:linear:8+
/// positions:documents". Throws Error.
layouts::Rotary parse_rotary(const std::string& text);

/// `value` as one of the choices, by position. Throws Error that lists them.
std::size_t parse_choice(const std::string& value, const std::string& what, const std::vector<std::string>& choices);

/// The fields of "a,b,,c": four. Even an empty text has one.
std::vector<std::string> fields_of(const std::string& text, char separator);

/// The median of at least one value; of an even number of values the larger one of the two in the middle.
double median(std::vector<double> values);

/// The percentile of at least one value, interpolated between neighbours in order, as NumPy does.
double percentile(std::vector<double> values, double percent);

}  // namespace ringlab::experiments
