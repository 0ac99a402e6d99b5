#include "reference/error/error_model_state.hpp"
#include "reference/features/latent.hpp"
#include "reference/tensors/counts.hpp"

#include <algorithm>
#include <cmath>

// Additional errors of K and V that are expanded from a latent.

namespace ringlab::reference {

using layouts::DType;

std::size_t ErrorModel::operand_index(std::int64_t batch, std::int64_t kv_head, std::int64_t token) const {
    return size((batch * problem_.kv_heads + kv_head) * problem_.tokens + token);
}

const ErrorModel::OperandErrors& ErrorModel::of_operands(std::int64_t batch, std::int64_t kv_head,
                                                         std::int64_t token) const {
    static const OperandErrors none;
    if (operands_.empty()) return none;
    return operands_[operand_index(batch, kv_head, token)];
}

/// Every element x of K and V is a sum of `rank` products of a latent and a matrix. After rounding to 16 bits it is off
/// by a step if the error of that sum moves it across the middle between two numbers. The shared dims of K are exact.
void ErrorModel::measure_expanding(const Inputs& inputs) {
    if (made_of_ == nullptr) return;
    const double sums = square(unit_of(accumulator_of(problem_.dtype))) *
                        sum_roundings(static_cast<double>(given_.latent.rank), problem_.dtype);
    const bool narrow = is_narrow(problem_.dtype);
    constexpr double mean_magnitude = 0.798;                        // of a normal number: sqrt(2 / pi)
    const double step = std::sqrt(12.0) * unit_of(problem_.dtype);  // a step is sqrt(12) roundings long
    auto exact = given_;
    exact.dtype = DType::fp64;
    const Tensor latent2 = made_of_->k * made_of_->k, matrices2 = made_of_->v * made_of_->v;
    const auto terms2 = expanded(exact, {{}, latent2, matrices2, {}});  // sums of squared products
    const auto variances_of = [&](const Tensor& x, const Tensor& squares, std::size_t dims, std::size_t b,
                                  std::size_t t, std::size_t h) {
        std::vector<double> variances;
        for (std::size_t d = 0; d < dims; ++d) {
            const double of_sum = sums * (square(x(b, t, h, d)) + squares(b, t, h, d));
            variances.push_back(narrow ? mean_magnitude * std::sqrt(of_sum) * step * std::abs(x(b, t, h, d)) : of_sum);
        }
        return variances;
    };
    const auto total = [](const std::vector<double>& variances) {
        double sum = 0, squares = 0;
        for (const double x : variances) sum += x, squares += square(x);
        return std::pair(sum, std::sqrt(squares));
    };
    for (std::size_t b = 0; b < size(problem_.batch); ++b)
        for (std::size_t h = 0; h < size(problem_.kv_heads); ++h)
            for (std::size_t t = 0; t < size(problem_.tokens); ++t) {
                const auto [k, k4] = total(variances_of(inputs.k, terms2.k, size(given_.own_key_dim()), b, t, h));
                const auto [v, v4] = total(variances_of(inputs.v, terms2.v, size(problem_.value_dim), b, t, h));
                operands_.push_back({k, k4, v, v4});
            }
}

/// Largest effect of one element of K or V that is rounded to the neighbouring 16-bit number (off by a step). It
/// changes a score by scale q step; o by p step, and by p (1 - p) times the change of the score times the distance
/// between values; dq by p (1 - p) do step scale k, and by its own terms, scale ds k, times the change of the score and
/// times a step.
ErrorModel::Steps ErrorModel::steps_of_expanding(const Inputs& inputs) const {
    if (made_of_ == nullptr || !is_narrow(problem_.dtype)) return {};
    const double relative = std::exp2(problem_.dtype == DType::bf16 ? -7 : -10);
    const auto largest = [](const Tensor& tensor) { return largest_of(tensor.data(), tensor.size()); };
    const auto step = [&](double x) { return x > 0 ? relative * std::exp2(std::floor(std::log2(x))) : 0; };
    constexpr double most_of_p = 0.25;  // p (1 - p)
    const double scale = std::abs(problem_.effective_scale()), k = largest(inputs.k), v = largest(inputs.v);
    const double score = scale * largest(inputs.q) * step(k);
    double terms = 0;
    for (const auto& row : row_) terms = std::max(terms, scale * std::sqrt(row.dsk));
    const double by_dp = largest(inputs.dout) * step(v) * scale * k * std::sqrt(static_cast<double>(problem_.head_dim));
    Key most;
    for (const auto& key : of_keys_)
        most = {std::max(most.p, key.p), std::max(most.score, key.score), std::max(most.lse, key.lse),
                std::max(most.ds, key.ds)};
    const double spread = 4 * square(v) * static_cast<double>(problem_.value_dim);
    return {score,
            step(v) + most_of_p * score * 2 * v,
            most_of_p * largest(inputs.dout) * step(v) * scale * k + terms * (score + relative),
            most.lse * square(score),
            most.p * square(step(v)) + most.score * square(score) * spread,
            most.score * square(by_dp) + square(scale * (score + relative)) * most.ds};
}

/// Squares of dk and dv of all heads, propagated to the latent and its matrices: compress() of squares.
Outputs ErrorModel::compressed_squares(Tensor dk2, Tensor dv2) const {
    Outputs squares;
    squares.dk = std::move(dk2);
    squares.dv = std::move(dv2);
    compress(given_, {{}, made_of_->k * made_of_->k, made_of_->v * made_of_->v, {}}, squares);
    return squares;
}

/// Bounds of the gradients of the latent and of its matrices, which are products of dk and dv of all heads with the
/// matrices and with the latent. With a 16-bit dtype dk and dv are rounded before.
void ErrorModel::set_latent_bounds(const Columns& columns, Bounds& bounds) const {
    const auto dtype = problem_.dtype, accumulator = accumulator_of(dtype);
    const double u2 = is_narrow(dtype) ? square(unit_of(dtype)) : 0, e2 = square(unit_of(accumulator));
    const double both = doubled_in_fp64(dtype), lost = square(smallest_of(accumulator));
    const auto heads = size(problem_.kv_heads);

    // The errors of a token's dk or dv by the accumulator and by travelling are divided equally among its elements.
    const auto spread = [&](const ColumnErrors& of, std::int64_t dim, double count, const std::vector<double>& more) {
        Tensor elements({size(problem_.batch), columns_.size(), heads, size(dim)});
        for (std::size_t b = 0; b < size(problem_.batch); ++b)
            for (std::size_t t = 0; t < columns_.size(); ++t)
                for (std::size_t h = 0; h < heads; ++h) {
                    const auto column = (b * heads + h) * columns_.size() + t;
                    std::fill_n(
                        &elements(b, t, h, 0), dim,
                        (count * of.wide[column] + (more.empty() ? 0 : more[column])) / static_cast<double>(dim));
                }
        return elements;
    };
    const auto wide =
        compressed_squares(spread(columns.dk, problem_.head_dim, 1, {}), spread(columns.dv, problem_.value_dim, 1, {}));
    Outputs narrow;
    if (is_narrow(dtype)) {
        Tensor dk = spread(columns.dk, problem_.head_dim, 0, columns.dk.parts) + columns.dk.elements;
        Tensor dv = spread(columns.dv, problem_.value_dim, 0, columns.dv.parts) + columns.dv.elements;
        const double subnormal = u2 * square(subnormal_to_unit(dtype));
        narrow = compressed_squares(dk + subnormal, dv + subnormal);
    }
    const auto bound_of = [&](const Tensor& expected, const Tensor& terms, const Tensor& by_wide,
                              const Tensor& by_narrow, double count, const std::vector<double>& parts, double own,
                              std::int64_t rounded) {
        Errors errors;
        errors.no_more_independent_than(errors_of(columns.dk));
        errors.no_more_independent_than(errors_of(columns.dv));
        const double sums = e2 * (sum_roundings(count, dtype) + 1);
        const auto width = expected.shape(3);
        double norm = 0, largest = 0;
        for (std::size_t row = 0; row < expected.size() / width; ++row) {
            RowError error{.parts = parts.empty() ? 0 : parts[row]};
            for (std::size_t d = 0; d < width; ++d) {
                const auto at = row * width + d;
                const double x = expected.data()[at], squares = terms.data()[at];
                error.wide += both * (by_wide.data()[at] + sums * (squares + square(x)) + lost * square(count));
                norm += square(x);
                largest = std::max(largest, std::abs(x));
                if (by_narrow.size() == 0) continue;
                // The shared elements of a latent are sums of numbers that were not rounded.
                const double by_16_bits =
                    by_narrow.data()[at] + (static_cast<std::int64_t>(d) < rounded ? u2 * squares : 0);
                error.narrow += by_16_bits;
                error.peak = std::max(error.peak, square(normal_tail) * by_16_bits);
            }
            errors.add(error);
        }
        errors.set_own(own);
        const double known = std::max(columns.dk.known.relative, columns.dv.known.relative);
        errors.set_known({square(known) * norm, known});
        return errors.bound(norm, largest);
    };
    bounds.dk = bound_of(expected_latent_.dk, terms_latent_.dk, wide.dk, narrow.dk,
                         static_cast<double>(heads * size(given_.expanded_dim())), columns.latent_parts, columns.dk.own,
                         given_.latent.rank);
    bounds.dv = bound_of(expected_latent_.dv, terms_latent_.dv, wide.dv, narrow.dv,
                         static_cast<double>(problem_.batch * problem_.tokens), {}, 0, given_.latent.rank);
}

}  // namespace ringlab::reference
