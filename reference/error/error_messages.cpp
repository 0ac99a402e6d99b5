#include "reference/error/error_terms.hpp"
#include "reference/features/latent.hpp"

#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

// Errors of tensors that are rounded when they travel from rank to rank, according to the schedules.

namespace ringlab::reference {
namespace {

using layouts::OpKind;
using layouts::Pool;

/// Tokens of a part, without its heads: roundings are assumed to be similar for all heads.
using TokensOf = std::tuple<int, std::int64_t, std::int64_t>;

TokensOf tokens_of(const layouts::Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }

/// The global positions of these tokens, sorted.
std::vector<std::int64_t> positions_of(const layouts::Schedule& schedule, const TokensOf& tokens) {
    const auto [block, begin, end] = tokens;
    auto positions = layouts::positions_of(schedule.runs({block, {}, {begin, end}}));
    std::ranges::sort(positions);
    return positions;
}

/// The positions of a list that are among these tokens, with their indices in the list.
struct Owned {
    std::vector<std::size_t> indices;
    std::vector<std::int64_t> positions;
};
Owned owned(const layouts::Schedule& schedule, const TokensOf& tokens, const std::vector<std::int64_t>& from) {
    const auto positions = positions_of(schedule, tokens);
    Owned result;
    for (std::size_t i = 0; i < from.size(); ++i)
        if (std::ranges::binary_search(positions, from[i])) {
            result.indices.push_back(i);
            result.positions.push_back(from[i]);
        }
    return result;
}

/// Calls visit(operation) for all operations of all ranks.
template <class Visit>
void for_each_op(const layouts::Schedule& schedule, Visit visit) {
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next()) visit(*op);
    }
}

/// By rows: the steps in which a partial result of them is normalised and rounded, with its keys; no tokens stand for
/// all keys.
using RoundedResults = std::map<TokensOf, std::set<std::pair<int, std::optional<TokensOf>>>>;

/// Calls visit(batch, token, head) for all tokens and heads of a tensor.
template <class AnyTensor, class Visit>
void for_each_row(const AnyTensor& tensor, Visit visit) {
    for (std::size_t b = 0; b < tensor.shape(0); ++b)
        for (std::size_t t = 0; t < tensor.shape(1); ++t)
            for (std::size_t h = 0; h < tensor.shape(2); ++h) visit(b, t, h);
}

/// Adds the variances that these partial results cause in the rows that they are of.
void add_partials(const ErrorModel::Measured& m, const Inputs& inputs, const layouts::Schedule& forward,
                  const RoundedResults& results, bool round_running_output, Arrivals& arrivals) {
    const auto& a = m.arithmetic;
    for (const auto& [rows, blocks] : results) {
        const auto mine = owned(forward, rows, m.rows.rows);
        if (mine.positions.empty()) continue;
        const auto q = take_rows(m.problem, inputs.q, mine.positions),
                   dout = take_rows(m.problem, inputs.dout, mine.positions);
        // By row: the sums of contributions and of weights so far, and what a running output has lost: an element that
        // a block changes by less than half a step keeps its old value. That loss has a sign, which adds up.
        Tensor total(dout.shape(), 0.0), lost(dout.shape(), 0.0);
        Lse weights({dout.shape(0), dout.shape(1), dout.shape(2)}, 0.0);
        const double half_step = 2.36 * a.u / std::sqrt(2.0);  // of a number; between 2^-n and 2^-n-1, 2^-n is 2.36 u
        for (const auto& [step, tokens] : blocks) {
            const auto keys = tokens ? positions_of(forward, *tokens) : all_positions(m.problem.tokens);
            const auto k = take_tokens(inputs.k, keys), v = take_tokens(inputs.v, keys);
            Tensor o;
            Lse lse;
            patch_forward({m.problem, m.mask, mine.positions, keys, q, k, v}, o, lse, {});
            for_each_row(o, [&](std::size_t b, std::size_t i, std::size_t h) {
                if (std::isinf(lse(b, i, h))) return;
                const auto row = mine.indices[i];
                const double weight = std::exp(lse(b, i, h) - m.rows.lse(b, row, h));
                const bool adds = arrivals.blocks(b, row, h)++ > 0;
                for (std::size_t d = 0; d < o.shape(3); ++d) {
                    const double part = weight * o(b, i, h, d), before = total(b, i, h, d), sum = before + part;
                    const double move = part - before * weight / std::max(weights(b, i, h), 1e-300);
                    total(b, i, h, d) = sum;
                    double variance = a.u2 * (square(part) + square(weight) * a.step);
                    if (round_running_output && adds && std::abs(move) < half_step * std::abs(sum))
                        lost(b, i, h, d) += move;
                    else if (round_running_output && adds)
                        variance += a.u2 * (square(sum) + a.step);
                    arrivals.o(b, row, h, d) += variance;
                    arrivals.delta(b, row, h) += variance * square(dout(b, i, h, d));
                }
                weights(b, i, h) += weight;
            });
        }
        for_each_row(lost, [&](std::size_t b, std::size_t i, std::size_t h) {
            double of_delta = 0;
            for (std::size_t d = 0; d < lost.shape(3); ++d) {
                arrivals.o(b, mine.indices[i], h, d) += square(lost(b, i, h, d));
                of_delta += lost(b, i, h, d) * dout(b, i, h, d);
            }
            arrivals.delta(b, mine.indices[i], h) += square(of_delta);
        });
    }
}

/// A summand of a gradient of keys, from one attend or the compress after it.
struct Contribution {
    int step;
    TokensOf rows;
    bool rounded;  // leaves its rank in the gradient's dtype
};

/// Over all ranks: the contributions to each gradient in the pool that travels, by keys and in the order of steps, and
/// the sums that are rounded before they are sent on.
struct Contributions {
    std::map<TokensOf, std::vector<Contribution>> by_keys;
    std::set<std::pair<TokensOf, int>> rounded_sums;  // (keys, step)
};

Contributions contributions_of(const layouts::Schedule& backward, OpKind contributing, Pool travels) {
    Contributions result;
    std::set<std::pair<TokensOf, TokensOf>> seen;
    TokensOf attending;  // rows of the last attend, to which a compress belongs
    for_each_op(backward, [&](const layouts::Op& op) {
        const auto keys = tokens_of(op.part);
        if (op.kind == OpKind::attend) attending = tokens_of(op.rows());
        const bool contributes = op.kind == contributing;
        if (contributes && seen.emplace(attending, keys).second)
            result.by_keys[keys].push_back({op.step, attending, !op.adds && op.slot(travels) != 0});
        const bool adds = (contributes && op.adds) || (op.kind == OpKind::add && op.pool == travels);
        if (adds && op.slot(travels) != 0) result.rounded_sums.emplace(keys, op.step);
    });
    for (auto& [keys, parts] : result.by_keys) std::ranges::stable_sort(parts, {}, &Contribution::step);
    return result;
}

}  // namespace

Arrivals arrivals_of(const ErrorModel::Measured& m, const Inputs& inputs, const layouts::Schedule& forward,
                     bool round_running_output) {
    Arrivals arrivals;
    std::map<TokensOf, std::vector<int>> merges;  // and head
    RoundedResults results;
    for_each_op(forward, [&](const layouts::Op& op) {
        if (op.kind == OpKind::receive && op.pool == Pool::output && op.slot() == 0)
            arrivals.as_messages = m.arithmetic.narrow;
        if (op.kind == OpKind::merge && !op.begins) {  // into an empty result it is a copy
            auto& of_heads = merges.try_emplace(tokens_of(op.part), size(m.problem.query_heads)).first->second;
            for (int head = op.part.heads.begin; head < op.part.heads.end; ++head) ++of_heads[size(head)];
        }
        if (op.kind == OpKind::attend && op.ends && op.slot(Pool::output) != 0)
            results[tokens_of(op.rows())].emplace(op.step,
                                                  op.begins ? std::optional(tokens_of(op.part)) : std::nullopt);
    });
    arrivals.merges = arrivals.blocks = Lse(m.rows.lse.shape(), 0.0);
    for (const auto& [rows, of_heads] : merges)
        for (const auto row : owned(forward, rows, m.rows.rows).indices)
            for (std::size_t b = 0; b < m.rows.lse.shape(0); ++b)
                for (std::size_t h = 0; h < m.rows.lse.shape(2); ++h)
                    arrivals.merges(b, row, h) += *std::ranges::max_element(of_heads);
    // Without partials, a result that another rank normalises is rounded only if messages are.
    const bool partials = forward.options().accumulation == layouts::Accumulation::partials;
    if (!m.arithmetic.narrow || !(partials || arrivals.as_messages)) return arrivals;
    arrivals.o = Tensor(m.o.shape(), 0.0);
    arrivals.delta = arrivals.blocks;
    add_partials(m, inputs, forward, results, round_running_output, arrivals);
    return arrivals;
}

void add_travelling_gradients(const ErrorModel::Measured& m, const Inputs& inputs, const layouts::Schedule& backward,
                              Tensor& dk, Tensor& dv, Tensor& dlatent) {
    auto as_sent = m.problem;
    as_sent.dtype = backward.options().gradient_dtype;
    const Arithmetic a(as_sent);
    const bool as_summed = !a.narrow && (m.problem.dtype == layouts::DType::fp64) == (a.dtype == layouts::DType::fp64);
    if (as_summed) return;
    const double u2 = a.narrow ? a.u2 : a.e2;
    const bool latent_travels = m.made_of && !backward.keeps(Pool::dkv);
    const auto travels = latent_travels ? Pool::dlatent : Pool::dkv;
    const auto contributions = contributions_of(backward, latent_travels ? OpKind::compress : OpKind::attend, travels);
    if (latent_travels) dlatent = Tensor(m.made_of->k.shape(), 0.0);
    for (const auto& [keys, parts] : contributions.by_keys) {
        const auto mine = owned(backward, keys, m.columns);
        if (mine.positions.empty()) continue;
        const auto k = take_tokens(inputs.k, mine.positions), v = take_tokens(inputs.v, mine.positions);
        auto of_keys = m.given;
        of_keys.tokens = static_cast<std::int64_t>(mine.positions.size());
        const auto latent = latent_travels ? Inputs{{}, take_tokens(m.made_of->k, mine.positions), m.made_of->v, {}}
                                           : Inputs{{}, k, v, {}};
        Outputs sum, squares;
        sum.dk = squares.dk = Tensor(latent.k.shape(), 0.0);
        sum.dv = squares.dv = Tensor(latent.v.shape(), 0.0);
        const auto round = [&](const Outputs& gradients) {
            squares.dk += u2 * (gradients.dk * gradients.dk + a.step);
            squares.dv += u2 * (gradients.dv * gradients.dv + a.step);
        };
        for (const auto& part : parts) {
            const auto rows = owned(backward, part.rows, m.statistics.rows);
            if (rows.positions.empty()) continue;
            const auto q = take_rows(m.problem, inputs.q, rows.positions),
                       dout = take_rows(m.problem, inputs.dout, rows.positions);
            Lse lse({q.shape(0), q.shape(1), q.shape(2)}), delta(lse.shape());
            for_each_row(lse, [&](std::size_t b, std::size_t i, std::size_t h) {
                lse(b, i, h) = m.statistics.lse(b, rows.indices[i], h);
                delta(b, i, h) = m.statistics.delta(b, rows.indices[i], h);
            });
            Outputs gradients;
            patch_backward({m.problem, m.mask, rows.positions, mine.positions, q, k, v}, dout, lse, delta,
                           {.dk = &gradients.dk, .dv = &gradients.dv}, {});
            if (latent_travels) compress(of_keys, latent, gradients);
            if (part.rounded) round(gradients);
            sum.dk += gradients.dk;
            sum.dv += gradients.dv;
            if (contributions.rounded_sums.contains({keys, part.step})) round(sum);
        }
        // A block may be sent in several pieces of tokens and heads; no element is in two of them.
        const auto take = [&](const Tensor& from, Tensor& to) {
            for_each_row(from, [&](std::size_t b, std::size_t i, std::size_t h) {
                for (std::size_t d = 0; d < from.shape(3); ++d) to(b, mine.indices[i], h, d) += from(b, i, h, d);
            });
        };
        take(squares.dk, latent_travels ? dlatent : dk);
        if (!latent_travels) take(squares.dv, dv);
    }
}

}  // namespace ringlab::reference
