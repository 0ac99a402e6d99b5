#include "experiments/console/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

namespace ringlab::experiments {
namespace {

std::string without_middle(const std::string& text, std::size_t longest) {
    if (text.size() <= longest) return text;
    const auto half = longest / 2;
    return fmt::format("{}[...{} characters...]{}", text.substr(0, half), text.size() - 2 * half,
                       text.substr(text.size() - half));
}

/// Bytes of the character of UTF-8 that begins there; 0 where none does.
std::size_t length_of_character(std::string_view text) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xc2 ? 0
                               : first < 0xe0 ? 2
                               : first < 0xf0 ? 3
                               : first < 0xf5 ? 4
                                              : 0;
    if (length > text.size()) return 0;
    const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; };
    return std::all_of(text.begin() + 1, text.begin() + std::max<std::size_t>(length, 1), continues) ? length : 0;
}

/// With a '?' for each byte that belongs to no character.
std::string characters_of(std::string_view text) {
    std::string kept;
    while (!text.empty()) {
        const auto length = length_of_character(text);
        kept += length == 0 ? "?" : text.substr(0, length);
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return kept;
}

}  // namespace

std::string shortened(const std::string& message) {
    constexpr std::size_t longest_word = 300, longest_message = 2000;
    std::string kept;
    for (std::size_t begin = 0; begin < message.size();) {
        const auto end = std::min(message.find(' ', begin), message.size());
        kept += without_middle(message.substr(begin, end - begin), longest_word);
        if (end < message.size()) kept += ' ';
        begin = end + 1;
    }
    return characters_of(without_middle(kept, longest_message));
}

std::string error_text() { return std::generic_category().message(errno); }

}  // namespace ringlab::experiments
