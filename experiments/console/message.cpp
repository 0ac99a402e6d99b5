#include "experiments/console/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace ringlab::experiments {
namespace {

std::string without_middle(const std::string& text, std::size_t longest) {
    if (text.size() <= longest) return text;
    const auto half = longest / 2;
    return fmt::format("{}[...{} characters...]{}", text.substr(0, half), text.size() - 2 * half,
                       text.substr(text.size() - half));
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
    return without_middle(kept, longest_message);
}

std::string error_text() { return std::generic_category().message(errno); }

}  // namespace ringlab::experiments
