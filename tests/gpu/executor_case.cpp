#include "tests/gpu/executor_case.hpp"

#include "gpu/device/cuda_handles.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/driver.hpp"
#include "reference/attention/blocked.hpp"
#include "reference/features/latent.hpp"
#include "reference/features/rotary.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/wrapped_transport.hpp"
#include "tests/registered.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <ostream>
#include <random>

namespace ringlab::tests {
namespace {

using layouts::Accumulation;
using layouts::DType;

gpu::HostTensor<std::uint16_t> patterns(const reference::Tensor& tensor, DType dtype) {
    gpu::HostTensor<std::uint16_t> bits;
    for (std::size_t i = 0; i < 4; ++i) bits.shape[i] = static_cast<std::int64_t>(tensor.shape()[i]);
    bits.values.resize(tensor.size());
    reference::to_bits(std::span<const double>(tensor.data(), tensor.size()), dtype, bits.values);
    return bits;
}

template <std::size_t N>
xt::xtensor<double, N> widen(const gpu::HostTensor<float>& tensor) {
    std::array<std::size_t, N> shape;
    std::copy_n(tensor.shape.begin(), N, shape.begin());
    auto wide = xt::xtensor<double, N>::from_shape(shape);
    std::copy(tensor.values.begin(), tensor.values.end(), wide.begin());
    return wide;
}

bool same_bits(const gpu::HostTensor<float>& a, const gpu::HostTensor<float>& b) {
    return a.shape == b.shape &&
           std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), [](float x, float y) {
               return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
           });
}

class SilentTransport : public gpu::WrappedTransport {
public:
    SilentTransport(std::unique_ptr<gpu::Transport> real, std::function<void()> instead)
        : WrappedTransport(std::move(real)), instead_(std::move(instead)) {}

    bool can_send(const gpu::Message&) const override { return true; }
    void send(const gpu::Message&, cudaStream_t) override { instead_(); }

private:
    std::function<void()> instead_;
};

/// Copies that never come.
class StuckFetches : public gpu::WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;

    bool can_send(const gpu::Message&) const override { return true; }
    void fetch(const gpu::Message&, cudaStream_t stream) override {
        gpu::wait_for_value(stream, never_.as<std::uint32_t>(), 1);
    }
    void abort() noexcept override {
        gpu::write_value(other_stream_, never_.as<std::uint32_t>(), 1);
        WrappedTransport::abort();
    }

private:
    gpu::DeviceBuffer never_ = gpu::uploaded(std::vector<std::uint32_t>{0});
    gpu::Stream other_stream_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const RingCase& c) {
    const auto& p = c.problem;
    return out << fmt::format(
               "{} x {} tokens, {}:{} heads, dims {}/{}, {}, mask {}, layout {}, schedule {}, {} ranks, {}{}, dK dV "
               "{}, "
               "transport {}{}",
               p.batch, p.tokens, p.query_heads, p.kv_heads, p.head_dim, p.value_dim, to_string(p.dtype), c.mask,
               c.layout, c.schedule, c.ranks, c.accumulation == Accumulation::carry ? "carry" : "partials",
               c.options.round_running_output ? " into a rounded output" : "", to_string(c.gradient_dtype),
               to_string(c.options.transport), c.options.deterministic ? ", deterministic" : "");
}

layouts::Problem small_problem() {
    layouts::Problem p;
    p.tokens = 576;
    p.query_heads = 4;
    p.kv_heads = 2;
    p.head_dim = p.value_dim = 64;
    return p;
}

gpu::HostInputs host_inputs(const reference::Inputs& inputs, DType dtype) {
    return {patterns(inputs.q, dtype), patterns(inputs.k, dtype), patterns(inputs.v, dtype),
            patterns(inputs.dout, dtype)};
}

gpu::HostInputs host_inputs(const layouts::Problem& problem, std::uint64_t seed) {
    return host_inputs(random_inputs(problem, seed), problem.dtype);
}

reference::Outputs to_reference(const gpu::HostOutputs& outputs) {
    return {widen<4>(outputs.o),  widen<3>(outputs.lse), widen<4>(outputs.dq),
            widen<4>(outputs.dk), widen<4>(outputs.dv),  outputs.dsinks};
}

Passes make_passes(const RingCase& c) {
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const auto layout = layouts::make_layout(c.layout, mask, c.ranks);
    layouts::ScheduleOptions how;
    how.schedule = c.schedule;
    how.accumulation = c.accumulation;
    how.gradient_dtype = c.gradient_dtype;
    how.keeps_rows_together = c.keeps_rows_together;
    Passes passes;
    passes.forward = make_schedule(c.problem, mask, layout, how);
    how.pass = layouts::Pass::backward;
    passes.backward = make_schedule(c.problem, mask, layout, how);
    return passes;
}

std::vector<gpu::GpuRun> run_rings(const RingCase& c, std::span<const gpu::HostInputs> inputs,
                                   const gpu::FabricFactory& make_fabric) {
    const auto passes = make_passes(c);
    auto options = c.options;
    options.group.ring = c.ranks;
    options.poison = true;
    const auto team = gpu::make_thread_team(gpu::team_size(options));
    return gpu::run(*team, *passes.forward, passes.backward.get(), inputs, options, make_fabric);
}

gpu::GpuRun run_case(const RingCase& c, const gpu::HostInputs& inputs, const gpu::FabricFactory& make_fabric) {
    return std::move(run_rings(c, std::span(&inputs, 1), make_fabric).front());
}

std::uint64_t new_seed() {
    static std::mt19937_64 seeds(std::random_device{}());
    return seeds();
}

reference::Bounds bounds_of(const RingCase& c, const reference::ErrorModel& errors, const reference::Inputs& inputs) {
    const auto passes = make_passes(c);
    return errors.bounds(inputs, *passes.forward, passes.backward.get(), c.options.round_running_output);
}

Expected expected_of(const RingCase& c, std::uint64_t seed, const std::function<void(reference::Inputs&)>& change,
                     int threads) {
    Expected e{seed, random_inputs(c.problem, seed), {}, {}};
    if (change) change(e.inputs);
    const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
    const bool expands = c.problem.latent.is_given();
    const auto heads = c.problem.expanded();
    auto attended = expands ? expanded(c.problem, e.inputs) : e.inputs;
    if (heads.rotary.rotates()) attended = with_rotation(heads, mask, attended);
    e.outputs = reference::blocked_attention(heads, mask, attended, {.threads = threads});
    const reference::ErrorModel errors(c.problem, mask, attended, e.outputs, expands ? &e.inputs : nullptr);
    e.bounds = bounds_of(c, errors, attended);
    if (expands) compress(c.problem, e.inputs, e.outputs);
    return e;
}

void check_against(const RingCase& c, const gpu::HostOutputs& measured, const reference::Outputs& expected,
                   const reference::Bounds& bounds) {
    auto found = to_reference(measured);
    if (c.problem.rotary.rotates()) {
        const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
        const auto way = reference::Rotation::Way::inverse_of_back;
        found.dq = rotated(found.dq, c.problem, mask, way);
        found.dk = rotated(found.dk, c.problem.with_latent_as_key(), mask, way);
    }
    check(reference::deviations(found, expected), bounds);
}

void agrees(const RingCase& c, const Expected& with) {
    BOOST_TEST_CONTEXT(c << ", seed " << with.seed) {
        check_against(c, run_case(c, host_inputs(with.inputs, c.problem.dtype)).outputs, with.outputs, with.bounds);
    }
}

void agrees_with_the_reference(const RingCase& c) { agrees(c, expected_of(c, new_seed())); }

std::string layout_in_turn(std::size_t number) {
    const auto all = layout_examples();
    return all[number % all.size()];
}

void check_identical(const gpu::HostOutputs& measured, const gpu::HostOutputs& expected) {
    BOOST_TEST(same_bits(measured.o, expected.o), "o differs");
    BOOST_TEST(same_bits(measured.lse, expected.lse), "lse differs");
    BOOST_TEST(same_bits(measured.dq, expected.dq), "dq differs");
    BOOST_TEST(same_bits(measured.dk, expected.dk), "dk differs");
    BOOST_TEST(same_bits(measured.dv, expected.dv), "dv differs");
}

gpu::HostOutputs in_bf16(gpu::HostOutputs results) {
    for (auto* tensor : {&results.o, &results.dq, &results.dk, &results.dv})
        reference::round_in_place(tensor->values, layouts::DType::bf16);
    return results;
}

gpu::FabricFactory silent_rank_fabric(gpu::TransportKind kind, int silent_rank, std::function<void()> instead) {
    return gpu::joined_by(gpu::fabric_factory(kind),
                          [=](gpu::Fabric& real, const gpu::JoiningRank& joining) -> std::unique_ptr<gpu::Transport> {
                              if (joining.rank != silent_rank) return real.join(joining);
                              return std::make_unique<SilentTransport>(real.join(joining), instead);
                          });
}

gpu::FabricFactory stuck_fetches_fabric(int rank) {
    return gpu::joined_by(gpu::make_copy_fabric,
                          [=](gpu::Fabric& real, const gpu::JoiningRank& joining) -> std::unique_ptr<gpu::Transport> {
                              if (joining.rank != rank) return real.join(joining);
                              return std::make_unique<StuckFetches>(real.join(joining));
                          });
}

}  // namespace ringlab::tests
