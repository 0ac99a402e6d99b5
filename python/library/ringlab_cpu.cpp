#include "python/library/ringlab_cpu.h"

#include "layouts/basics/registry.hpp"
#include "layouts/problem/rotary.hpp"
#include "layouts/program/program.hpp"
#include "provenance_commit.hpp"
#include "python/library/callback_ring.hpp"
#include "python/library/schedules.hpp"
#include "python/library/status.hpp"
#include "reference/error/error_model.hpp"
#include "reference/ranks/cpu_rank.hpp"
#include "reference/ranks/executor.hpp"
#include "reference/tensors/rounding.hpp"
#include "sim/play/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

using namespace ringlab;
using layouts::DType;
using layouts::Pass;
using python::guarded;
using python::guarded_pass;
using python::last_message;
using python::layout_from;
using python::mask_from;
using python::require_rank;
using reference::CpuOptions;

struct ringlab_ring {
    python::CallbackRing transport;
    std::vector<layouts::Span> spans = {};  // of the last pass
    reference::Clock::time_point start = {};
};

/// Both passes of a problem, and what they resolve to: the backward pass's when it is first asked for.
struct ringlab_plan {
    ringlab_plan(const ringlab_problem& problem, const ringlab_choices& choices)
        : schedules(python::schedules_from(problem, choices)) {}

    static std::size_t index(Pass pass) { return static_cast<std::size_t>(pass); }
    const layouts::Schedule& schedule(Pass pass) const { return *schedules[index(pass)]; }
    const layouts::Problem& problem() const { return schedule(Pass::forward).problem(); }

    const layouts::Program& program(Pass pass) {
        const std::lock_guard lock(mutex);
        auto& program = programs[index(pass)];
        if (!program) program = layouts::resolve(schedule(pass), layouts::Fetches::served);
        return *program;
    }

    python::Schedules schedules;
    std::array<std::optional<layouts::Program>, 2> programs;
    std::mutex mutex;
};

namespace {

// ---- Numbers of any dtype, strided, and as ranks keep them: (heads, batch, tokens, dim) in fp64 ----

struct Shape {
    std::int64_t batch, tokens, heads, dim;
    std::size_t numbers() const { return size(batch * tokens * heads * dim); }
};

template <class Element>
double widened(Element element) {
    return static_cast<double>(element);
}

std::vector<double> shard_of(const ringlab_tensor& tensor, const Shape& shape, DType dtype) {
    std::vector<double> numbers(shape.numbers());
    const auto copy = [&](const auto* data, auto widen) {
        auto to = numbers.begin();
        for (std::int64_t h = 0; h < shape.heads; ++h)
            for (std::int64_t b = 0; b < shape.batch; ++b)
                for (std::int64_t t = 0; t < shape.tokens; ++t) {
                    const auto* row = data + b * tensor.strides[0] + t * tensor.strides[1] + h * tensor.strides[2];
                    for (std::int64_t d = 0; d < shape.dim; ++d) *to++ = widen(row[d * tensor.strides[3]]);
                }
    };
    using Bits = std::uint16_t;
    switch (dtype) {
        case DType::bf16: copy(static_cast<const Bits*>(tensor.data), reference::from_bits<reference::Bf16>); break;
        case DType::fp16: copy(static_cast<const Bits*>(tensor.data), reference::from_bits<reference::Fp16>); break;
        case DType::fp32: copy(static_cast<const float*>(tensor.data), widened<float>); break;
        case DType::fp64: copy(static_cast<const double*>(tensor.data), widened<double>); break;
    }
    return numbers;
}

ringlab_tensor contiguous(const void* data, const Shape& shape) {
    return {data, {shape.tokens * shape.heads * shape.dim, shape.heads * shape.dim, shape.dim, 1}};
}

/// The reverse, contiguous.
void write_shard(const std::vector<double>& shard, const Shape& shape, DType dtype, void* out) {
    require(shard.size() == shape.numbers(), "a result has {} numbers instead of {}", shard.size(), shape.numbers());
    const auto copy = [&](auto* data, auto narrow) {
        auto from = shard.begin();
        for (std::int64_t h = 0; h < shape.heads; ++h)
            for (std::int64_t b = 0; b < shape.batch; ++b)
                for (std::int64_t t = 0; t < shape.tokens; ++t) {
                    auto* row = data + ((b * shape.tokens + t) * shape.heads + h) * shape.dim;
                    for (std::int64_t d = 0; d < shape.dim; ++d) row[d] = narrow(*from++);
                }
    };
    using Bits = std::uint16_t;
    switch (dtype) {
        case DType::bf16: copy(static_cast<Bits*>(out), reference::to_bits<reference::Bf16>); break;
        case DType::fp16: copy(static_cast<Bits*>(out), reference::to_bits<reference::Fp16>); break;
        case DType::fp32: copy(static_cast<float*>(out), [](double x) { return static_cast<float>(x); }); break;
        case DType::fp64: copy(static_cast<double*>(out), [](double x) { return x; }); break;
    }
}

/// The caller's tensors of one rank.
class GivenInputs : public reference::RankInputs {
public:
    GivenInputs(const layouts::Problem& problem, std::int64_t tokens, const ringlab_inputs& inputs,
                const ringlab_tensor* dout)
        : problem_(problem), tokens_(tokens), inputs_(inputs), dout_(dout) {}

    std::vector<double> q() const override { return of(inputs_.q, problem_.query_heads, problem_.head_dim); }
    std::vector<double> k() const override { return of(inputs_.k, problem_.kv_heads, problem_.head_dim); }
    std::vector<double> v() const override { return of(inputs_.v, problem_.kv_heads, problem_.value_dim); }
    std::vector<double> dout() const override { return of(*dout_, problem_.query_heads, problem_.value_dim); }
    const reference::Tensor& matrices() const override { fail("there is no latent"); }

private:
    std::vector<double> of(const ringlab_tensor& tensor, std::int64_t heads, std::int64_t dim) const {
        return shard_of(tensor, {problem_.batch, tokens_, heads, dim}, problem_.dtype);
    }

    const layouts::Problem& problem_;
    const std::int64_t tokens_;
    const ringlab_inputs& inputs_;
    const ringlab_tensor* dout_;
};

/// With what changes from call to call.
layouts::Problem problem_of_call(const ringlab_plan& plan, const double* sinks, std::uint64_t seed) {
    auto problem = plan.problem();
    if (sinks) problem.sinks.assign(sinks, sinks + problem.query_heads);
    problem.dropout.seed = seed;
    problem.validate();
    return problem;
}

/// One rank of one call; forgets what is under way when it ends, well or not.
class Call {
public:
    Call(ringlab_plan& plan, ringlab_ring& ring, const ringlab_inputs& inputs, const ringlab_tensor* dout)
        : plan_(plan),
          ring_(ring),
          transport_(ring.transport),
          problem_(problem_of_call(plan, inputs.sinks, inputs.seed)),
          tokens_(plan.schedule(Pass::forward).layout().shard_tokens(transport_.rank())) {
        const auto& schedule = plan.schedule(Pass::forward);
        require(schedule.ranks() == transport_.ranks(), "the plan is for {} ranks, the ring has {}", schedule.ranks(),
                transport_.ranks());
        rank_ = reference::make_cpu_rank(schedule, transport_.rank(),
                                         std::make_unique<GivenInputs>(problem_, tokens_, inputs, dout), problem_,
                                         options_);
    }
    ~Call() { transport_.forget(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    void resume(const void* o_exact, const void* lse) {
        const auto accumulator = plan_.schedule(Pass::forward).accumulator();
        rank_->resume(
            shard_of(contiguous(o_exact, of_rows(problem_.value_dim)), of_rows(problem_.value_dim), accumulator),
            shard_of(contiguous(lse, of_rows(1)), of_rows(1), accumulator));
    }

    reference::RankResult run(Pass pass) {
        const auto& program = plan_.program(pass);
        const layouts::RingGroup group{.ring = transport_.ranks()};
        const reference::SingleThreadedBlas single_threaded;
        rank_->begin(plan_.schedule(pass), program);
        ring_.spans.clear();
        ring_.start = transport_.start_together();
        ring_.spans =
            reference::execute(program.ranks[size(transport_.rank())], program.lanes, {group, 0, transport_.rank()},
                               *rank_, transport_, ring_.start, transport_.timeout());
        rank_->end();
        reference::RankResult result;
        rank_->collect(result);
        return result;
    }

    Shape of_rows(std::int64_t dim) const { return {problem_.batch, tokens_, problem_.query_heads, dim}; }
    Shape of_keys(std::int64_t dim) const { return {problem_.batch, tokens_, problem_.kv_heads, dim}; }
    const layouts::Problem& problem() const { return problem_; }

private:
    ringlab_plan& plan_;
    ringlab_ring& ring_;
    python::CallbackRing& transport_;
    const layouts::Problem problem_;
    const std::int64_t tokens_;
    const CpuOptions options_;
    std::unique_ptr<reference::CpuRank> rank_;
};

template <class Factory>
void name_at(const layouts::Registry<Factory>& registry, int index, const char** name, const char** usage,
             const char** help) {
    const auto& entries = registry.entries();
    require(0 <= index && size(index) < entries.size(), "there is no name {} of {}", index, entries.size());
    const auto& [key, entry] = *std::next(entries.begin(), index);
    *name = key.c_str();
    *usage = entry.usage.c_str();
    *help = entry.help.c_str();
}

reference::Tensor tensor_of(const double* data, const std::array<std::int64_t, 4>& shape) {
    std::array<std::size_t, 4> sizes;
    std::ranges::transform(shape, sizes.begin(), size);
    reference::Tensor tensor(sizes);
    std::copy_n(data, tensor.size(), tensor.data());
    return tensor;
}

ringlab_span span_from(const layouts::Span& span, double since_start) {
    using layouts::OpKind;
    const bool is_compute = span.lane == layouts::compute_lane;
    const auto activity = span.kind == OpKind::attend ? RINGLAB_ATTEND
                          : is_compute                ? RINGLAB_OTHER_COMPUTE
                          : span.kind == OpKind::send ? RINGLAB_SEND
                                                      : RINGLAB_RECEIVE;
    return {since_start - layouts::to_seconds(span.posted), since_start - layouts::to_seconds(span.end), activity,
            is_compute ? -1 : span.peer};
}

double largest(const std::vector<layouts::RankTotals>& ranks, layouts::Picoseconds layouts::RankTotals::*member) {
    layouts::Picoseconds most = 0;
    for (const auto& rank : ranks) most = std::max(most, rank.*member);
    return layouts::to_seconds(most);
}

}  // namespace

extern "C" {

int ringlab_version(void) { return RINGLAB_CPU_VERSION; }
const char* ringlab_message(void) { return last_message.c_str(); }

const char* ringlab_commit(void) { return RINGLAB_COMMIT; }

ringlab_status ringlab_name(ringlab_kind kind, int index, const char** name, const char** usage, const char** help) {
    return guarded(RINGLAB_REFUSED, [&] {
        switch (kind) {
            case RINGLAB_LAYOUTS: return name_at(layouts::layouts(), index, name, usage, help);
            case RINGLAB_MASKS: return name_at(layouts::masks(), index, name, usage, help);
            case RINGLAB_SCHEDULES: return name_at(layouts::schedules(), index, name, usage, help);
        }
        fail("{} is no kind of name; known: 0 (layouts), 1 (masks), 2 (schedules)", static_cast<int>(kind));
    });
}

ringlab_status ringlab_granularity(const char* layout, int ranks, int64_t* multiple) {
    return guarded(RINGLAB_REFUSED, [&] { *multiple = layouts::layout_granularity(layout, ranks); });
}

ringlab_status ringlab_positions(const ringlab_choices* choices, int rank, int by_document, int64_t* positions,
                                 int64_t capacity, int64_t* count) {
    return guarded(RINGLAB_REFUSED, [&] {
        const auto mask = mask_from(*choices);
        const auto layout = layout_from(*choices, mask);
        require_rank(rank, layout.ranks());
        auto own = layout.positions(rank);
        if (by_document) own = rotary_positions({.positions = layouts::Rotary::Positions::documents}, mask, own);
        *count = static_cast<std::int64_t>(own.size());
        std::copy_n(own.begin(), std::min(capacity, *count), positions);
    });
}

ringlab_status ringlab_visible(const ringlab_choices* choices, const int64_t* queries, const int64_t* keys,
                               int64_t count, uint8_t* visible) {
    return guarded(RINGLAB_REFUSED, [&] {
        const auto mask = mask_from(*choices);
        for (std::int64_t i = 0; i < count; ++i) {
            require(0 <= std::min(queries[i], keys[i]) && std::max(queries[i], keys[i]) < mask.tokens(),
                    "pair {}, {} is not of {} tokens", queries[i], keys[i], mask.tokens());
            visible[i] = mask.visible(queries[i], keys[i]);
        }
    });
}

ringlab_status ringlab_plan_create(const ringlab_problem* problem, const ringlab_choices* choices,
                                   ringlab_plan** plan) {
    return guarded(RINGLAB_REFUSED, [&] { *plan = std::make_unique<ringlab_plan>(*problem, *choices).release(); });
}

void ringlab_plan_destroy(ringlab_plan* plan) { delete plan; }

ringlab_status ringlab_ring_create(const ringlab_transport* transport, int rank, int ranks, double timeout,
                                   ringlab_ring** ring) {
    return guarded(RINGLAB_REFUSED, [&] {
        python::require_ring(rank, ranks, timeout);
        const auto limit =
            std::chrono::duration_cast<reference::Clock::duration>(std::chrono::duration<double>(timeout));
        *ring = new ringlab_ring{{*transport, rank, ranks, limit}};
    });
}

void ringlab_ring_destroy(ringlab_ring* ring) { delete ring; }

void ringlab_ring_done(ringlab_ring* ring, uint64_t request, const void* data, size_t bytes, const char* error) {
    ring->transport.done(request, {static_cast<const std::byte*>(data), bytes}, error);
}

ringlab_status ringlab_forward(ringlab_plan* plan, ringlab_ring* ring, const ringlab_inputs* inputs, void* o,
                               void* o_exact, void* lse) {
    return guarded_pass(ring->transport.broken, [&] {
        Call call(*plan, *ring, *inputs, nullptr);
        const auto result = call.run(Pass::forward);
        const auto accumulator = plan->schedule(Pass::forward).accumulator();
        write_shard(result.o, call.of_rows(call.problem().value_dim), call.problem().dtype, o);
        write_shard(result.o_unrounded, call.of_rows(call.problem().value_dim), accumulator, o_exact);
        write_shard(result.lse, call.of_rows(1), accumulator, lse);
    });
}

ringlab_status ringlab_backward(ringlab_plan* plan, ringlab_ring* ring, const ringlab_inputs* inputs,
                                const ringlab_tensor* dout, const void* o_exact, const void* lse, void* dq, void* dk,
                                void* dv, double* dsinks) {
    return guarded_pass(ring->transport.broken, [&] {
        Call call(*plan, *ring, *inputs, dout);
        call.resume(o_exact, lse);
        const auto result = call.run(Pass::backward);
        const auto& problem = call.problem();
        write_shard(result.dq, call.of_rows(problem.head_dim), problem.dtype, dq);
        write_shard(result.dk, call.of_keys(problem.head_dim), problem.dtype, dk);
        write_shard(result.dv, call.of_keys(problem.value_dim), problem.dtype, dv);
        if (dsinks) std::ranges::copy(result.dsinks, dsinks);
    });
}

ringlab_status ringlab_spans(const ringlab_ring* ring, ringlab_span* spans, int64_t capacity, int64_t* count) {
    return guarded(RINGLAB_REFUSED, [&] {
        const std::chrono::duration<double> since_start = reference::Clock::now() - ring->start;
        *count = static_cast<std::int64_t>(ring->spans.size());
        std::transform(ring->spans.begin(), ring->spans.begin() + std::min(capacity, *count), spans,
                       [&](const auto& span) { return span_from(span, since_start.count()); });
    });
}

ringlab_status ringlab_bounds(const ringlab_plan* plan, const ringlab_expected* expected, double bounds[7][2]) {
    return guarded(RINGLAB_REFUSED, [&] {
        const auto problem = problem_of_call(*plan, expected->sinks, expected->seed);
        const std::array<std::int64_t, 4> rows{problem.batch, problem.tokens, problem.query_heads, problem.head_dim};
        const std::array<std::int64_t, 4> out{problem.batch, problem.tokens, problem.query_heads, problem.value_dim};
        const reference::Inputs inputs{tensor_of(expected->q, rows), tensor_of(expected->k, problem.key_shape()),
                                       tensor_of(expected->v, problem.value_shape()), tensor_of(expected->dout, out)};
        reference::Outputs outputs{tensor_of(expected->o, out),
                                   {},
                                   tensor_of(expected->dq, rows),
                                   tensor_of(expected->dk, problem.key_shape()),
                                   tensor_of(expected->dv, problem.value_shape())};
        outputs.lse.resize({size(problem.batch), size(problem.tokens), size(problem.query_heads)});
        std::copy_n(expected->lse, outputs.lse.size(), outputs.lse.data());
        if (expected->sinks) outputs.dsinks.assign(expected->dsinks, expected->dsinks + problem.query_heads);
        const auto& forward = plan->schedule(Pass::forward);
        const reference::ErrorModel model(problem, forward.mask(), inputs, outputs);
        const auto all = model.bounds(inputs, forward, &plan->schedule(Pass::backward));
        std::size_t i = 0;
        for (const auto* bound : {&all.o, &all.o_unrounded, &all.lse, &all.dq, &all.dk, &all.dv, &all.dsinks}) {
            bounds[i][0] = bound->relative_rms;
            bounds[i++][1] = bound->max_to_largest;
        }
    });
}

ringlab_status ringlab_predict(const ringlab_plan* plan, const char* machine_file, ringlab_pass pass,
                               ringlab_prediction* prediction) {
    return guarded(RINGLAB_REFUSED, [&] {
        const auto& schedule = plan->schedule(pass == RINGLAB_PASS_FORWARD ? Pass::forward : Pass::backward);
        const auto predicted = sim::simulate(schedule, sim::load_machine(machine_file));
        using Totals = layouts::RankTotals;
        layouts::Picoseconds compute = 0;
        for (const auto& rank : predicted.ranks) compute += rank.compute;
        double flop = 0;
        for (int rank = 0; rank < schedule.ranks(); ++rank) {
            auto operations = schedule.ops(rank);
            while (const auto* operation = operations.next())
                if (operation->kind == layouts::OpKind::attend) flop += schedule.flop(*operation);
        }
        *prediction = {layouts::to_seconds(predicted.makespan),
                       layouts::to_seconds(predicted.naive_overlapped),
                       layouts::to_seconds(predicted.naive_serial),
                       largest(predicted.ranks, &Totals::compute),
                       layouts::to_seconds(compute) / static_cast<double>(predicted.ranks.size()),
                       largest(predicted.ranks, &Totals::communication),
                       largest(predicted.ranks, &Totals::exposed),
                       flop,
                       static_cast<double>(schedule.scratch_bytes())};
    });
}

}  // extern "C"
