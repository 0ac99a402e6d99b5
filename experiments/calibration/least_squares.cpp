#include "experiments/calibration/least_squares.hpp"

#include "layouts/basics/require.hpp"

#include <lapacke.h>

#include <algorithm>
#include <cmath>

namespace ringlab::experiments {
namespace {

class Equations {
public:
    Equations(const std::vector<double>& a, const std::vector<double>& b, std::size_t columns)
        : a_(a), b_(b), columns_(columns), lengths_(columns, 0.0) {
        for (std::size_t i = 0; i < a.size(); ++i) lengths_[i % columns] = std::hypot(lengths_[i % columns], a[i]);
    }

    /// Without bounds, for the unknowns that are not `zero`. Columns are scaled to length 1. Then an error of b moves
    /// the scaled unknowns along a singular vector by that error over the singular value s. None of them can be larger
    /// than |b| over the largest singular value S. So where s / S is below the relative error of b, what is found is
    /// noise.
    LeastSquares solve(const std::vector<bool>& zero) const {
        LeastSquares found{std::vector<double>(columns_, 0.0), zero};
        std::vector<std::size_t> unknowns;
        for (std::size_t i = 0; i < columns_; ++i)
            if (!zero[i] && lengths_[i] > 0) unknowns.push_back(i);
        while (!unknowns.empty()) {
            auto right = b_;
            right.resize(std::max(right.size(), unknowns.size()));
            const auto rank = solve_scaled(unknowns, right);
            if (rank == unknowns.size()) {
                for (std::size_t i = 0; i < rank; ++i) {
                    found.values[unknowns[i]] = right[i] / lengths_[unknowns[i]];
                    found.determined[unknowns[i]] = true;
                }
                break;
            }
            unknowns.erase(unknowns.begin() + static_cast<std::ptrdiff_t>(rank));  // depends on those before it
        }
        return found;
    }

private:
    /// Replaces the first of `right` by the scaled unknowns. Returns how many columns, from the first one on, are
    /// independent.
    std::size_t solve_scaled(const std::vector<std::size_t>& unknowns, std::vector<double>& right) const {
        std::vector<double> matrix;
        for (std::size_t row = 0; row < b_.size(); ++row)
            for (const auto column : unknowns) matrix.push_back(a_[row * columns_ + column] / lengths_[column]);
        const auto count = static_cast<lapack_int>(unknowns.size());
        // Not pivoted: among columns of one length, rounding would choose the first.
        std::vector<lapack_int> in_order(unknowns.size(), 1);
        lapack_int rank = 0;
        const auto info = LAPACKE_dgelsy(LAPACK_ROW_MAJOR, static_cast<lapack_int>(b_.size()), count, 1, matrix.data(),
                                         count, right.data(), 1, in_order.data(), timing_error, &rank);
        require(info == 0, "LAPACK's dgelsy refuses least squares of {} unknowns: {}", columns_, info);
        return static_cast<std::size_t>(rank);
    }

    const std::vector<double>&a_, &b_;
    std::size_t columns_;
    std::vector<double> lengths_;
};

}  // namespace

LeastSquares nonnegative_least_squares(const std::vector<double>& a, const std::vector<double>& b,
                                       std::size_t columns) {
    const auto rows = b.size();
    require(a.size() == rows * columns, "{} coefficients are not those of {} equations with {} unknowns", a.size(),
            rows, columns);
    const auto is_finite = [](double number) { return std::isfinite(number); };
    require(std::ranges::all_of(a, is_finite) && std::ranges::all_of(b, is_finite),
            "least squares of {} unknowns: a number is not finite", columns);
    const Equations equations(a, b, columns);
    std::vector<bool> zero(columns, false);
    while (true) {
        auto found = equations.solve(zero);
        const auto lowest = std::ranges::min_element(found.values);
        if (lowest == found.values.end() || *lowest >= 0) return found;
        zero[static_cast<std::size_t>(lowest - found.values.begin())] = true;
    }
}

}  // namespace ringlab::experiments
