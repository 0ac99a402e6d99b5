#include "experiments/study/judge.hpp"

#include "layouts/basics/require.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/attention/samples.hpp"
#include "reference/features/latent.hpp"
#include "reference/features/rotary.hpp"
#include "reference/features/sinks.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

constexpr std::int64_t sample_size = 128;

/// About sample_size pseudo-random positions of the sequence, with the first and the last. A fixed stride could miss
/// all chunks of some rank.
std::vector<std::int64_t> sample_of(std::int64_t tokens) {
    std::vector<std::int64_t> sample{0, tokens - 1};
    std::uint64_t state = 1;
    for (std::int64_t i = 2; i < sample_size; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
        sample.push_back(static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(tokens)));
    }
    std::sort(sample.begin(), sample.end());
    sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
    return sample;
}

reference::Lse lse_of_tokens(const reference::Lse& from, const std::vector<std::int64_t>& tokens) {
    const auto& shape = from.shape();
    reference::Lse out({shape[0], tokens.size(), shape[2]});
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (std::size_t i = 0; i < tokens.size(); ++i)
            for (std::size_t h = 0; h < shape[2]; ++h) out(b, i, h) = from(b, static_cast<std::size_t>(tokens[i]), h);
    return out;
}

/// Turns dq and dk into the gradients with respect to rotated q and k. `rows` and `keys`: see `tokens` of
/// reference::rotated().
void rotate_gradients(reference::Outputs& outputs, const layouts::Problem& problem, const layouts::Mask& mask,
                      std::span<const std::int64_t> rows, std::span<const std::int64_t> keys = {}) {
    const auto way = reference::Rotation::Way::inverse_of_back;
    outputs.dq = rotated(std::move(outputs.dq), problem, mask, way, rows);
    outputs.dk = rotated(std::move(outputs.dk), problem.with_latent_as_key(), mask, way, keys);
}

Verdict compare(const reference::Outputs& measured, const reference::Tensor& o_unrounded,
                const reference::Outputs& expected) {
    const auto all = reference::deviations(measured, expected);
    return {all.o,     reference::deviation("o_unrounded", o_unrounded, expected.o), all.lse, all.dq, all.dk, all.dv,
            all.dsinks};
}

}  // namespace

Tolerance uniform_tolerance(double largest) {
    Tolerance tolerance;
    tolerance.relative_rms.fill(largest);
    tolerance.max_relative.fill(largest);
    return tolerance;
}

std::string to_string(Extent extent) {
    switch (extent) {
        case Extent::whole: return "whole";
        case Extent::sampled: return "sampled";
        case Extent::sampled_by_own_rows: return "sampled, columns by the run's own lse and delta";
    }
    return {};
}

JudgeLimits judge_limits(const Config& config) { return {.whole_tokens = config.judging.limit}; }

Judging judging_of(const layouts::Problem& problem, const layouts::Mask& mask, const JudgeLimits& limits) {
    // With more rows than this, evenly spread rows represent the others, so that the estimate stays quick.
    constexpr std::int64_t rows_looked_at = 1 << 16;
    const bool whole = problem.tokens <= limits.whole_tokens;
    const auto sample = whole ? std::vector<std::int64_t>() : sample_of(problem.tokens);
    const auto stride = std::max<std::int64_t>(1, problem.tokens / rows_looked_at);
    const auto all = problem.queries.empty() ? std::vector<layouts::Interval>{{0, problem.tokens}} : problem.queries;
    double pairs = 0;
    for (const auto& rows : all)
        for (auto row = rows.begin; row < rows.end; row += stride) {
            const auto keys = mask.row(row);
            // A row is counted if a sampled key lies between the first and the last key that it sees, even if it does
            // not see this key.
            const auto first = std::lower_bound(sample.begin(), sample.end(), keys.first());
            if (whole || (first != sample.end() && *first < keys.end))
                pairs += static_cast<double>(stride * keys.count());
        }
    if (whole) return {Extent::whole, pairs};
    const auto forward = problem.forward_flop_per_pair(), both = forward + problem.backward_flop_per_pair();
    const auto of_sample = 2.0 * sample_size * static_cast<double>(problem.tokens);
    if (pairs * forward * static_cast<double>(problem.batch * problem.query_heads) > limits.statistics_flop)
        return {Extent::sampled_by_own_rows, of_sample};
    return {Extent::sampled, of_sample + pairs * forward / both};
}

Verdict Judge::operator()(const layouts::Problem& problem, const layouts::Mask& mask, const reference::Inputs& inputs,
                          const std::string& input_name, const reference::Outputs& measured,
                          const reference::Tensor& o_unrounded) {
    const auto& reference_inputs = prepare(problem, mask, inputs, input_name);
    if (extent_ == Extent::whole) {
        if (!problem.rotary.rotates()) return compare(measured, o_unrounded, expected_);
        auto turned = measured;
        rotate_gradients(turned, problem, mask, problem.row_positions());
        return compare(turned, o_unrounded, expected_);
    }
    if (extent_ == Extent::sampled_by_own_rows)
        columns_by_own_rows(problem, mask, reference_inputs, measured, o_unrounded);
    sinks_by_own_rows(problem, reference_inputs, measured, o_unrounded);
    using reference::take_tokens;
    const auto rows = problem.row_indices_of(sampled_rows_);
    reference::Outputs sampled{take_tokens(measured.o, rows),     lse_of_tokens(measured.lse, rows),
                               take_tokens(measured.dq, rows),    take_tokens(measured.dk, sample_),
                               take_tokens(measured.dv, sample_), measured.dsinks};
    if (problem.rotary.rotates()) rotate_gradients(sampled, problem, mask, sampled_rows_, sample_);
    return compare(sampled, take_tokens(o_unrounded, rows), expected_);
}

/// Expected gradients of sinks. They depend on all rows, so they are computed from the run's own lse and o, whose
/// sampled rows are judged.
void Judge::sinks_by_own_rows(const layouts::Problem& problem, const reference::Inputs& inputs,
                              const reference::Outputs& measured, const reference::Tensor& o_unrounded) {
    expected_.dsinks = reference::sink_gradient(problem, measured.lse, reference::row_delta(inputs.dout, o_unrounded));
}

void Judge::columns_by_own_rows(const layouts::Problem& problem, const layouts::Mask& mask,
                                const reference::Inputs& inputs, const reference::Outputs& measured,
                                const reference::Tensor& o_unrounded) {
    statistics_.rows = reference::rows_that_see(problem, mask, sample_);
    statistics_.lse = lse_of_tokens(measured.lse, problem.row_indices_of(statistics_.rows));
    statistics_.delta = reference::row_delta(reference::take_rows(problem, inputs.dout, statistics_.rows),
                                             reference::take_rows(problem, o_unrounded, statistics_.rows));
    auto columns = reference::sampled_columns(problem, mask, inputs, sample_, statistics_);
    expected_.dk = std::move(columns.dk);
    expected_.dv = std::move(columns.dv);
}

Tolerance Judge::tolerance(const layouts::Schedule& forward, const layouts::Schedule& backward,
                           const reference::Inputs& raw_inputs, const std::string& input_name,
                           bool round_running_output) {
    const auto& problem = forward.problem();
    const auto& mask = forward.mask();
    const auto& inputs = prepare(problem, mask, raw_inputs, input_name);
    if (!model_) {
        const auto& [o, lse, dq, dk, dv, dsinks] = expected_;
        require(expected_.dk.size() > 0, "no results have been judged yet, so they have no tolerance");
        model_ =
            extent_ == Extent::whole
                ? std::make_unique<reference::ErrorModel>(
                      problem, mask, inputs, problem.latent.is_given() ? expected_of_heads_ : expected_, &raw_inputs)
                : std::make_unique<reference::ErrorModel>(problem, mask, inputs,
                                                          reference::SampledRows{sampled_rows_, o, lse, dq},
                                                          reference::SampledColumns{sample_, dk, dv}, statistics_);
    }
    const bool sends_results = std::ranges::any_of(
        forward.slots(), [](const layouts::SlotGroup& group) { return group.pool == layouts::Pool::output; });
    const bool carried = !sends_results && forward.options().accumulation == layouts::Accumulation::carry &&
                         layouts::bytes_of(backward.options().gradient_dtype) > 2;
    auto known = carried ? carried_bounds_ : std::nullopt;
    if (!known) known = model_->bounds(inputs, forward, &backward, round_running_output);
    if (carried) carried_bounds_ = known;
    const auto& bounds = *known;
    Tolerance tolerance;
    std::size_t i = 0;
    for (const auto& bound :
         {bounds.o, bounds.o_unrounded, bounds.lse, bounds.dq, bounds.dk, bounds.dv, bounds.dsinks}) {
        tolerance.relative_rms[i] = bound.relative_rms;
        tolerance.max_relative[i++] = bound.max_to_largest;
    }
    return tolerance;
}

const reference::Inputs& Judge::prepare(const layouts::Problem& problem, const layouts::Mask& mask,
                                        const reference::Inputs& raw_inputs, const std::string& input_name) {
    const bool rotates = problem.rotary.rotates(), expands = problem.latent.is_given();
    auto key =
        fmt::format("{} {} {} {} {} {} {} {}", input_name, mask.name(), problem.tokens, problem.effective_scale(),
                    problem.soft_cap, text_of(problem.rotary), text_of(problem.latent), text_of(problem.dropout));
    for (const double sink : problem.sinks) key += fmt::format(" s{}", sink);
    for (const auto& rows : problem.queries) key += fmt::format(" q{}-{}", rows.begin, rows.end);
    for (const auto& valid : mask.valid()) key += fmt::format(" {}-{}", valid.begin, valid.end);
    const auto& inputs = rotates || expands ? attended_ : raw_inputs;
    if (key == prepared_for_) return inputs;
    const auto of_heads = problem.expanded();
    if (expands) attended_ = expanded(problem, raw_inputs);
    if (rotates) attended_ = with_rotation(of_heads, mask, expands ? attended_ : raw_inputs);
    extent_ = judging_of(problem, mask, limits_).extent;
    if (extent_ == Extent::whole) {
        expected_ = reference::blocked_attention(of_heads, mask, inputs);
        if (expands) {
            expected_of_heads_ = expected_;
            compress(problem, raw_inputs, expected_);
        }
    } else {
        require(
            !expands,
            "the gradient of latent {} is judged whole, up to {} tokens, not {}: it takes all heads' dk and dv; say "
            "--judge-limit none, or --judge-limit {}",
            text_of(problem.latent), limits_.whole_tokens, problem.tokens, problem.tokens);
        sample_ = sample_of(problem.tokens);
        const auto positions = problem.row_positions();
        sampled_rows_.clear();
        for (const auto row : sample_of(problem.rows()))
            sampled_rows_.push_back(positions[static_cast<std::size_t>(row)]);
        auto rows = reference::sampled_rows(problem, mask, inputs, sampled_rows_);
        expected_ = {std::move(rows.o), std::move(rows.lse), std::move(rows.dq), {}, {}, {}};
    }
    if (extent_ == Extent::sampled) {
        statistics_ = reference::row_statistics(problem, mask, inputs, sample_);
        auto columns = reference::sampled_columns(problem, mask, inputs, sample_, statistics_);
        expected_.dk = std::move(columns.dk);
        expected_.dv = std::move(columns.dv);
    }
    model_.reset();
    carried_bounds_.reset();
    prepared_for_ = key;
    return inputs;
}

}  // namespace ringlab::experiments
