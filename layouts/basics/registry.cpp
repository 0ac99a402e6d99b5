#include "layouts/basics/registry.hpp"

#include "layouts/basics/text_file.hpp"
#include "layouts/basics/typed_names.hpp"

#include <vector>

namespace ringlab::layouts {

std::int64_t parse_count(std::string_view text, std::string_view what, std::int64_t minimum) {
    const auto value = whole_number(text, false);
    require(value && *value >= minimum, "{} is '{}'; it must be a whole number of at least {}", what, text, minimum);
    return *value;
}

std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view what) {
    constexpr std::int64_t most_lengths = std::int64_t{1} << 24;
    std::string from_file, of_file;
    if (!text.empty() && text.front() == '@') {
        from_file = read_text(text.substr(1), fmt::format("{} from file", what));
        of_file = fmt::format("{} from file '{}'", what, text.substr(1));
        what = of_file;
        text = from_file;
    }
    constexpr std::string_view separators = ", \t\r\n";
    std::vector<std::int64_t> lengths;
    for (auto begin = text.find_first_not_of(separators); begin != std::string_view::npos;
         begin = text.find_first_not_of(separators, begin)) {
        const auto end = std::min(text.find_first_of(separators, begin), text.size());
        const auto item = text.substr(begin, end - begin);
        const auto times = item.find('x');
        const auto length = parse_count(item.substr(0, times), what, 1);
        const auto count = times == std::string_view::npos ? 1 : parse_count(item.substr(times + 1), what, 1);
        require(count <= most_lengths - static_cast<std::int64_t>(lengths.size()), "{}: more than {} lengths", what,
                most_lengths);
        lengths.insert(lengths.end(), static_cast<std::size_t>(count), length);
        begin = end;
    }
    require(!lengths.empty(), "{} is empty; give lengths such as 512,300,128x4 or @FILE", what);
    return lengths;
}

}  // namespace ringlab::layouts
