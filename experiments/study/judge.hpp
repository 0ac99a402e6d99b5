#pragma once

#include "layouts/mask.hpp"
#include "layouts/problem.hpp"
#include "layouts/schedule.hpp"
#include "reference/error_model.hpp"
#include "reference/errors.hpp"
#include "reference/tensors.hpp"

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// The results that are judged, each on its own. "o" is in the problem's dtype, "o_unrounded" before its last rounding.
inline constexpr std::array<const char*, 6> judged_tensors{"o", "o_unrounded", "lse", "dq", "dk", "dv"};

/// Deviations from fp64, in the order of judged_tensors.
using Verdict = std::array<reference::Deviation, judged_tensors.size()>;

/// How far results may be from fp64, in the order of judged_tensors.
struct Tolerance {
    std::array<double, judged_tensors.size()> relative_rms{};
    std::array<double, judged_tensors.size()> max_relative{};
};

/// The same for everything.
Tolerance uniform_tolerance(double largest);

/// The larger error, or the one that is not a number: unlike std::max, which forgets it.
constexpr double worse(double a, double b) { return a >= b || a != a ? a : b; }

/// What is not finite never passes: beyond the range of an arithmetic its error model allows anything.
inline bool passes(double error, double tolerance) { return std::isfinite(error) && error <= tolerance; }

/// Judges results against the fp64 reference, which is computed once for each problem, mask and input in a row.
///
/// Where q and k are rotated, the reference attends to them rotated and rounded, and dq and dk are compared with its
/// own after a rotation, which changes no norm: a gradient that was not rotated back, or not by the right position, is
/// as far off as it was, and errors are those that the error model speaks of.
class Judge {
public:
    /// Up to `whole_limit` tokens every element is judged; above, a sample of rows (o, lse, dq) and of columns (dk,
    /// dv).
    explicit Judge(std::int64_t whole_limit) : whole_limit_(whole_limit) {}

    bool judges_whole(const layouts::Problem& problem) const { return problem.tokens <= whole_limit_; }

    /// `input_name` tells inputs apart that differ in values only.
    Verdict operator()(const layouts::Problem& problem, const layouts::Mask& mask, const reference::Inputs& inputs,
                       const std::string& input_name, const reference::Outputs& measured,
                       const reference::Tensor& o_unrounded);

    /// How far from fp64 results of these passes may be, by the error model, in the order of judged_tensors.
    Tolerance tolerance(const layouts::Schedule& forward, const layouts::Schedule& backward,
                        const reference::Inputs& inputs, const std::string& input_name, bool round_running_output);

private:
    /// Returns the inputs that are attended to.
    const reference::Inputs& prepare(const layouts::Problem& problem, const layouts::Mask& mask,
                                     const reference::Inputs& inputs, const std::string& input_name);

    std::int64_t whole_limit_;
    std::string prepared_for_;
    bool judging_whole_ = true;
    reference::Inputs rotated_;                        // if q and k are rotated
    std::vector<std::int64_t> sample_;                 // rows and columns, if not whole
    reference::RowStatistics statistics_;              // of the rows that see the sample, if not whole
    reference::Outputs expected_;                      // of the sample, if not whole
    std::unique_ptr<reference::ErrorModel> model_;     // made when it is first asked for
    std::optional<reference::Bounds> carried_bounds_;  // the same for every schedule that rounds nothing on the way
};

}  // namespace ringlab::experiments
