#pragma once

#include "layouts/schedules/schedule.hpp"
#include "reference/attention/samples.hpp"

#include <memory>

namespace ringlab::reference {

/// How far from fp64 one result may be; see Deviation for the quantities.
struct Bound {
    double expected = 0;        ///< expected relative RMS, for independent roundings
    double relative_rms = 0;    ///< largest relative RMS that passes
    double max_to_largest = 0;  ///< largest difference that passes, divided by the largest expected magnitude
};

/// The bound of each result.
struct Bounds {
    Bound o, o_unrounded, lse, dq, dk, dv, dsinks;
};

/// How far from fp64 a correct run may be: the errors that the roundings of an arithmetic and of an accumulation policy
/// can cause for the given inputs. Nothing is fitted to measurements.
///
/// Every rounding is an independent relative error. All are propagated to the results to first order, through the
/// problem's actual p, ds and partial results, and their squares are added. So a result that is a small difference of
/// large terms (o of values that cancel, ds = p (dp - delta), the slope of a soft cap near the cap) has the error of
/// the terms, not one in proportion to itself.
///
/// The root mean square of one rounding to a format of n significant bits is 2^-n / sqrt(3) of the binade's lower end.
/// For mantissas that are evenly distributed in the logarithm, that is, relative to the number, u = 1.66e-3 for bf16 (n
/// = 8), 8 times less for fp16, e = 2.5e-8 for fp32 and 4.7e-17 for fp64. Errors of subnormal numbers are a fixed step:
/// that of fp16 is counted where numbers are rounded to it, and that of fp32, which may flush numbers below 2^-126,
/// wherever it computes.
///
/// Roundings to 16 bits (u). They decide what passes and are counted one by one, for each element.
///   products          p and ds are rounded before they are multiplied: the variances are sum_j p_j^2 v_j^2 for o,
///                     sum_i p_i^2 do_i^2 for dv, sum ds^2 k^2 for dq and sum ds^2 q^2 for dk, in units of u^2. The
///                     largest p of a row with few keys is exactly 1 when it is rounded.
///   delta = do.o      has the error of o, one error for a whole row: it changes dq by that error times sum_j p_j k_j,
///                     and dk_j by that error times p_j q.
///   partials          each block's contribution to o, w_b o_b, is rounded, and so is a running output after each
///   block. narrow gradients  each rank's part of dk and dv that leaves the rank, and each sum that is sent on, is
///   rounded. latent            K and V that are made of a latent may be rounded to the other neighbour: u of each
///   element.
///                     Gradients of all heads are rounded before they are compressed.
///   equal numbers     have equal roundings. Those of p and ds are computed: the relative error that they have in common
///                     is added as it is, not as a random error.
///
/// Roundings of the accumulator (e). They are counted at their worst: with 16 bits they are small compared with the
/// others, and in fp32 and fp64 no mistake is that small.
///   scores            sums of D products, with partial sums as large as the result or as a random walk:
///                     e^2 D/2 (s^2 + scale^2 sum q^2 k^2); further s^2 for the scale, (s - lse)^2 for the argument of
///                     exp, and exp itself. These are relative errors of p, up to p = 1. Each changes o by p_j (v_j -
///                     o), whose square is at most 2 p_j^2 (v_j^2 + o^2), delta by p_j (dp_j - delta) and lse by p_j.
///   sums over n keys  e^2 n/2 (sum of squared terms + squared result). Tensor cores, which 16-bit types run on,
///                     truncate sums of 16 terms instead of rounding them: (0.07 n)^2 more.
///   rescaling         when a row's maximum grows, everything summed so far is multiplied by one exp. An error d of the
///                     weight of the keys seen before changes o by at most d sqrt(V)/2, V = sum_j p_j |v_j|^2.
///   merges            combine two results weighted by exp of their lse, each of which is rounded: as for rescaling. In
///                     the difference o_b - o both numbers may be much larger than the result: 9 e^2 max |v|^2 each.
///   sinks             o' = o exp(lse - lse') has the error of lse as a relative one; the gradient of sinks has those
///                     of delta and of lse'.
///
/// The norm's bound: the mean square of N independent errors is at most 1 + 2 sqrt(15 / N) + 2 * 15 / N times
/// what is expected, except once in e^15 = 3 million cases (Hsu, Kakade and Zhang, Electronic Communications in
/// Probability 17, 2012; it holds for errors whose tails are no longer than normal ones, such as those of roundings). N
/// counts rows or columns, weighted by how evenly the error is spread over them; columns share the errors of rows. The
/// mantissas of a few numbers may all lie at the binade's lower end, where squares are 1.37^2 times the mean; for many
/// numbers the mean of squares is within 5 standard deviations, 1 + 2 / sqrt(N). For many numbers the limit is
/// 1.37 (1 + 3 / sqrt(2 N)) where that is larger (above N = 64).
///
/// The bound of one element: 5.5 standard deviations (10^8 normal errors). The variance of roundings to 16 bits is that
/// of the element; the errors of the accumulator may all be in one element.
class ErrorModel {
public:
    /// For results that are compared completely. `inputs` and `expected` have K and V of all heads; with a latent,
    /// `made_of` has the latent and its matrices, and must outlive the model.
    ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
               const Outputs& expected, const Inputs* made_of = nullptr);

    /// For a sample of rows (o, lse, dq) and columns (dk, dv), with the statistics of all rows that see the columns.
    /// The problem has no latent.
    ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
               const SampledRows& rows, const SampledColumns& columns, RowStatistics statistics);
    ~ErrorModel();

    /// Bounds of the results of these passes in the problem's dtype; `inputs` must be those given to the constructor.
    /// The messages between ranks, and the order of sums, follow from the schedules. If `backward` is null, the bounds
    /// of gradients are 0.
    Bounds bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                  bool round_running_output = false) const;

    struct Measured;  ///< what the inputs alone say

private:
    std::unique_ptr<const Measured> measured_;
};

}  // namespace ringlab::reference
