#include "experiments/console/table.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <regex>

namespace ringlab::experiments {
namespace {

/// "planned:/here/machine.toml" and "documents:@/here/lengths.txt": who reads the table knows where they are.
std::string without_folders(const std::string& cell) {
    static const std::regex folders("(planned:|file:|@)[^:+,@]*/");
    return std::regex_replace(cell, folders, "$1");
}

}  // namespace

std::string quotient(double a, double b, const char* format) {
    return b == 0 ? "-" : fmt::format(fmt::runtime(format), a / b);
}

void Table::add(std::vector<std::string> cells) {
    require(cells.size() == rows_.front().size(), "a table row has {} cells, the header {}", cells.size(),
            rows_.front().size());
    for (auto& cell : cells) cell = without_folders(cell);
    rows_.push_back(std::move(cells));
}

Table& Table::start() {
    rows_.resize(rows_.empty() ? 2 : rows_.size() + 1);
    return *this;
}

Table& Table::cell(const std::string& header, std::string text) {
    if (rows_.size() == 2) rows_.front().push_back(header);
    rows_.back().push_back(without_folders(text));
    return *this;
}

Table& Table::cell(const std::string& header, double value, const char* format) {
    return cell(header, std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value));
}

Table& Table::cell(const std::string& header, std::int64_t value) { return cell(header, fmt::format("{}", value)); }

std::string Table::text() const {
    if (empty()) return "";
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
        require(row.size() == widths.size(), "a table row has {} cells, the header {}", row.size(), widths.size());
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
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
