// A ring of one rank on a device, whose plans take turns in the same memory. Rings of several processes are tested from
// Python (python/tests/ranks/test_cuda.py), and without a device in tests/gpu_host/.

#include "gpu/elements/elementwise.hpp"
#include "gpu/ring/ready_ring.hpp"
#include "tests/gpu/attend_case.hpp"
#include "tests/gpu/reused_memory.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

namespace ringlab::tests {
namespace {

namespace data = boost::unit_test::data;
using gpu::DeviceBuffer;
using layouts::DType;
using layouts::Pass;

constexpr std::int64_t query_heads = 4, kv_heads = 2, dim = 64;

std::shared_ptr<gpu::RingPlan> make_plan(gpu::ReadyRing& ring, std::int64_t tokens, const std::string& mask_name,
                                         const std::string& schedule) {
    layouts::Problem problem;
    problem.tokens = tokens;
    problem.query_heads = query_heads;
    problem.kv_heads = kv_heads;
    problem.head_dim = problem.value_dim = dim;
    const auto mask = layouts::make_mask(mask_name, tokens);
    const auto layout = layouts::make_layout("zigzag", mask, 1);
    layouts::ScheduleOptions options{.schedule = schedule};
    auto forward = make_schedule(problem, mask, layout, options);
    options.pass = Pass::backward;
    auto backward = make_schedule(problem, mask, layout, options);
    return ring.make_plan(std::move(forward), std::move(backward), true);
}

/// Inputs, and results of both passes.
class Tensors {
public:
    explicit Tensors(std::int64_t tokens) : tokens_(tokens) {
        for (auto* heads : {&all_.q, &all_.k, &all_.v, &all_.dout}) *heads = random(heads_of(heads));
        all_.o = view(query_heads, DType::bf16);
        all_.o_exact = view(query_heads, DType::fp32);
        all_.lse = {static_cast<float*>(view(query_heads, DType::fp32, 1).data),
                    gpu::dense_strides(tokens, query_heads)};
        all_.dq = view(query_heads, DType::bf16);
        all_.dk = view(kv_heads, DType::bf16);
        all_.dv = view(kv_heads, DType::bf16);
    }

    const gpu::CallerTensors& all() const { return all_; }

    /// The bits of o, lse, dq, dk and dv. Waits for the device.
    std::vector<std::vector<std::uint16_t>> results() const {
        std::vector<std::vector<std::uint16_t>> bits;
        for (auto buffer = memory_.begin() + 4; buffer != memory_.end(); ++buffer) {
            auto& of_one = bits.emplace_back(buffer->bytes() / sizeof(std::uint16_t));
            buffer->download(of_one.data());
        }
        return bits;
    }

private:
    std::int64_t heads_of(const gpu::ConstView* view) const {
        return view == &all_.k || view == &all_.v ? kv_heads : query_heads;
    }
    gpu::View view(std::int64_t heads, DType dtype, std::int64_t width = dim) {
        const auto& buffer =
            memory_.emplace_back(static_cast<std::size_t>(tokens_ * heads * width * layouts::bytes_of(dtype)));
        return {buffer.data(), dtype, gpu::dense_strides(tokens_, heads, width)};
    }
    gpu::ConstView random(std::int64_t heads) {
        const auto tensor = view(heads, DType::bf16);
        gpu::fill_normal(tensor.data, DType::bf16, tokens_ * heads * dim, ++seed_, nullptr);
        RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
        return tensor;
    }

    std::int64_t tokens_;
    std::uint64_t seed_ = 0;
    std::vector<DeviceBuffer> memory_;
    gpu::CallerTensors all_;
};

void run(gpu::ReadyRing& ring, const std::shared_ptr<gpu::RingPlan>& plan, const Tensors& tensors, ReusedMemory& memory,
         cudaStream_t stream) {
    for (const auto pass : {Pass::forward, Pass::backward}) {
        auto all = tensors.all();
        all.local = memory.allocate(plan->local_bytes(pass), stream);
        ring.run(plan, pass, all, 0, stream);
        memory.release(all.local);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rings, *boost::unit_test::precondition(has_gpu))

// The second call is larger, so that the memory of the ring grows between the passes of the first one.
BOOST_DATA_TEST_CASE(plans_that_take_turns_give_what_each_gives_alone, data::make({"ring", "pull", "pass-q"}),
                     schedule) {
    const std::vector<std::pair<std::int64_t, std::string>> calls{
        {768, "causal+documents:100,668"}, {2048, "causal"}, {768, "causal+documents:101,667"}, {768, "full"}};
    const auto team = gpu::make_thread_team(1);
    const gpu::ReadyRing::Options options{.device = 0, .timeout = std::chrono::seconds(30)};
    const gpu::Stream stream;
    std::vector<std::vector<std::vector<std::uint16_t>>> alone;
    for (const auto& [tokens, mask] : calls) {
        ReusedMemory memory;
        gpu::ReadyRing ring(*team, memory, options);
        const Tensors tensors(tokens);
        run(ring, make_plan(ring, tokens, mask, schedule), tensors, memory, stream);
        stream.synchronize();
        alone.push_back(tensors.results());
        BOOST_TEST(ring.let_go());
    }
    ReusedMemory memory;
    gpu::ReadyRing ring(*team, memory, options);
    std::vector<Tensors> tensors;
    for (const auto& [tokens, mask] : calls) tensors.emplace_back(tokens);
    std::vector<std::shared_ptr<gpu::RingPlan>> plans;
    for (int round = 0; round < 3; ++round)
        for (std::size_t i = 0; i < calls.size(); ++i) {
            if (round == 0) plans.push_back(make_plan(ring, calls[i].first, calls[i].second, schedule));
            run(ring, plans[i], tensors[i], memory, stream);
        }
    stream.synchronize();
    for (std::size_t i = 0; i < calls.size(); ++i) BOOST_TEST((tensors[i].results() == alone[i]), calls[i].second);
    BOOST_TEST(ring.let_go());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::tests
