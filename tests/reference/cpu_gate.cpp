#include "tests/reference/cpu_gate.hpp"

#include "reference/attention/dense.hpp"
#include "reference/error/deviations.hpp"
#include "reference/features/latent.hpp"
#include "reference/ranks/transport.hpp"
#include "tests/reference/attention_cases.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace ringlab::reference::tests {

layouts::Problem small_problem(std::int64_t tokens) {
    layouts::Problem problem;
    problem.tokens = tokens;
    problem.query_heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 8;
    problem.value_dim = 5;
    problem.dtype = layouts::DType::fp64;
    return problem;
}

Inputs random_inputs(const layouts::Problem& p, unsigned seed) { return ringlab::tests::normal_inputs(p, seed); }

std::unique_ptr<layouts::Schedule> schedule_of(const GateCase& c, layouts::Pass pass) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    return layouts::make_schedule(c.problem, mask, layouts::make_layout(c.layout, mask, c.ranks),
                                  {c.schedule_name, pass, c.accumulation, c.gradient_dtype});
}

CpuRun run_case(World& world, const GateCase& c, const Inputs& inputs, const CpuOptions& options) {
    const auto forward = schedule_of(c, layouts::Pass::forward), backward = schedule_of(c, layouts::Pass::backward);
    return run(world, *forward, backward.get(), inputs, options);
}

CpuRun run_case(const GateCase& c, const Inputs& inputs, const CpuOptions& options) {
    ThreadWorld world({c.ranks, 1, {}});
    return run_case(world, c, inputs, options);
}

namespace {

/// The nearest token from which on nobody sees, or is seen by, a token before.
std::int64_t begin_of_document(const layouts::Mask& mask, std::int64_t token) {
    for (std::int64_t begin = token; begin > 0; --begin) {
        bool crossed = false;
        for (std::int64_t before = 0; before < begin && !crossed; ++before)
            for (std::int64_t behind = begin; behind < mask.tokens() && !crossed; ++behind)
                crossed = mask.row(before).contains(behind) || mask.row(behind).contains(before);
        if (!crossed) return begin;
    }
    return 0;
}

/// q' = R q, or dq = R^T dq', row by row and pair by pair as the definition says it.
Tensor turned(const Tensor& from, std::span<const std::int64_t> tokens, const layouts::Problem& problem,
              const layouts::Mask& mask, bool back) {
    const auto& rotary = problem.rotary;
    const auto table = layouts::rotary_table(rotary, problem.head_dim);
    const auto pairs = table.frequencies.size();
    const bool half = rotary.pairs == layouts::Rotary::Pairs::half;
    Tensor to = from;
    for (std::size_t t = 0; t < from.shape(1); ++t) {
        const auto token = tokens[t];
        const auto position =
            rotary.positions == layouts::Rotary::Positions::global ? token : token - begin_of_document(mask, token);
        for (std::size_t i = 0; i < pairs; ++i) {
            const auto first = static_cast<std::size_t>(rotary.first);
            const auto x = first + (half ? i : 2 * i), y = first + (half ? i + pairs : 2 * i + 1);
            const long double angle = static_cast<long double>(position) * table.frequencies[i];
            const long double c = table.amplitude * std::cos(angle), s = table.amplitude * std::sin(angle);
            for (std::size_t b = 0; b < from.shape(0); ++b)
                for (std::size_t h = 0; h < from.shape(2); ++h) {
                    const long double u = from(b, t, h, x), v = from(b, t, h, y);
                    to(b, t, h, x) = static_cast<double>(back ? c * u + s * v : c * u - s * v);
                    to(b, t, h, y) = static_cast<double>(back ? c * v - s * u : s * u + c * v);
                }
        }
    }
    return to;
}

}  // namespace

Outputs expected_of(const GateCase& c, const Inputs& inputs) {
    if (c.problem.latent.is_given()) {
        auto heads = c;
        heads.problem = c.problem.expanded();
        auto expected = expected_of(heads, expanded(c.problem, inputs));
        compress(c.problem, inputs, expected);
        return expected;
    }
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    if (!c.problem.rotary.rotates()) return dense_attention<double>(c.problem, mask, inputs);
    auto attended = inputs;
    const auto rows = c.problem.row_positions();
    const auto keys = all_positions(c.problem.tokens);
    attended.q = turned(attended.q, rows, c.problem, mask, false);
    attended.k = turned(attended.k, keys, c.problem, mask, false);
    auto expected = dense_attention<double>(c.problem, mask, attended);
    expected.dq = turned(expected.dq, rows, c.problem, mask, true);
    expected.dk = turned(expected.dk, keys, c.problem, mask, true);
    return expected;
}

namespace {

/// All that the results depend on, beside the mask. A field that is added to Problem does not compile here until it is
/// added too.
auto fields_of(const layouts::Problem& problem) {
    const auto& [batch, tokens, query_heads, kv_heads, head_dim, value_dim, scale, soft_cap, dtype, rotary, latent,
                 sinks, dropout, queries] = problem;
    return std::tie(batch, tokens, query_heads, kv_heads, head_dim, value_dim, scale, soft_cap, dtype, rotary, latent,
                    sinks, dropout, queries);
}

}  // namespace

const Expected& expected_once(const GateCase& c) {
    struct Known {
        layouts::Problem problem;
        Expected expected;
    };
    static std::multimap<std::string, Known> known_by_mask;
    const auto [begin, end] = known_by_mask.equal_range(c.mask);
    for (auto known = begin; known != end; ++known)
        if (fields_of(known->second.problem) == fields_of(c.problem)) return known->second.expected;
    auto inputs = random_inputs(c.problem, 2);
    auto outputs = expected_of(c, inputs);
    return known_by_mask.emplace(c.mask, Known{c.problem, {std::move(inputs), std::move(outputs)}})->second.expected;
}

std::string complaint(const Outputs& measured, const Outputs& expected) {
    constexpr double tolerance = 1e-13;
    std::string text;
    const auto judge = [&](const char* name, const Deviation& d) {
        if (d.relative_rms <= tolerance && d.max_to_largest <= tolerance) return;
        text += fmt::format("{}{} is off by {:.2g} in norm, {:.2g} in the largest element", text.empty() ? "" : "; ",
                            name, d.relative_rms, d.max_to_largest);
    };
    const auto d = deviations(measured, expected);
    judge("o", d.o);
    judge("lse", d.lse);
    judge("dq", d.dq);
    judge("dk", d.dk);
    judge("dv", d.dv);
    judge("dsinks", d.dsinks);
    return text;
}

std::string complaint_of_run(const std::function<Outputs()>& run, const Outputs& expected) {
    try {
        return complaint(run(), expected);
    } catch (const Error& error) {
        return error.what();
    }
}

void check_every_layout(const std::string& schedule_name, const Sweep& sweep,
                        const std::function<void(GateCase&)>& change) {
    using ringlab::tests::suits;
    constexpr std::int64_t tokens = 48;
    ringlab::tests::Combinations combinations;
    for (const int ranks : sweep.ranks)
        for (const auto& layout : ringlab::tests::layout_examples())
            for (const auto& mask : sweep.masks)
                for (const auto accumulation : sweep.accumulations) {
                    GateCase c{small_problem(tokens), mask, layout, schedule_name, ranks, accumulation};
                    change(c);
                    const bool divides = tokens % layouts::layout_granularity(layout, ranks) == 0;
                    if (!combinations.take(divides && suits(c.problem, schedule_name, ranks))) continue;
                    if (!ringlab::tests::runs_in_this_build(8)) continue;
                    const auto& [inputs, outputs] = expected_once(c);
                    const auto found = complaint_of_run(
                        [&, &given = inputs] { return run_case(c, given, small_tiles()).outputs; }, outputs);
                    BOOST_TEST(found == "", layout
                                                << ", " << mask << ", " << ranks << " ranks"
                                                << (accumulation == layouts::Accumulation::partials ? ", partials" : "")
                                                << ": " << found);
                }
}

void check_gradient(const GateCase& c, const Inputs& inputs, Tensor Inputs::*tensor, const Tensor& gradient,
                    std::size_t step) {
    constexpr double h = 1e-5;
    const auto loss = [&](std::size_t element, double change) {
        auto changed = inputs;
        (changed.*tensor).data()[element] += change;
        const auto o = expected_of(c, changed).o;
        return std::inner_product(o.begin(), o.end(), changed.dout.begin(), 0.0);
    };
    for (std::size_t i = 3; i < gradient.size(); i += step)
        BOOST_TEST(std::abs((loss(i, h) - loss(i, -h)) / (2 * h) - gradient.data()[i]) < 1e-8);
}

CpuOptions small_tiles() {
    CpuOptions options;
    options.tiles = {5, 7};
    options.timeout = std::chrono::seconds(20);
    return options;
}

namespace {

class NeverEnding : public Transfer {
public:
    std::optional<Clock::time_point> ended() override { return {}; }
};

}  // namespace

std::unique_ptr<Transfer> MutedTransport::send(std::span<const std::byte> from, int peer, int channel) {
    if (group_.ring_rank(rank()) == 1) return std::make_unique<NeverEnding>();
    return WrappedTransport::send(from, peer, channel);
}

}  // namespace ringlab::reference::tests
