#pragma once

#include "layouts/schedule.hpp"
#include "reference/sampled.hpp"

#include <array>
#include <vector>

namespace ringlab::reference {

/// How far from fp64 one result may be.
struct Bound {
    double expected = 0;        ///< relative RMS that the roundings leave as a rule
    double relative_rms = 0;    ///< the largest that passes
    double max_to_largest = 0;  ///< the largest difference that passes, over the largest expected magnitude
};

struct Bounds {
    Bound o, o_unrounded, lse, dq, dk, dv, dsinks;
};

/// The error that the roundings of an arithmetic and of an accumulation policy leave in these very inputs, to first
/// order: every rounding is a relative error of its own, all are carried to the results through the problem's actual
/// p, ds and block sums, and their squares are summed. So large scores, few visible keys, dp that cancels against delta
/// and keys with a large common part count as they should, and nothing is fitted to measurements.
///
/// One rounding to a format of n significant bits is off by 2^-n / sqrt(3) of the binade's lower end in the root mean
/// square; over mantissas spread evenly in the logarithm that is u = 1.66e-3 of the number for bf16 (n = 8), 8 times
/// less for fp16, 2.5e-8 (e below) for fp32, 4.7e-17 for fp64.
///
///   16-bit products   p and ds are rounded (u) before they multiply. The largest p of a row's forward pass is exactly
///                     1 where it is rounded. o takes sum_j p_j^2 |v_j|^2, dv sum_i p_i^2 |do_i|^2, dq and dk
///                     sum ds^2 |k|^2 and sum ds^2 |q|^2. An fp16 number below 2^-14 is off by its fixed step instead.
///   delta = do.o      has o's error, one for a whole row: sum_d do_d^2 var(o_d), and from the products
///                     sum_j p_j^2 dp_j^2. It moves dq by that times sum_j p_j k_j, dk_j by that times p_j q.
///   scores            sums of D products in the accumulator, partial sums as large as the result or as a random walk:
///                     e^2 D/2 (s^2 + scale^2 sum q^2 k^2); exp's argument and exp itself add e^2 (s^2 + 5^2). They
///                     are relative errors of p, in o less what its sum takes back of them, p; lse has their mean
///                     weighted by p. dp likewise.
///   sums over n keys  e^2 n/2 (sum of squared terms + squared result); the tensor cores that 16-bit types run on cut
///                     sums off 16 terms at a time rather than round them: (0.07 n)^2 besides.
///   sinks             o' = o exp(lse - lse') takes over lse's error as a relative one, and ds that of delta and of
///                     lse'.
///   partials          each block's share of o, w_b o_b, is rounded to the dtype.
///   running output    so is the sum after each block; but an element that a block moves by less than half a step keeps
///                     its old value, and that loss is known, not random: it is added up with its sign.
///   narrow gradients  each rank's part of dk and dv that leaves it, and each sum that travels on, is rounded.
///
///   latent            K and V are sums of `rank` products: that error, of the number itself or, where it is rounded to
///                     16 bits, of those few that end on the other side: sqrt(2/pi) sigma of a step each. Where a row
///                     sees few keys, one such element is all of the error of o, lse or dq. Their
///                     gradients are rounded (u) before they are compressed: sum over heads (u^2 dk^2 + var dk) W_k^2
///                     and the same of dv, for the matrices sum over tokens with c^2.
///
/// A result passes within 1.37 times (all mantissas at the binade's lower end instead of spread) and three standard
/// deviations of a root mean square of as many independent errors as there are: 1 + 3 / sqrt(2 N), where N counts rows
/// by how evenly the error is spread over them. The largest element may be 5.5 standard deviations out (10^8 normal
/// errors), or, where few keys matter, at the bound of a single rounding times the operands' own largest element.
/// Narrow gradients are off in proportion to themselves: their largest element has its own deviation.
class ErrorModel {
public:
    /// For results judged whole. `inputs` and `expected` are of all heads; with a latent, `made_of` has it and its
    /// matrices, and must outlive the model.
    ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
               const Outputs& expected, const Inputs* made_of = nullptr);

    /// For a sample of rows (o, lse, dq) and columns (dk, dv), with the statistics of all rows that see these.
    ErrorModel(const layouts::Problem& problem, const layouts::Mask& mask, const Inputs& inputs,
               const SampledRows& rows, const SampledColumns& columns, RowStatistics statistics);

    /// Of results of these passes in the problem's dtype; `inputs` as given to the constructor. What travels, and in
    /// what order it is summed, are read from the schedules. Without a backward pass the gradients' bounds are 0.
    Bounds bounds(const Inputs& inputs, const layouts::Schedule& forward, const layouts::Schedule* backward,
                  bool round_running_output = false) const;

private:
    /// Of one row (batch, query head, position), in units of squared relative roundings: u^2 where nothing else is
    /// said.
    struct Row {
        double keys = 0;            // visible ones
        double o = 0, dq = 0;       // squared norms of the expected results
        double lse = 0, delta = 0;  // the row's
        double pv = 0, pv_all = 0;  // of o by rounded p, without and with the largest p
        double pdp = 0;             // of delta by rounded p
        double dsk = 0;             // of dq by rounded ds
        double mean_key = 0;        // |sum_j p_j k_j|^2
        double scores_o = 0, scores_delta = 0, scores_lse = 0, scores_dq = 0;  // by scores and dp, units of e^2
        double dout = 0, dout4 = 0, o4 = 0;                                    // |do|^2, sqrt(sum do^4), sqrt(sum o^4)
    };
    /// By (batch, kv head, column): squared norms of expected gradients, and the expected squared errors.
    struct Columns {
        std::vector<double> dk, dv;
        std::vector<double> dk_parts, dv_parts;  // by roundings of gradients that travel, beside the above
        std::vector<double> latent_parts;        // the same of a latent's that travels, by (batch, column)
        double dk_own = 0, dv_own = 0;           // of those, the largest of one element
    };
    struct RowErrors;
    struct Blocks {
        std::vector<double> o, delta;  // by row: what partials add to var(o) and var(delta)
        std::vector<int> count;        // by row: blocks that were seen
    };

    void measure_rows(const Inputs& inputs, const SampledRows& rows);
    void measure_pairs(const Inputs& inputs, const Tensor& q, const Tensor& dout);  // of those rows
    void measure_columns(const SampledColumns& columns);
    Columns measure_columns(const Inputs& inputs, const std::vector<double>& var_delta,
                            const std::vector<double>& var_lse) const;
    RowErrors row_errors(const Inputs& inputs, const layouts::Schedule& forward, bool round_running_output) const;
    Blocks forward_blocks(const Inputs& inputs, const layouts::Schedule& forward, bool round_running_output) const;
    struct Steps {
        double score = 0, o = 0, dq = 0;
    };
    Steps steps_of_expanding(const Inputs& inputs) const;
    double error_of_expanding() const;  // squared, relative to an element of K or V
    void set_latent_bounds(const Columns& columns, Bounds& bounds) const;
    static bool output_arrives(const layouts::Schedule& forward);  // as a message, of partials summed elsewhere
    void add_gradient_blocks(const Inputs& inputs, const layouts::Schedule& backward, Columns& columns) const;
    Bound sink_bound(const std::vector<double>& var_delta, const std::vector<double>& var_lse, double e2) const;
    std::vector<double> at_statistics(const std::vector<double>& of_rows) const;
    std::size_t row_index(std::int64_t batch, std::int64_t head, std::size_t row) const;

    layouts::Problem given_, problem_;  // problem_: over K and V of all heads
    layouts::Mask mask_;
    const Inputs* made_of_ = nullptr;
    Outputs expected_latent_;  // dk and dv, of the latent and its matrices
    std::vector<std::int64_t> rows_, columns_;
    RowStatistics statistics_;     // of all rows that see the columns
    std::vector<Row> row_;         // (batch, query head, row)
    std::vector<double> dk_, dv_;  // squared norms, (batch, kv head, column)
    double largest_o_ = 0, largest_lse_ = 0, largest_dq_ = 0, largest_dk_ = 0, largest_dv_ = 0;
};

/// RMS of one rounding to the format, relative to the number.
double unit_of(layouts::DType dtype);

}  // namespace ringlab::reference
