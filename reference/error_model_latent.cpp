#include "reference/error_terms.hpp"

#include "reference/counts.hpp"

#include <algorithm>
#include <cmath>

// What K and V that are made of a latent add to it.

namespace ringlab::reference {

using layouts::DType;

double ErrorModel::error_of_expanding() const {
    if (!given_.latent.is_given()) return 0;
    const auto terms = static_cast<double>(given_.latent.rank);
    const double sums = square(unit_of(accumulator_of(problem_.dtype))) * sum_roundings(terms, problem_.dtype);
    if (!is_narrow(problem_.dtype)) return sums;
    // A step is sqrt(12) roundings long; the number is off by one where its sum, off by |x|, crosses its middle.
    constexpr double mean_magnitude = 0.798;  // of a normal number: sqrt(2 / pi)
    return mean_magnitude * std::sqrt(sums) * std::sqrt(12.0) * unit_of(problem_.dtype);
}

/// What one element of K or V that ends a step aside moves at most, rounded to 16 bits: a score by scale q step; o by
/// p step, and by p (1 - p) of the score times how far apart values are; dq by p (1 - p) do step scale k, and by its
/// own terms, scale ds k, times the score and times a step.
ErrorModel::Steps ErrorModel::steps_of_expanding(const Inputs& inputs) const {
    if (!given_.latent.is_given() || !is_narrow(problem_.dtype)) return {};
    const double relative = std::exp2(problem_.dtype == DType::bf16 ? -7 : -10);
    const auto largest = [](const Tensor& tensor) { return largest_of(tensor.data(), tensor.size()); };
    const auto step = [&](double x) { return x > 0 ? relative * std::exp2(std::floor(std::log2(x))) : 0; };
    constexpr double most_of_p = 0.25;  // p (1 - p)
    const double scale = std::abs(problem_.effective_scale()), k = largest(inputs.k), v = largest(inputs.v);
    const double score = scale * largest(inputs.q) * step(k);
    double terms = 0;
    for (const auto& row : row_) terms = std::max(terms, scale * std::sqrt(row.dsk));
    return {score, step(v) + most_of_p * score * 2 * v,
            most_of_p * largest(inputs.dout) * step(v) * scale * k + terms * (score + relative)};
}

void ErrorModel::set_latent_bounds(const Columns& columns, Bounds& bounds) const {
    const double u2 = is_narrow(problem_.dtype) ? square(unit_of(problem_.dtype)) : 0;
    const double e2 = square(unit_of(accumulator_of(problem_.dtype)));
    const double both = doubled_in_fp64(problem_.dtype);
    const auto heads = size(problem_.kv_heads), own = size(given_.own_key_dim()), rank = size(given_.latent.rank),
               shared = size(given_.latent.shared), dims = size(given_.expanded_dim());
    const auto head_dim = static_cast<double>(problem_.head_dim), value_dim = static_cast<double>(problem_.value_dim);
    const auto& [made_q, latent, matrices, made_dout] = *made_of_;

    // Squared norms of a head's matrices: of what makes K, and V.
    std::vector<double> w_k(heads), w_v(heads);
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t d = 0; d < dims; ++d) (d < own ? w_k : w_v)[h] += norms_of(&matrices(0, h, d, 0), rank).two;
    // Of each element of dk and dv of a token and head: its error, and its square.
    struct PerElement {
        double dk, dv, dk2, dv2;
    };
    const auto at_element = [&](std::size_t b, std::size_t h, std::size_t t) {
        const auto at = (b * heads + h) * columns_.size() + t;
        return PerElement{(columns.dk[at] + columns.dk_parts[at]) / head_dim,
                          (columns.dv[at] + columns.dv_parts[at]) / value_dim, dk_[at] / head_dim, dv_[at] / value_dim};
    };

    const double latent_sums = e2 * sum_roundings(static_cast<double>(heads * dims), problem_.dtype);
    const double matrix_sums =
        e2 * sum_roundings(static_cast<double>(problem_.batch * problem_.tokens), problem_.dtype);
    Errors of_latent, of_matrices;
    std::vector<double> k_rows(heads), v_rows(heads), k_terms(heads), v_terms(heads);
    double widest = 0;  // squared error of one number
    for (std::size_t b = 0; b < size(problem_.batch); ++b)
        for (std::size_t t = 0; t < columns_.size(); ++t) {
            const auto* gradient = &expected_latent_.dk(b, t, 0, 0);
            const double c2 = norms_of(&latent(b, t, 0, 0), rank).two;
            double made = latent_sums * norms_of(gradient, rank).two;
            double taken = shared > 0 ? latent_sums * norms_of(gradient + rank, shared).two : 0;
            for (std::size_t h = 0; h < heads; ++h) {
                const auto it = at_element(b, h, t);
                const double terms = it.dk2 * w_k[h] + it.dv2 * w_v[h];
                made += it.dk * w_k[h] + it.dv * w_v[h] + (u2 + latent_sums) * terms;
                taken += (it.dk + latent_sums * it.dk2) * static_cast<double>(shared);
                k_rows[h] += (it.dk + u2 * it.dk2) * c2;
                v_rows[h] += (it.dv + u2 * it.dv2) * c2;
                k_terms[h] += it.dk2 * c2;
                v_terms[h] += it.dv2 * c2;
            }
            const double parts = columns.latent_parts.empty() ? 0 : columns.latent_parts[b * columns_.size() + t];
            of_latent.add(both * (made + taken), both * parts);
            widest = std::max(widest, made / static_cast<double>(rank));
            if (shared > 0) widest = std::max(widest, taken / static_cast<double>(shared));
        }
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t d = 0; d < dims; ++d) {
            const double expected = norms_of(&expected_latent_.dv(0, h, d, 0), rank).two;
            of_matrices.add(
                both * ((d < own ? k_rows : v_rows)[h] + matrix_sums * (expected + (d < own ? k_terms : v_terms)[h])));
        }
    const auto bound = [&](Errors errors, const Tensor& expected, std::size_t width, double crest) {
        const auto all = norms_of(expected.data(), expected.size());
        return errors.bound(all.two, all.largest, static_cast<double>(width), crest);
    };
    of_latent.largest = both * widest * static_cast<double>(rank + shared);
    of_latent.own = both * columns.dk_own;
    bounds.dk = bound(of_latent, expected_latent_.dk, rank + shared, crest_of(matrices));
    bounds.dv = bound(of_matrices, expected_latent_.dv, rank, crest_of(latent));
}

}  // namespace ringlab::reference
