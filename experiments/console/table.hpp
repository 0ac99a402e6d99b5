#pragma once

#include <string>
#include <vector>

namespace ringlab::experiments {

/// a / b in the given format, or "-" where b is 0: no time has a rate.
std::string quotient(double a, double b, const char* format);

/// Rows of text under a header, printed with aligned columns: the summary at the end of an experiment.
class Table {
public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}

    /// Throws Error unless there are as many cells as header columns.
    void add(std::vector<std::string> cells);
    std::string text() const;

private:
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace ringlab::experiments
