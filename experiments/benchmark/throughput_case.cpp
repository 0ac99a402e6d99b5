#include "experiments/benchmark/throughput_case.hpp"

#include "experiments/options/source.hpp"
#include "experiments/options/values.hpp"
#include "layouts/basics/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace ringlab::experiments {
namespace {

bool wants(const TimingConfig& timing, const std::string& what) {
    return std::find(timing.beside.begin(), timing.beside.end(), what) != timing.beside.end();
}

/// Adds the same work on one GPU, and the rings.
void add_rings(const SweepConfig& sweep, const TimingConfig& timing, ThroughputCase one, int ranks,
               std::vector<ThroughputCase>& cases) {
    one.gpus = ranks;
    const auto tokens = one.setup.tokens;
    if (wants(timing, "work")) {
        one.kind = ThroughputCase::Kind::same_work;
        one.setup.tokens = same_work_tokens(one.setup.mask, tokens, ranks);
        cases.push_back(one);
    }
    one.kind = ThroughputCase::Kind::ring;
    one.setup.ranks = ranks;
    one.setup.tokens = tokens;
    for (const auto& schedule : sweep.schedules)
        for (const auto& transport : timing.transports)
            for (const auto& layout : sweep.layouts) {
                one.setup.schedule = schedule;
                one.setup.layout = layout;
                one.transport = transport;
                cases.push_back(one);
            }
}

}  // namespace

std::string ThroughputCase::name() const {
    std::string name;
    switch (kind) {
        case Kind::ceilings: return "ceilings";
        case Kind::device: name = fmt::format("device {} {} S={} {}", shape, setup.mask, setup.tokens, kernels); break;
        case Kind::same_work:
            name = fmt::format("same work {} {} S={} on each of {} {}", shape, setup.mask, setup.tokens, gpus, kernels);
            break;
        case Kind::ring: name = fmt::format("{} {} {} {}", setup.name(), shape, transport, kernels); break;
    }
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
}

bool asks_protocol(const TimingConfig& timing, const std::string& protocol) {
    return std::find(timing.protocols.begin(), timing.protocols.end(), protocol) != timing.protocols.end();
}

ProblemConfig with_shape(const std::string& shape, ProblemConfig config) {
    const auto parts = fields_of(shape, '/');
    require(parts.size() == 2 || parts.size() == 3,
            "--shapes {}: must be HEADS/DIM or HEADS/DIM/ARITHMETIC, as in 32:8/128, 32:8/192-128 or 16/64/fp16",
            shape);
    parse_heads(parts[0]);
    config.heads = parts[0];
    const auto dims = fields_of(parts[1], '-');
    require(dims.size() <= 2, "--shapes {}: the dims are one number, or HEAD-VALUE, as in 192-128", shape);
    config.head_dim = layouts::parse_count(dims.front(), "the head dim of a shape", 1);
    config.value_dim = layouts::parse_count(dims.back(), "the value dim of a shape", 1);
    if (parts.size() == 3) config.arithmetic = parts[2];
    return config;
}

Plan make_plan(const ThroughputCase& timed, const ProblemConfig& config) {
    return make_plan(timed.setup, problem_from(with_shape(timed.shape, config)));
}

std::string shape_text(const layouts::Problem& p) {
    const auto value = p.value_dim == p.head_dim ? std::string() : fmt::format("-{}", p.value_dim);
    return fmt::format("{}:{}/{}{}/{}", p.query_heads, p.kv_heads, p.head_dim, value, to_string(p.dtype));
}

std::int64_t same_work_tokens(const std::string& mask, std::int64_t tokens, int ranks) {
    if (mask != "causal" && mask != "full") return tokens;
    constexpr double granularity = 128;
    const auto exact = static_cast<double>(tokens) / std::sqrt(ranks);
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::round(exact / granularity) * granularity));
}

std::vector<ThroughputCase> throughput_cases(const ProblemConfig& problem, const SweepConfig& sweep,
                                             const TimingConfig& timing) {
    using Kind = ThroughputCase::Kind;
    std::vector<ThroughputCase> cases;
    const int most_ranks = *std::max_element(sweep.ranks.begin(), sweep.ranks.end());
    require(most_ranks == 1 || asks_protocol(timing, "sustained"),
            "--protocol burst --ranks {}: rings are timed sustained; name both protocols, or give --ranks 1",
            most_ranks);
    if (wants(timing, "ceilings")) cases.push_back({.kind = Kind::ceilings, .gpus = most_ranks});
    std::vector<std::string> shapes;
    const auto add_shape = [&](const layouts::Problem& shape) {
        require(layouts::bytes_of(shape.dtype) == 2, "arithmetic {}: the kernels compute in bf16 or fp16",
                to_string(shape.dtype));
        shapes.push_back(shape_text(shape));
    };
    for (const auto& shape : timing.shapes) add_shape(problem_from(with_shape(shape, problem)));
    if (shapes.empty()) add_shape(problem_from(problem));
    const auto sizes = sequence_lengths(sweep, 1, 0).size();
    for (const auto& shape : shapes)
        for (const auto& mask : sweep.masks)
            for (std::size_t size = 0; size < sizes; ++size)
                for (const int ranks : sweep.ranks)
                    for (const auto& kernels : timing.kernels) {
                        ThroughputCase one{.kind = Kind::device, .shape = shape, .kernels = kernels};
                        one.setup.pad = sweep.pad;
                        one.setup.mask = mask;
                        one.setup.tokens = sequence_lengths(sweep, ranks, 0)[size];
                        one.setup.layout = "contiguous";
                        one.setup.schedule = "ring";
                        if (ranks == 1)
                            cases.push_back(one);
                        else
                            add_rings(sweep, timing, one, ranks, cases);
                    }
    std::set<std::string> names;
    for (const auto& one : cases)
        require(names.insert(one.name()).second, "the case '{}' occurs twice; give each shape, mask and size once",
                one.name());
    return cases;
}

}  // namespace ringlab::experiments
