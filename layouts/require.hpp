#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace ringlab {

/// An error that a user can act on: its text says what was wrong, the value, and what would be right.
/// Only main() catches it.
class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Throws Error with the formatted message unless `condition` holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
    if (!condition) throw Error(fmt::format(message, std::forward<Args>(args)...));
}

/// Throws Error with the formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) {
    throw Error(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace ringlab
