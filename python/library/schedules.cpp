#include "python/library/schedules.hpp"

namespace ringlab::python {

using layouts::DType;
using layouts::Pass;

namespace {

DType dtype_from(int dtype) {
    switch (dtype) {
        case RINGLAB_BF16: return DType::bf16;
        case RINGLAB_FP16: return DType::fp16;
        case RINGLAB_FP32: return DType::fp32;
        case RINGLAB_FP64: return DType::fp64;
    }
    fail("{} is no dtype; known: 0 (bf16), 1 (fp16), 2 (fp32), 3 (fp64)", dtype);
}

}  // namespace

layouts::Mask mask_from(const ringlab_choices& choices) {
    require(0 < choices.mask_tokens && choices.mask_tokens <= choices.tokens,
            "the mask is of {} tokens, the sequence has {}; it must have at least as many", choices.mask_tokens,
            choices.tokens);
    return layouts::pad(layouts::make_mask(*choices.mask ? choices.mask : "full", choices.mask_tokens), choices.tokens);
}

layouts::Layout layout_from(const ringlab_choices& choices, const layouts::Mask& mask) {
    require(choices.ranks > 0, "the ring has {} ranks; it must have at least 1", choices.ranks);
    return *choices.mask ? layouts::make_layout(choices.layout, mask, choices.ranks)
                         : layouts::make_layout(choices.layout, choices.tokens, choices.ranks);
}

void require_rank(int rank, int ranks) {
    require(0 <= rank && rank < ranks, "there is no rank {} in a ring of {}", rank, ranks);
}

void require_ring(int rank, int ranks, double timeout) {
    require_rank(rank, ranks);
    constexpr double longest = 1e9;  // seconds; clocks count nanoseconds in 64 bits
    require(timeout > 0 && timeout <= longest, "the time-out is {} s; it must be positive, and at most 1e9", timeout);
}

Schedules schedules_from(const ringlab_problem& given, const ringlab_choices& choices, bool sinks) {
    layouts::Problem problem;
    problem.batch = given.batch;
    problem.tokens = choices.tokens;
    problem.query_heads = given.query_heads;
    problem.kv_heads = given.kv_heads;
    problem.head_dim = given.head_dim;
    problem.value_dim = given.value_dim;
    problem.scale = given.scale;
    problem.soft_cap = given.soft_cap;
    problem.dropout.probability = given.dropout;
    problem.dtype = dtype_from(given.dtype);
    if (sinks) problem.sinks.assign(static_cast<std::size_t>(given.query_heads), 0.0);
    problem.validate();
    require(given.tokens == choices.tokens, "the problem has {} tokens, the choices {}", given.tokens, choices.tokens);
    const auto mask = mask_from(choices);
    const auto layout = layout_from(choices, mask);
    layouts::ScheduleOptions options{.schedule = choices.schedule};
    options.gradient_dtype = problem.dtype == DType::fp64 ? DType::fp64 : DType::fp32;
    Schedules schedules;
    for (const auto pass : {Pass::forward, Pass::backward}) {
        options.pass = pass;
        schedules[static_cast<std::size_t>(pass)] = layouts::make_schedule(problem, mask, layout, options);
    }
    return schedules;
}

}  // namespace ringlab::python
