#include "experiments/console/table.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

namespace ringlab::experiments {

std::string quotient(double a, double b, const char* format) {
    return b == 0 ? "-" : fmt::format(fmt::runtime(format), a / b);
}

void Table::add(std::vector<std::string> cells) {
    require(cells.size() == rows_.front().size(), "a table row has {} cells, the header {}", cells.size(),
            rows_.front().size());
    // "planned:/here/machine.toml" and "documents:@/here/lengths.txt": who reads the table knows where they are.
    static const std::regex folders("(planned:|file:|@)[^:+,@]*/");
    for (auto& cell : cells) cell = std::regex_replace(cell, folders, "$1");
    rows_.push_back(std::move(cells));
}

std::string Table::text() const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_)
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string text;
    for (const auto& row : rows_) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
        if (&row == &rows_.front()) {
            for (const auto width : widths) text += std::string(width, '-') + "  ";
            text += "\n";
        }
    }
    return text;
}

}  // namespace ringlab::experiments
