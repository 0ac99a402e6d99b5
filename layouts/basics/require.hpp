#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ringlab {

/// An error that a user can act on. The text says what was wrong, the value, and what would be right, on one line:
/// control characters, from quoted input say, become blanks. main() prints it and exits with a non-zero status.
class Error : public std::runtime_error {
public:
    explicit Error(std::string text) : std::runtime_error(on_one_line(std::move(text))) {}

private:
    static std::string on_one_line(std::string text) {
        for (char& c : text)
            if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
        return text;
    }
};

/// A device has too little free memory for an allocation. A caller may catch it and try again with less.
class NoMemory : public Error {
public:
    using Error::Error;
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
