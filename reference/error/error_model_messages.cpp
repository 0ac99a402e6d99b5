#include "reference/error/error_model_state.hpp"
#include "reference/features/latent.hpp"
#include "reference/tensors/counts.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

// Errors of tensors that are rounded when they travel from rank to rank, according to the schedules.

namespace ringlab::reference {
namespace {

/// The positions of a list that are among given positions, with their indices in the list.
struct Owned {
    std::vector<std::size_t> indices;
    std::vector<std::int64_t> positions;
};
Owned owned(const std::vector<std::int64_t>& positions, const std::vector<std::int64_t>& from) {
    Owned result;
    for (std::size_t i = 0; i < from.size(); ++i)
        if (std::binary_search(positions.begin(), positions.end(), from[i])) {
            result.indices.push_back(i);
            result.positions.push_back(from[i]);
        }
    return result;
}

/// Tokens of a part, without its heads: roundings are assumed to be similar for all heads.
using TokensOf = std::tuple<int, std::int64_t, std::int64_t>;

TokensOf tokens_of(const layouts::Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }

/// The global positions of these tokens, sorted.
std::vector<std::int64_t> positions_of(const layouts::Schedule& schedule, const TokensOf& tokens) {
    const auto [block, begin, end] = tokens;
    auto positions = layouts::positions_of(schedule.runs({block, {}, {begin, end}}));
    std::sort(positions.begin(), positions.end());
    return positions;
}

/// Calls visit(rank, operation) for all operations of all ranks.
template <class Visit>
void for_each_op(const layouts::Schedule& schedule, Visit visit) {
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next()) visit(rank, *op);
    }
}

/// For each part of rows: the keys behind each partial result that is normalised and rounded, in the order of the
/// merges. nullopt stands for all keys.
std::map<TokensOf, std::vector<std::optional<TokensOf>>> rounded_results(const layouts::Schedule& forward) {
    using layouts::Pool;
    std::map<TokensOf, std::set<std::pair<int, std::optional<TokensOf>>>> by_step;
    for_each_op(forward, [&](int, const layouts::Op& op) {
        if (op.kind != layouts::OpKind::attend || !op.ends || op.slot(Pool::output) == 0) return;
        by_step[tokens_of(op.rows())].emplace(op.step, op.begins ? std::optional(tokens_of(op.part)) : std::nullopt);
    });
    std::map<TokensOf, std::vector<std::optional<TokensOf>>> results;
    for (const auto& [rows, keys] : by_step)
        for (const auto& [step, tokens] : keys) results[rows].push_back(tokens);
    return results;
}

/// A summand of a gradient of keys, from one attend or the compress after it.
struct Contribution {
    int step;
    TokensOf rows;
    bool rounded;  // leaves its rank in the gradient's dtype
};

/// Over all ranks: the contributions to each gradient in the pool that travels, by keys, and the sums that are rounded
/// before they are sent on.
struct Contributions {
    std::map<TokensOf, std::vector<Contribution>> by_keys;
    std::set<std::pair<TokensOf, int>> rounded_sums;  // (keys, step)
};

Contributions contributions_of(const layouts::Schedule& backward, layouts::OpKind contributing, layouts::Pool travels) {
    Contributions result;
    std::set<std::pair<TokensOf, TokensOf>> seen;
    TokensOf attending;  // rows of the last attend, to which a compress belongs
    for_each_op(backward, [&](int, const layouts::Op& op) {
        const auto keys = tokens_of(op.part);
        if (op.kind == layouts::OpKind::attend) attending = tokens_of(op.rows());
        const bool contributes = op.kind == contributing;
        if (contributes && seen.emplace(attending, keys).second)
            result.by_keys[keys].push_back({op.step, attending, !op.adds && op.slot(travels) != 0});
        const bool adds = (contributes && op.adds) || (op.kind == layouts::OpKind::add && op.pool == travels);
        if (adds && op.slot(travels) != 0) result.rounded_sums.emplace(keys, op.step);
    });
    for (auto& [keys, parts] : result.by_keys)
        std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
    return result;
}

}  // namespace

bool ErrorModel::output_arrives(const layouts::Schedule& forward) {
    bool arrives = false;
    for_each_op(forward, [&](int, const layouts::Op& op) {
        arrives |= op.kind == layouts::OpKind::receive && op.pool == layouts::Pool::output && op.slot() == 0;
    });
    return arrives;
}

/// Number of merges of each row's result, at its owner and on other ranks. A merge into an empty result is a copy and
/// does not count.
std::vector<int> ErrorModel::merges_of(const layouts::Schedule& forward) const {
    std::map<TokensOf, std::vector<int>> by_rows;  // and head
    for_each_op(forward, [&](int, const layouts::Op& op) {
        if (op.kind != layouts::OpKind::merge || op.begins) return;
        auto& merges = by_rows.try_emplace(tokens_of(op.part), size(problem_.query_heads)).first->second;
        for (int head = op.part.heads.begin; head < op.part.heads.end; ++head) ++merges[size(head)];
    });
    std::vector<int> of_rows(rows_.size());
    for (const auto& [rows, merges] : by_rows)
        for (const auto row : owned(positions_of(forward, rows), rows_).indices)
            of_rows[row] += *std::ranges::max_element(merges);
    return of_rows;
}

ErrorModel::Blocks ErrorModel::forward_blocks(const Inputs& inputs, const layouts::Schedule& forward,
                                              bool round_running_output) const {
    Blocks blocks{std::vector<double>(row_.size() * size(problem_.value_dim)), std::vector<double>(row_.size()),
                  std::vector<int>(row_.size())};
    const double u2 = square(unit_of(problem_.dtype)), step = square(subnormal_to_unit(problem_.dtype));
    // Half a step, relative to the number: between 2^-n and 2^-n-1 for n significant bits; 2^-n is 2.36 u.
    const double half_step = 2.36 * unit_of(problem_.dtype) / std::sqrt(2.0);
    const auto width = size(problem_.value_dim);
    const auto all = all_positions(problem_.tokens);
    for (const auto& [rows, results] : rounded_results(forward)) {
        const auto mine = owned(positions_of(forward, rows), rows_);
        if (mine.positions.empty()) continue;
        const auto q = take_rows(problem_, inputs.q, mine.positions),
                   dout = take_rows(problem_, inputs.dout, mine.positions);
        // By row: the sums of contributions and of weights so far, and what a running output has lost.
        Tensor total(dout.shape(), 0.0), lost(dout.shape(), 0.0);
        Lse weights({dout.shape(0), dout.shape(1), dout.shape(2)}, 0.0);
        for (const auto& result : results) {
            const auto keys = result ? positions_of(forward, *result) : all;
            const auto k = take_tokens(inputs.k, keys), v = take_tokens(inputs.v, keys);
            Tensor o;
            Lse lse;
            patch_forward({problem_, mask_, mine.positions, keys, q, k, v}, o, lse, {});
            for (std::size_t b = 0; b < o.shape(0); ++b)
                for (std::size_t i = 0; i < o.shape(1); ++i)
                    for (std::size_t h = 0; h < o.shape(2); ++h) {
                        if (std::isinf(lse(b, i, h))) continue;
                        const auto at =
                            row_index(static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), mine.indices[i]);
                        const double weight = std::exp(lse(b, i, h) - row_[at].lse);
                        auto& weight_so_far = weights(b, i, h);
                        const bool first = blocks.count[at]++ == 0;
                        for (std::size_t d = 0; d < width; ++d) {
                            const double part = weight * o(b, i, h, d), before = total(b, i, h, d);
                            const double sum = total(b, i, h, d) = before + part;
                            double variance = square(part) + square(weight) * step;
                            if (round_running_output && !first) {
                                const double move = part - before * weight / weight_so_far;
                                if (std::abs(move) < half_step * std::abs(sum))
                                    lost(b, i, h, d) += move;
                                else
                                    variance += square(sum) + square(weight_so_far + weight) * step;
                            }
                            blocks.o[at * width + d] += u2 * variance;
                            blocks.delta[at] += u2 * variance * square(dout(b, i, h, d));
                        }
                        weight_so_far += weight;
                    }
        }
        for (std::size_t b = 0; b < lost.shape(0); ++b)
            for (std::size_t i = 0; i < lost.shape(1); ++i)
                for (std::size_t h = 0; h < lost.shape(2); ++h) {
                    const auto at =
                        row_index(static_cast<std::int64_t>(b), static_cast<std::int64_t>(h), mine.indices[i]);
                    const auto* row = &lost(b, i, h, 0);
                    for (std::size_t d = 0; d < width; ++d) blocks.o[at * width + d] += square(row[d]);
                    blocks.delta[at] += square(std::inner_product(row, row + width, &dout(b, i, h, 0), 0.0));
                }
    }
    return blocks;
}

void ErrorModel::add_gradient_blocks(const Inputs& inputs, const layouts::Schedule& backward, Columns& columns) const {
    const bool latent_travels = made_of_ != nullptr && !backward.keeps(layouts::Pool::dkv);
    const auto travels = latent_travels ? layouts::Pool::dlatent : layouts::Pool::dkv;
    const auto contributions =
        contributions_of(backward, latent_travels ? layouts::OpKind::compress : layouts::OpKind::attend, travels);
    if (latent_travels) columns.latent_parts.resize(size(problem_.batch) * columns_.size());
    const auto dtype = backward.options().gradient_dtype;
    const double u2 = square(unit_of(dtype)), step = square(subnormal_to_unit(dtype));
    for (const auto& [keys, parts] : contributions.by_keys) {
        const auto mine = owned(positions_of(backward, keys), columns_);
        if (mine.positions.empty()) continue;
        const auto k = take_tokens(inputs.k, mine.positions), v = take_tokens(inputs.v, mine.positions);
        auto part_problem = given_;
        part_problem.tokens = static_cast<std::int64_t>(mine.positions.size());
        const auto sources =
            latent_travels ? Inputs{{}, take_tokens(made_of_->k, mine.positions), made_of_->v, {}} : Inputs{};
        Tensor dk_sum(latent_travels ? sources.k.shape() : k.shape(), 0.0);
        Tensor dv_sum(latent_travels ? sources.v.shape() : v.shape(), 0.0);
        Tensor dk_squares(dk_sum.shape(), 0.0), dv_squares(dv_sum.shape(), 0.0);
        for (const auto& part : parts) {
            const auto rows = owned(positions_of(backward, part.rows), statistics_.rows);
            if (rows.positions.empty()) continue;
            const auto q = take_rows(problem_, inputs.q, rows.positions),
                       dout = take_rows(problem_, inputs.dout, rows.positions);
            Lse lse({q.shape(0), q.shape(1), q.shape(2)}), delta(lse.shape());
            for (std::size_t b = 0; b < lse.shape(0); ++b)
                for (std::size_t i = 0; i < lse.shape(1); ++i)
                    for (std::size_t h = 0; h < lse.shape(2); ++h) {
                        lse(b, i, h) = statistics_.lse(b, rows.indices[i], h);
                        delta(b, i, h) = statistics_.delta(b, rows.indices[i], h);
                    }
            Tensor dk, dv;
            patch_backward({problem_, mask_, rows.positions, mine.positions, q, k, v}, dout, lse, delta,
                           {.dk = &dk, .dv = &dv}, {});
            if (latent_travels) {
                Outputs gradients;
                gradients.dk = std::move(dk);
                gradients.dv = std::move(dv);
                compress(part_problem, sources, gradients);
                dk = std::move(gradients.dk);
                dv = std::move(gradients.dv);
            }
            if (part.rounded) {
                dk_squares += u2 * (dk * dk + step);
                dv_squares += u2 * (dv * dv + step);
            }
            dk_sum += dk;
            dv_sum += dv;
            if (contributions.rounded_sums.contains({keys, part.step})) {
                dk_squares += u2 * (dk_sum * dk_sum + step);
                dv_squares += u2 * (dv_sum * dv_sum + step);
            }
        }
        // A block may be sent in several pieces of tokens and heads; no element is in two of them.
        const auto take = [&](const Tensor& squares, std::vector<double>& to, double& largest) {
            for (std::size_t b = 0; b < squares.shape(0); ++b)
                for (std::size_t i = 0; i < squares.shape(1); ++i)
                    for (std::size_t g = 0; g < squares.shape(2); ++g) {
                        const auto* element = &squares(b, i, g, 0);
                        to[(b * squares.shape(2) + g) * columns_.size() + mine.indices[i]] +=
                            std::accumulate(element, element + squares.shape(3), 0.0);
                        largest = std::max(largest, *std::max_element(element, element + squares.shape(3)));
                    }
        };
        take(dk_squares, latent_travels ? columns.latent_parts : columns.dk.parts, columns.dk.own);
        if (!latent_travels) take(dv_squares, columns.dv.parts, columns.dv.own);
    }
}

}  // namespace ringlab::reference
