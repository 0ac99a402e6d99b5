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

reference::Tensor widen(const gpu::HostTensor<float>& tensor) {
    reference::Tensor wide(std::array<std::size_t, 4>{
        static_cast<std::size_t>(tensor.shape[0]), static_cast<std::size_t>(tensor.shape[1]),
        static_cast<std::size_t>(tensor.shape[2]), static_cast<std::size_t>(tensor.shape[3])});
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

reference::Outputs to_reference(const gpu::HostOutputs& outputs) {
    reference::Outputs wide;
    wide.o = widen(outputs.o);
    wide.dq = widen(outputs.dq);
    wide.dk = widen(outputs.dk);
    wide.dv = widen(outputs.dv);
    wide.lse = reference::Lse(std::array<std::size_t, 3>{static_cast<std::size_t>(outputs.lse.shape[0]),
                                                         static_cast<std::size_t>(outputs.lse.shape[1]),
                                                         static_cast<std::size_t>(outputs.lse.shape[2])});
    std::copy(outputs.lse.values.begin(), outputs.lse.values.end(), wide.lse.begin());
    wide.dsinks = outputs.dsinks;
    return wide;
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

gpu::GpuRun run_case(const RingCase& c, const gpu::HostInputs& inputs) {
    const auto passes = make_passes(c);
    auto options = c.options;
    options.group.ring = c.ranks;
    options.poison = true;
    const auto team = gpu::make_thread_team(gpu::team_size(options));
    return std::move(gpu::run(*team, *passes.forward, passes.backward.get(), std::span(&inputs, 1), options).front());
}

std::unique_ptr<reference::ErrorModel> error_model(const layouts::Problem& problem, const layouts::Mask& mask,
                                                   const reference::Inputs& inputs, const reference::Outputs& expected,
                                                   const reference::Inputs* made_of) {
    return std::make_unique<reference::ErrorModel>(problem, mask, inputs, expected, made_of);
}

void check_against(const RingCase& c, const gpu::HostOutputs& measured, const reference::Inputs& inputs,
                   const reference::Outputs& expected, const reference::ErrorModel& errors,
                   const reference::Inputs* made_of) {
    const auto passes = make_passes(c);
    const auto& mask = passes.forward->mask();
    const auto bounds = errors.bounds(inputs, *passes.forward, passes.backward.get(), c.options.round_running_output);
    auto found = to_reference(measured);
    if (c.problem.rotary.rotates()) {
        const auto way = reference::Rotation::Way::inverse_of_back;
        found.dq = rotated(found.dq, c.problem, mask, way);
        found.dk = rotated(found.dk, c.problem.with_latent_as_key(), mask, way);
    }
    auto wanted = expected;
    if (made_of) compress(c.problem, *made_of, wanted);
    check(reference::deviations(found, wanted), bounds);
}

std::string layout_in_turn(std::size_t number) {
    const auto all = layout_examples();
    return all[number % all.size()];
}

void agrees_with_the_reference(const RingCase& c) {
    static std::mt19937_64 seeds(std::random_device{}());
    const auto seed = seeds();
    BOOST_TEST_CONTEXT(c << ", seed " << seed) {
        const auto inputs = random_inputs(c.problem, seed);
        const auto mask = layouts::make_mask(c.mask, c.problem.tokens);
        const bool expands = c.problem.latent.is_given();
        const auto heads = c.problem.expanded();
        auto attended = expands ? expanded(c.problem, inputs) : inputs;
        if (heads.rotary.rotates()) attended = with_rotation(heads, mask, attended);
        const auto expected = reference::blocked_attention(heads, mask, attended);
        const auto* made_of = expands ? &inputs : nullptr;
        check_against(c, run_case(c, host_inputs(inputs, c.problem.dtype)).outputs, attended, expected,
                      *error_model(c.problem, mask, attended, expected, made_of), made_of);
    }
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
    return [=](gpu::Team& team, const gpu::FabricOptions& options, const gpu::Routes& routes) {
        const auto join = [=](gpu::Fabric& real, const gpu::JoiningRank& joining) -> std::unique_ptr<gpu::Transport> {
            if (joining.rank != silent_rank) return real.join(joining);
            return std::make_unique<SilentTransport>(real.join(joining), instead);
        };
        return std::make_unique<gpu::FabricJoinedBy>(gpu::fabric_factory(kind)(team, options, routes), join);
    };
}

gpu::FabricFactory stuck_fetches_fabric(int rank) {
    return [=](gpu::Team& team, const gpu::FabricOptions& options, const gpu::Routes& routes) {
        const auto join = [=](gpu::Fabric& real, const gpu::JoiningRank& joining) -> std::unique_ptr<gpu::Transport> {
            if (joining.rank != rank) return real.join(joining);
            return std::make_unique<StuckFetches>(real.join(joining));
        };
        return std::make_unique<gpu::FabricJoinedBy>(make_copy_fabric(team, options, routes), join);
    };
}

}  // namespace ringlab::tests
