#pragma once

#include <string>

namespace ringlab::experiments {

/// The text of an error as it is shown to users. If it quotes a word or a list of thousands of characters, the middle
/// is left out. Beginning and end stay, because they say what the error is about and what would be right.
std::string shortened(const std::string& message);

/// The text of errno.
std::string error_text();

}  // namespace ringlab::experiments
