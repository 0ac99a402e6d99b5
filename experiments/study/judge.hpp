#pragma once

#include "experiments/options/config.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"
#include "layouts/schedules/schedule.hpp"
#include "reference/error/deviations.hpp"
#include "reference/error/error_model.hpp"
#include "reference/tensors/tensors.hpp"

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// The results that are judged, each on its own. "o" is in the problem's dtype, "o_unrounded" before its last rounding.
/// "dsinks" is empty, and passes, if the problem has no sinks.
inline constexpr std::array<const char*, 7> judged_tensors{"o", "o_unrounded", "lse", "dq", "dk", "dv", "dsinks"};

/// Deviations from fp64, in the order of judged_tensors.
using Verdict = std::array<reference::Deviation, judged_tensors.size()>;

/// Largest errors that pass, in the order of judged_tensors.
struct Tolerance {
    std::array<double, judged_tensors.size()> relative_rms{};
    std::array<double, judged_tensors.size()> max_relative{};
};

/// The same tolerance for all results.
Tolerance uniform_tolerance(double largest);

/// The larger error, or NaN if one of them is NaN, which std::max would ignore.
constexpr double worse(double a, double b) { return a >= b || a != a ? a : b; }

/// Whether an error passes. NaN and infinity never pass, although an error model may allow anything beyond the range of
/// an arithmetic.
inline bool passes(double error, double tolerance) { return std::isfinite(error) && error <= tolerance; }

/// How much of the results is judged.
enum class Extent {
    whole,    ///< every element
    sampled,  ///< rows of o, lse and dq, columns of dk and dv
    /// As sampled, but columns are computed from the run's own lse and delta, whose sampled rows are judged. The cost
    /// of exact ones, of all rows that see a column, grows with the square of the tokens.
    sampled_by_own_rows,
};
std::string to_string(Extent extent);

/// Default limits of judging. Above `whole_tokens` tokens a sample is judged. Above `statistics_flop` operations for
/// exact statistics of its rows, the run's own statistics are used.
struct JudgeLimits {
    std::int64_t whole_tokens = 16384;
    double statistics_flop = 4e12;  ///< a minute or two of two cores
};

/// Limits by which the configuration asks for results to be judged.
JudgeLimits judge_limits(const Config& config);

/// Cost of judging a problem under a mask: how much is judged, and the number of pairs of both passes of one head that
/// would cost as much.
struct Judging {
    Extent extent = Extent::whole;
    double pairs = 0;
};
Judging judging_of(const layouts::Problem& problem, const layouts::Mask& mask, const JudgeLimits& limits);

/// Judges results against the fp64 reference, which is computed once for each problem, mask and input in a row.
///
/// With a latent, the reference computes K and V from it first. Its dk and dv are then the gradients of the latent and
/// of its matrices, and they are judged whole.
///
/// With rotary embedding, the reference uses q and k after they were rotated and rounded. dq and dk are rotated before
/// they are compared with its own. A rotation changes no norm, so errors are as large as the error model assumes, and a
/// gradient that was not rotated back, or by a wrong position, is as wrong as before.
class Judge {
public:
    explicit Judge(const JudgeLimits& limits) : limits_(limits) {}

    /// `input_name` distinguishes inputs that differ only in their values.
    Verdict operator()(const layouts::Problem& problem, const layouts::Mask& mask, const reference::Inputs& inputs,
                       const std::string& input_name, const reference::Outputs& measured,
                       const reference::Tensor& o_unrounded);

    /// How much of the last results was judged.
    Extent extent() const { return extent_; }

    /// Largest errors that pass for the results judged last, if they came from these passes, by the error model, in the
    /// order of judged_tensors.
    Tolerance tolerance(const layouts::Schedule& forward, const layouts::Schedule& backward,
                        const reference::Inputs& inputs, const std::string& input_name, bool round_running_output);

private:
    /// Returns the inputs that are attended to.
    const reference::Inputs& prepare(const layouts::Problem& problem, const layouts::Mask& mask,
                                     const reference::Inputs& inputs, const std::string& input_name);
    void sinks_by_own_rows(const layouts::Problem& problem, const reference::Inputs& inputs,
                           const reference::Outputs& measured, const reference::Tensor& o_unrounded);
    void columns_by_own_rows(const layouts::Problem& problem, const layouts::Mask& mask,
                             const reference::Inputs& inputs, const reference::Outputs& measured,
                             const reference::Tensor& o_unrounded);

    JudgeLimits limits_;
    std::string prepared_for_;
    Extent extent_ = Extent::whole;
    reference::Inputs attended_;                       // if they are not the raw inputs
    reference::Outputs expected_of_heads_;             // if there is a latent
    std::vector<std::int64_t> sample_;                 // columns, if not whole
    std::vector<std::int64_t> sampled_rows_;           // positions of rows, if not whole
    reference::RowStatistics statistics_;              // of the rows that see the sample, if not whole
    reference::Outputs expected_;                      // of the sample, if not whole
    std::unique_ptr<reference::ErrorModel> model_;     // made when it is first asked for
    std::optional<reference::Bounds> carried_bounds_;  // the same for every schedule that rounds nothing on the way
};

}  // namespace ringlab::experiments
