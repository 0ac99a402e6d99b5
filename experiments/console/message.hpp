#pragma once

#include <string>

namespace ringlab::experiments {

/// The text of an error as a user gets it: what it quotes, a word or a list of thousands of characters, without its
/// middle. Beginning and end stay, as they say what it is about and what would be right. A byte that
/// belongs to no character of UTF-8 is a '?'.
std::string shortened(const std::string& message);

/// What errno says.
std::string error_text();

}  // namespace ringlab::experiments
