#include "experiments/study/decoding.hpp"

#include "experiments/inputs/inputs.hpp"
#include "experiments/options/source.hpp"
#include "experiments/options/values.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/attention/samples.hpp"
#include "reference/error/error_model.hpp"

#include <fmt/ranges.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

constexpr double garbage_value = 64;  // exact in every dtype, and far from any key, value or query

/// The problem without rotary embedding: keys are rotated once, when they are written to the cache.
layouts::Problem sizes_from(const ProblemConfig& config) {
    auto problem = problem_from(config);
    problem.rotary = {};
    return problem;
}

/// Copies token `from_token` of every batch element.
void copy_token(const reference::Tensor& from, std::size_t from_token, reference::Tensor& to, std::size_t to_token) {
    const auto row = to.shape(2) * to.shape(3);
    for (std::size_t b = 0; b < to.shape(0); ++b)
        std::copy_n(from.data() + (b * from.shape(1) + from_token) * row, row,
                    to.data() + (b * to.shape(1) + to_token) * row);
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> all;
    for (auto i = begin; i < end; ++i) all.push_back(i);
    return all;
}

}  // namespace

std::vector<std::int64_t> lengths_of(std::int64_t tokens, int sequences, const std::string& lengths) {
    if (parse_choice(lengths, "--lengths", {"falling", "equal"}) == 1)
        return std::vector(static_cast<std::size_t>(sequences), tokens);
    require(tokens >= sequences,
            "{} sequences of up to {} tokens: every sequence must have a token; give fewer --sequences", sequences,
            tokens);
    std::vector<std::int64_t> falling;
    for (int s = 0; s < sequences; ++s) falling.push_back(tokens * (sequences - s) / sequences);
    return falling;
}

Decoding::Decoding(const ProblemConfig& problem, const DecodingConfig& growth, const Case& size, Values values)
    : sizes_(problem),
      steps_(growth.steps),
      rows_(size.queries),
      size_(size),
      lengths_(lengths_of(size.tokens, size.sequences, growth.lengths)) {
    if (values == Values::none) return;
    auto all = this->problem(0);
    all.queries.clear();
    std::vector<std::int64_t> positions;
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
        const layouts::Interval grown{position(s, 0), position(s, 0) + appended()};
        all.queries.push_back(grown);
        for (auto at = grown.begin; at < grown.end; ++at) positions.push_back(at);
    }
    inputs_ = generate_inputs("normal", all, problem.seed).inputs;
    appended_ = {std::move(inputs_.q), reference::take_tokens(inputs_.k, positions),
                 reference::take_tokens(inputs_.v, positions), std::move(inputs_.dout)};
    restart();
}

std::int64_t Decoding::position(std::size_t sequence, int step) const {
    return layouts::cache_begin(lengths_, appended(), sequence) + lengths_[sequence] + step * rows_;
}

bool Decoding::is_of(const Case& other) const {
    return other.tokens == size_.tokens && other.sequences == size_.sequences && other.queries == size_.queries;
}

layouts::Problem Decoding::problem(int step) const {
    auto problem = sizes_from(sizes_);
    problem.tokens = layouts::cache_begin(lengths_, appended(), lengths_.size());
    for (std::size_t s = 0; s < lengths_.size(); ++s)
        problem.queries.push_back({position(s, step), position(s, step) + rows_});
    return problem;
}

Plan Decoding::plan(const Case& setup, int step) const {
    // A row sees the positions up to its own. Positions that are not yet written come after it.
    std::vector<std::int64_t> rooms;
    for (const auto length : lengths_) rooms.push_back(length + appended());
    const auto each = problem(step);
    const auto mask = layouts::make_mask(fmt::format("causal+documents:{}", fmt::join(rooms, ",")), each.tokens);
    const auto layout = layouts::cache_layout(setup.layout, lengths_, appended(), setup.ranks);
    const auto policy = policy_from(setup.policy, each.dtype);
    Plan plan{each, nullptr, nullptr};
    plan.forward = layouts::make_schedule(
        each, mask, layout, {setup.schedule, layouts::Pass::forward, policy.accumulation, policy.gradient_dtype, true});
    return plan;
}

std::vector<std::int64_t> Decoding::rows_of(int step) const {
    std::vector<std::int64_t> rows;
    for (std::size_t s = 0; s < lengths_.size(); ++s)
        for (std::int64_t row = 0; row < rows_; ++row)
            rows.push_back(static_cast<std::int64_t>(s) * appended() + step * rows_ + row);
    return rows;
}

double Decoding::bytes_read(const Plan& plan, int step) const {
    std::vector<layouts::Interval> seen;
    for (std::size_t s = 0; s < lengths_.size(); ++s)
        seen.push_back({layouts::cache_begin(lengths_, appended(), s), position(s, step) + rows_});
    std::int64_t most = 0;
    for (int rank = 0; rank < plan.layout().ranks(); ++rank) {
        std::int64_t tokens = 0;
        for (const auto& run : layouts::intersect_runs(plan.layout().shard(rank), seen)) tokens += run.count;
        most = std::max(most, tokens);
    }
    const auto& problem = plan.problem;
    return static_cast<double>(most * problem.batch * problem.kv_heads * (problem.head_dim + problem.value_dim) *
                               layouts::bytes_of(problem.dtype));
}

void Decoding::write(int step, bool garbage) {
    for (const auto row : rows_of(step)) {
        const auto from = static_cast<std::size_t>(row);
        const auto to =
            static_cast<std::size_t>(position(from / static_cast<std::size_t>(appended()), 0) + row % appended());
        for (const auto& [source, target] :
             {std::pair(&appended_.k, &inputs_.k), std::pair(&appended_.v, &inputs_.v)}) {
            const auto& shape = target->shape();
            if (garbage)
                copy_token(reference::Tensor({shape[0], 1, shape[2], shape[3]}, garbage_value), 0, *target, to);
            else
                copy_token(*source, from, *target, to);
        }
    }
}

void Decoding::restart() {
    for (int step = 0; step < steps_; ++step) write(step, true);
}

void Decoding::append(int step) {
    write(step, false);
    const auto rows = rows_of(step);
    inputs_.q = reference::take_tokens(appended_.q, rows);
    inputs_.dout = reference::take_tokens(appended_.dout, rows);
}

const reference::Outputs& Decoding::expected(int step) {
    const auto [found, is_new] = expected_.try_emplace(step);
    auto& all = found->second;
    if (!is_new) return all;
    all.o = reference::Tensor(inputs_.dout.shape(), 0.0);
    all.lse = reference::Lse({inputs_.q.shape(0), inputs_.q.shape(1), inputs_.q.shape(2)}, 0.0);
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
        const auto end = position(s, step) + rows_, first = layouts::cache_begin(lengths_, appended(), s);
        auto alone = sizes_from(sizes_);
        alone.tokens = end - first;
        alone.queries = {{alone.tokens - rows_, alone.tokens}};
        const auto keys = range(first, end);
        const auto first_row = static_cast<std::int64_t>(s) * rows_;
        const auto rows = range(first_row, first_row + rows_);
        const reference::Inputs in{reference::take_tokens(inputs_.q, rows), reference::take_tokens(inputs_.k, keys),
                                   reference::take_tokens(inputs_.v, keys), reference::take_tokens(inputs_.dout, rows)};
        reference::Outputs one;
        reference::blocked_forward(alone, layouts::make_mask("causal", alone.tokens), in, one);
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows_); ++row) {
            const auto to = static_cast<std::size_t>(first_row) + row;
            copy_token(one.o, row, all.o, to);
            for (std::size_t b = 0; b < one.lse.shape(0); ++b)
                for (std::size_t h = 0; h < one.lse.shape(2); ++h) all.lse(b, to, h) = one.lse(b, row, h);
        }
    }
    return all;
}

Tolerance Decoding::tolerance(const layouts::Schedule& forward, int step, bool round_running_output) {
    const auto& problem = forward.problem();
    const auto& wanted = expected(step);
    const reference::ErrorModel model(problem, forward.mask(), inputs_,
                                      reference::SampledRows{problem.row_positions(), wanted.o, wanted.lse,
                                                             reference::Tensor(inputs_.q.shape(), 0.0)},
                                      reference::SampledColumns{}, reference::RowStatistics{});
    const auto bounds = model.bounds(inputs_, forward, nullptr, round_running_output);
    Tolerance tolerance;
    std::size_t i = 0;
    for (const auto& bound : {bounds.o, bounds.o_unrounded, bounds.lse}) {
        tolerance.relative_rms[i] = bound.relative_rms;
        tolerance.max_relative[i++] = bound.max_to_largest;
    }
    return tolerance;
}

std::int64_t bytes_between_ranks(const layouts::Schedule& schedule) {
    std::int64_t bytes = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        auto ops = schedule.ops(rank);
        while (const auto* op = ops.next())
            if (op->kind == layouts::OpKind::send || op->kind == layouts::OpKind::fetch) bytes += op->bytes;
    }
    return bytes;
}

}  // namespace ringlab::experiments
