#pragma once

#include "layouts/schedules/schedule.hpp"
#include "reference/attention/samples.hpp"

#include <array>
#include <vector>

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

class Errors;
struct Norms;
struct RowError;
struct Roundings;

/// Whether the largest p of a row is exactly 1 when it is rounded to 16 bits in the forward pass. The kernels for
/// sm_90a compute p of a tile relative to the maxima of earlier tiles, so in rows with more than 64 keys it need not
/// be.
enum class LargestP { exact, rounded };

/// How far from fp64 a correct run may be: the errors that the roundings of an arithmetic and of an accumulation policy
/// can cause for the given inputs. Nothing is fitted to measurements.
///
/// Every rounding is an independent relative error. All are propagated to the results to first order, through the
/// problem's actual p, ds and partial results, and their squares are added. So a result that is a small difference of
/// large terms (o of values that cancel, ds = p (dp - delta), delta = do.o, the slope of a soft cap near the cap) has
/// the error of the terms, not one in proportion to itself.
///
/// The root mean square of one rounding to a format of n significant bits is 2^-n / sqrt(3) of the binade's lower end.
/// For mantissas that are evenly distributed in the logarithm, that is, relative to the number, u = 1.66e-3 for bf16 (n
/// = 8), 8 times less for fp16, e = 2.5e-8 for fp32 and 4.7e-17 for fp64. Errors of subnormal numbers are a fixed step:
/// that of fp16 is counted where numbers are rounded to it, and that of fp32, which may flush numbers below 2^-126,
/// wherever it computes.
///
/// Roundings to 16 bits (u). They decide what passes and are counted one by one.
///   products          p and ds are rounded before they are multiplied. In the forward pass the largest p of a row is
///                     exactly 1 when it is rounded, unless LargestP says otherwise. The variances are
///                     sum_j p_j^2 |v_j|^2 for o, sum_i p_i^2 |do_i|^2 for dv, sum ds^2 |k|^2 for dq and
///                     sum ds^2 |q|^2 for dk, in units of u^2.
///   delta = do.o      has the error of o, one error for a whole row: it changes dq by that error times sum_j p_j k_j,
///                     and dk_j by that error times p_j q.
///   partials          each block's contribution to o, w_b o_b, is rounded to the dtype.
///   running output    the sum after each block is rounded, too. But an element that a block changes by less than half
///                     a step keeps its old value. That loss is known, not random, so it is added with its sign.
///   narrow gradients  each rank's part of dk and dv that leaves the rank, and each sum that is sent on, is rounded.
///   equal numbers     have equal roundings. Those of p and ds are computed: a relative error that the numbers of a
///                     row, or of all rows, have in common is added as it is, not as a random error (KnownErrors).
///
/// Roundings of the accumulator (e). They are counted generously: with 16 bits they are small compared with the others,
/// and in fp32 and fp64 no mistake is that small. V is sum_j p_j |v_j - o|^2, the spread of values in a row.
///   scores            sums of D products, with partial sums as large as the result or as a random walk:
///                     e^2 D/2 (s^2 + scale^2 sum q^2 k^2); further s^2 for the scale, (s - lse)^2 for the argument of
///                     exp, and exp itself. These are relative errors of p: they change o by p_j (v_j - o), delta by
///                     p_j (dp_j - delta) and lse by p_j. An error of s that is not small is propagated through the
///                     exponential, up to p = 1.
///   sums over n keys  e^2 n/2 (sum of squared terms + squared result); for the sum of exponentials relative to it.
///                     Tensor cores, which 16-bit types run on, truncate sums of 16 terms instead of rounding them:
///                     (0.07 n)^2 more.
///   rescaling         when a row's maximum grows, everything summed so far is multiplied by one exp. An error d of the
///                     weight W of the keys seen before changes o by W (1 - W) d times the distance between the means
///                     of the keys before and after: d^2 V/4 at most, because W (1 - W) times that distance squared is
///                     at most V (Cauchy and Schwarz).
///   merges            combine two results weighted by exp of their lse, each of which is rounded: as for rescaling,
///                     with d^2 = e^2 (2 lse^2 + ...). In the difference o_b - o both numbers may be much larger than
///                     the merged result: 9 e^2 max |v|^2 for each merge, on whichever rank it is (in a tree, too).
///   sinks             o' = o exp(lse - lse') has the error of lse as a relative one; the gradient of sinks has those
///                     of delta and of lse'.
///
///   latent            K and V are sums of `rank` products and have the error of such sums. Rounded to 16 bits, only
///                     the few numbers differ that are rounded to the other neighbour: a variance of sqrt(2/pi) sigma
///                     times a step each. If a row sees few keys, one such element is all of the error of o, lse or dq;
///                     two at the worst place are always allowed. Gradients of all heads are rounded (u) before they
///                     are compressed.
///
/// The norm's bound: the mean square of N independent errors is at most 1 + 2 sqrt(15 / N) + 2 * 15 / N times
/// what is expected, except once in e^15 = 3 million cases (Hsu, Kakade and Zhang, Electronic Communications in
/// Probability 17, 2012; it holds for errors whose tails are no longer than normal ones, such as those of roundings). N
/// counts rows or columns, weighted by how evenly the error is spread over them, and fewer if they share a row's error.
/// The mantissas of a few numbers may all lie at the binade's lower end, where squares are 1.37^2 times the mean; for
/// many numbers the mean of squares is within 5 standard deviations, 1 + 2 / sqrt(N). So a single number may be off by
/// 8.5 times what is expected: as much as 13 equal roundings that all have their largest size and the same sign. For
/// many numbers the limit is 1.37 (1 + 3 / sqrt(2 N)) where that is larger (above N = 64).
///
/// The bound of one element: 5.5 standard deviations (10^8 normal errors), or the largest error that so few roundings
/// can make. The variance of roundings to 16 bits is that of the element; the errors of the accumulator may all be in
/// one element.
class ErrorModel {
public:
    /// For results that are compared completely. `inputs` and `expected` have K and V of all heads; with a latent,
    /// `made_of` has the latent and its matrices, and must outlive the model.
    ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
               const Outputs& expected, const Inputs* made_of = nullptr, LargestP largest_p = LargestP::exact);

    /// For a sample of rows (o, lse, dq) and columns (dk, dv), with the statistics of all rows that see the columns.
    ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
               const SampledRows& rows, const SampledColumns& columns, RowStatistics statistics,
               const Inputs* made_of = nullptr, LargestP largest_p = LargestP::exact);
    ~ErrorModel();

    /// Bounds of the results of these passes in the problem's dtype; `inputs` must be those given to the constructor.
    /// The messages between ranks, and the order of sums, follow from the schedules. If `backward` is null, the bounds
    /// of gradients are 0.
    Bounds bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                  bool round_running_output = false) const;

private:
    struct Row;
    struct RowSums;
    struct RowOperands;
    struct Key;
    struct Pair;
    struct WideErrors;
    struct RowErrors;
    struct ColumnErrors;
    struct NarrowColumns;
    struct ColumnSums;
    struct Columns;
    struct Blocks;
    struct Steps;
    /// Variances of the elements of K and V themselves, for one token and head: sums, and roots of sums of squares.
    struct OperandErrors {
        double k = 0, k4 = 0, v = 0, v4 = 0;
    };

    void measure_rows(const Inputs& inputs, const SampledRows& rows);
    void measure_pairs(const Inputs& inputs, const Tensor& q, const Tensor& dout);  // of those rows
    void finish_row(std::size_t row, const RowSums& sums, const Inputs& inputs, const Tensor& v2);
    Roundings accumulator_roundings() const;
    Pair pair_of(const Roundings& roundings, const RowOperands& row, const Norms& k, const Norms& v,
                 const OperandErrors& operands, double s, double dp, double factor) const;
    RowError narrow_o(std::size_t row, int roundings, const Blocks& blocks) const;
    RowError narrow_dq(std::size_t row, double delta) const;
    WideErrors wide_errors(const Row& row, double merges) const;
    void measure_columns(const SampledColumns& columns);
    void measure_expanding(const Inputs& inputs);
    RowErrors row_errors(const Inputs& inputs, const layouts::Schedule& forward, bool round_running_output) const;
    Columns column_errors(const Inputs& inputs, const RowErrors& rows) const;
    void add_sum_roundings(const ColumnSums& sums, Columns& columns) const;
    Blocks forward_blocks(const Inputs& inputs, const layouts::Schedule& forward, bool round_running_output) const;
    std::vector<int> merges_of(const layouts::Schedule& forward) const;  // by row of the sample, of one head
    static bool output_arrives(const layouts::Schedule& forward);        // as a message, of partials summed elsewhere
    void add_gradient_blocks(const Inputs& inputs, const layouts::Schedule& backward, Columns& columns) const;
    Errors errors_of(const ColumnErrors& columns) const;
    Bound sink_bound(const RowErrors& rows) const;
    Steps steps_of_expanding(const Inputs& inputs) const;
    Outputs compressed_squares(Tensor dk2, Tensor dv2) const;
    void set_latent_bounds(const Columns& columns, Bounds& bounds) const;
    std::vector<double> at_statistics(const std::vector<double>& of_rows) const;
    std::size_t row_index(std::int64_t batch, std::int64_t head, std::size_t row) const;
    std::size_t operand_index(std::int64_t batch, std::int64_t kv_head, std::int64_t token) const;
    const OperandErrors& of_operands(std::int64_t batch, std::int64_t kv_head, std::int64_t token) const;

    layouts::Problem given_, problem_;  // problem_: over K and V of all heads
    layouts::Mask mask_;
    const Inputs* made_of_ = nullptr;
    LargestP largest_p_ = LargestP::exact;
    Outputs expected_latent_, terms_latent_;  // dk and dv, of the latent and its matrices; and their squared terms
    std::vector<std::int64_t> rows_, columns_;
    RowStatistics statistics_;             // of all rows that see the columns
    std::vector<OperandErrors> operands_;  // (batch, kv head, token), of K and V that are made of a latent
    std::vector<Key> of_keys_;             // the same, of all rows that see a key
    std::vector<Row> row_;                 // (batch, query head, row)
    std::vector<double> mean_key_;         // (batch, query head, row, dim): sum p cap' k
    // The same for 16-bit dtypes: o, sum (d p)^2 v^2 without an exact p, and sum ds^2 k^2.
    std::vector<double> o_, pv_, dsk_;
    std::vector<double> dk_, dv_;  // squared norms, (batch, kv head, column)
    double largest_o_ = 0, largest_lse_ = 0, largest_dq_ = 0, largest_dk_ = 0, largest_dv_ = 0;
};

/// RMS of one rounding to the format, relative to the number.
double unit_of(layouts::DType dtype);

}  // namespace ringlab::reference
