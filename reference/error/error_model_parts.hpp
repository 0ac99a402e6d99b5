#pragma once

#include "reference/error/error_terms.hpp"

// What ErrorModel stores between measuring the inputs and bounding the results of a pass. Only error_model*.cpp include
// it.

namespace ringlab::reference {

/// Sums over the visible keys j of one row (batch, query head, position). In the comments p, s, the dropout factor d,
/// dp = d do.v, k and v are those of key j.
struct ErrorModel::Row {
    double keys = 0;
    double o = 0, dq = 0;                                  // squared norms of the expected results
    double lse = 0, delta = 0;                             // the row's
    double mass = 0, mass2 = 0;                            // sum p, which sinks make less than 1; sum p^2
    double dout = 0, dout4 = 0, largest_dout = 0, o4 = 0;  // |do|^2, sqrt(sum do^4), max |do_d|, sqrt(sum o^4)
    double values = 0, largest_value = 0, all_values = 0;  // sum p |d v|^2, max |d v|^2, sum |d v|^2
    double dp_spread = 0, dp_walk = 0, all_dp = 0;         // sum p (dp - delta)^2, sum p^2 (dp - delta)^2, sum dp^2
    double dsk = 0;                                        // sum ds^2 |k|^2
    double mean_key = 0;                                   // |sum p cap' k|^2

    // In units of squared roundings to 16 bits.
    double pdp = 0;                                 // of delta by rounded p: sum p^2 dp^2 without the largest p
    double pv_lost = 0;                             // of o by p below the smallest normal number
    double o_of_rounded = 0, delta_of_rounded = 0;  // |o|^2 and delta without the largest p
    KnownRoundings p, ds;

    // Variances by roundings of the accumulator.
    double pv_all = 0;                                     // sum p^2 |d v|^2, units of e^2
    double scores_o = 0, scores_delta = 0, scores_dq = 0;  // by errors of s, exp, dp, and elements of K and V
    double scores_lse = 0, largest_score = 0;              // sum p of those of log p, and the largest
    double lost_dq = 0;                                    // of dq by numbers too small for the accumulator

    /// Squared change of o and delta if the keys up to some key get more weight and the later ones less, relative to
    /// that change of weight. With V = sum p |d v - o|^2 (a sink has value 0) it is at most V/4. For many keys in
    /// random order it is a random walk of p (d v - o), at most 2 (sum p^2 |d v|^2 + sum p^2 |o|^2).
    double regrouped_o() const { return std::min(std::max(0.0, values - o) / 4, 2 * (pv_all + mass2 * o)); }
    double regrouped_delta() const { return std::min(dp_spread / 4, dp_walk); }
};

/// For a key that is expanded from a latent: sums over all rows that see it of (d p)^2, (p (1 - p))^2, p^2, ds^2 |k|^2.
struct ErrorModel::Key {
    double p = 0, score = 0, lse = 0, ds = 0;
};

/// Variances of a row's results that the roundings of the accumulator cause.
struct ErrorModel::WideErrors {
    double o = 0, lse = 0, delta = 0, dq = 0;
};

/// Errors of the sample's rows.
struct ErrorModel::RowErrors {
    Errors o, o_unrounded, lse, dq;
    double o_norm = 0, lse_norm = 0, dq_norm = 0;           // squared
    std::vector<double> delta_narrow, delta_wide, var_lse;  // by row
};

/// Errors of dk or dv by (batch, kv head, column).
struct ErrorModel::ColumnErrors {
    std::vector<double> narrow, wide;
    std::vector<double> parts;   // by roundings of gradients that travel, beside the above
    std::vector<double> peak;    // as RowError has it
    std::vector<double> shared;  // by row: of the above, what all columns have by that row's delta and lse
    Tensor elements;             // `narrow`, element by element; of 16-bit dtypes
    double own = 0;              // of parts, the largest of one element
    KnownError known;

    ColumnErrors(std::size_t columns, std::size_t rows);

    /// Fills in the errors of roundings to 16 bits: of each element's own sum of `terms`, and those it shares with
    /// rows.
    void set_narrow(Tensor by_pairs, const Tensor* common, const std::vector<double>& terms);

    /// Fills in the known part of these errors, from the roundings of each row times `of_rows`. `norm`: squared norm of
    /// the result.
    void set_known(const std::vector<KnownRoundings>& roundings, const Tensor& of_rows, double scale2,
                   KnownErrors errors, double norm);

    /// The error of one column; that of the accumulator is multiplied by `times`.
    RowError at(std::size_t column, double times) const {
        return {narrow[column], times * wide[column], parts[column], peak[column]};
    }
};

struct ErrorModel::Columns {
    ColumnErrors dk, dv;
    std::vector<double> latent_parts;  // as `parts`, of a latent's gradient that travels, by (batch, column)
};

struct ErrorModel::Blocks {
    std::vector<double> o;      // by row and dim: what partials add to var(o)
    std::vector<double> delta;  // by row: to var(delta)
    std::vector<int> count;     // by row: blocks that were seen
};

/// Largest effect of one element of K or V that is rounded to the neighbouring number: on a single element of a result,
/// and on all of it (squared).
struct ErrorModel::Steps {
    double score = 0, o = 0, dq = 0;
    double all_lse = 0, all_o = 0, all_dq = 0;
};

/// do.v of a pair, from dp = d do.v; 0 for a dropped pair, for which it is not needed.
inline double of_kept(double dp, double factor) { return factor == 0 ? 0 : dp / factor; }

inline double slope_of_cap(const layouts::Problem& problem, double s) {
    return problem.soft_cap > 0 ? 1 - square(s / problem.soft_cap) : 1;
}

/// Squared error of p, limited to 1, because p is between 0 and 1.
inline double error_of_p(double p, double variance) { return std::min(1.0, square(p) * variance_of_exp(variance)); }

}  // namespace ringlab::reference
