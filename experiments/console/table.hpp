#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// a / b in the given format, or "-" where b is 0: no time has a rate.
std::string quotient(double a, double b, const char* format);

/// Rows of text under a header, printed with aligned columns: the summary at the end of an experiment.
class Table {
public:
    Table() = default;  ///< its first line says the header
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

    /// Throws Error unless there are as many cells as header columns.
    void add(std::vector<std::string> cells);

    /// Begins a line, whose cells come one after another, each with the header of its column.
    Table& start();
    Table& cell(const std::string& header, std::string text);
    Table& cell(const std::string& header, double value, const char* format);  ///< "-" for NaN
    Table& cell(const std::string& header, std::int64_t value);

    bool empty() const { return rows_.size() < 2; }

    /// Throws Error if a line has other cells than the first. "" for an empty table.
    std::string text() const;

private:
    std::vector<std::vector<std::string>> rows_;  // the header first
};

}  // namespace ringlab::experiments
