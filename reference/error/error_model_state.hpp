#pragma once

#include "reference/error/error_terms.hpp"

#include <limits>

// The state of ErrorModel between measuring the inputs and bounding the results of a pass. Only error_model*.cpp
// include it.

namespace ringlab::reference {

/// Numbers that all pairs of a row share. q4, dout4: see Norms::four.
struct ErrorModel::RowOperands {
    double scale, lse, delta, q4, dout4;
};

/// A visible pair of a row and a key, and the variances that roundings of the accumulator cause.
struct ErrorModel::Pair {
    double p, ds;
    double dp, ahead;      // dp, and dp - delta
    double factor, slope;  // of dropout, of the soft cap
    double of_log_p, of_p, of_ds;
};

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
    double pdp = 0;                                 // of delta, from rounded p: sum p^2 dp^2 without an exact p
    double pv_lost = 0;                             // variance of o from subnormal p
    double o_of_rounded = 0, delta_of_rounded = 0;  // |o|^2 and delta without an exact p
    KnownRoundings p, ds;

    // Variances that roundings of the accumulator cause.
    double pv_all = 0;                                     // sum p^2 |d v|^2, units of e^2
    double scores_o = 0, scores_delta = 0, scores_dq = 0;  // from errors of s, exp, dp, and elements of K and V
    double scores_lse = 0, largest_score = 0;              // sum of p var(log p), and the largest var(log p)
    double lost_dq = 0;                                    // loss of dq from numbers too small for the accumulator

    /// Squared change of o and delta if the keys up to some key get more weight and the later ones less, relative to
    /// that change of weight. With V = sum p |d v - o|^2 (a sink has value 0) it is at most V/4. For many keys in
    /// random order it is a random walk of p (d v - o), at most 2 (sum p^2 |d v|^2 + sum p^2 |o|^2).
    double regrouped_o() const { return std::min(std::max(0.0, values - o) / 4, 2 * (pv_all + mass2 * o)); }
    double regrouped_delta() const { return std::min(dp_spread / 4, dp_walk); }

    /// Adds a key. `value`: |d v|^2; k2: |k|^2.
    void add(const Pair& pair, double value, double k2, const OperandErrors& operands);
};

/// Sums of a row that are needed only until all of its keys have been added.
struct ErrorModel::RowSums {
    struct Largest {  // p of the row
        double p = 0, dp = 0;
        std::int64_t key = 0;
    };
    Largest largest;
    double own_v = 0, own_p = 0, own_pv = 0;  // sums of var(p) (1 - p) times (1 - p) |d v|^2, 1, and p |d v|^2
    double largest_score =
        -std::numeric_limits<double>::infinity();  // so far; p is rounded relative to the p of this score

    void add(const Pair& pair, double value, std::int64_t key);
};

/// Sums of (d p)^2, (p (1 - p))^2, p^2 and ds^2 |k|^2 over all rows that see one key, which is expanded from a latent.
struct ErrorModel::Key {
    double p = 0, score = 0, lse = 0, ds = 0;

    void add(const Pair& pair, double k2);
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
    std::vector<double> parts;   // from roundings of gradients that travel; not in `narrow`
    std::vector<double> peak;    // see RowError::peak
    std::vector<double> shared;  // by row: the part that all columns share, from that row's delta and lse
    Tensor elements;             // `narrow` of each element; 16-bit dtypes only
    double own = 0;              // the largest of `parts` in one element
    KnownError known;

    ColumnErrors(std::size_t columns, std::size_t rows);

    /// Fills in the errors that roundings to 16 bits cause: from each element's own sum of `terms`, and from what it
    /// shares with rows.
    void set_narrow(Tensor by_pairs, const Tensor* common, const std::vector<double>& terms);

    /// Fills in the known part of these errors: the roundings of each row, times `of_rows`. `norm` is the squared norm
    /// of the result.
    void set_known(const std::vector<KnownRoundings>& roundings, const Tensor& of_rows, double scale2,
                   KnownErrors errors, double norm);

    /// The error of one column. The part from the accumulator is multiplied by `times`.
    RowError at(std::size_t column, double times) const {
        return {narrow[column], times * wide[column], parts[column], peak[column]};
    }
};

struct ErrorModel::Columns {
    ColumnErrors dk, dv;
    std::vector<double> latent_parts;  // the same for a latent's gradient that travels, by (batch, column)
};

struct ErrorModel::Blocks {
    std::vector<double> o;      // by row and dim: variance of o from partials
    std::vector<double> delta;  // by row: the same of delta
    std::vector<int> count;     // by row: number of blocks that it sees
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

inline Roundings ErrorModel::accumulator_roundings() const {
    return {static_cast<double>(problem_.head_dim), static_cast<double>(problem_.value_dim), problem_.soft_cap,
            square(unit_of(accumulator_of(problem_.dtype)))};
}

/// The pair of a row and a key with score s, dp = d do.v and dropout factor d.
inline ErrorModel::Pair ErrorModel::pair_of(const Roundings& roundings, const RowOperands& row, const Norms& k,
                                            const Norms& v, const OperandErrors& operands, double s, double dp,
                                            double factor) const {
    const double p = std::exp(s - row.lse), slope = slope_of_cap(problem_, s), ahead = dp - row.delta;
    const double ds = p * ahead * slope;
    const double of_score = roundings.of_score(s, row.scale, row.q4, k.four, operands.k4);
    const double of_log_p = of_score + roundings.of_exponent(s - row.lse);
    const double of_p = error_of_p(p, of_log_p);
    const double of_dp = square(factor) * roundings.of_dp(of_kept(dp, factor), row.dout4, v.four, operands.v4);
    const double of_ds = of_p * square(ahead * slope) + 4 * roundings.e2 * square(ds) +
                         (square(p) + of_p) * (square(slope) * of_dp + square(ahead) * roundings.of_slope(s, of_score));
    return {p, ds, dp, ahead, factor, slope, of_log_p, of_p, of_ds};
}

}  // namespace ringlab::reference
