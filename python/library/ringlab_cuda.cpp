#include "python/library/ringlab_cuda.h"

#include "gpu/device/cuda_check.hpp"
#include "gpu/ring/ready_ring.hpp"
#include "gpu/team/team.hpp"
#include "python/library/schedules.hpp"
#include "python/library/status.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

using namespace ringlab;
using gpu::CallerTensors;
using layouts::DType;
using layouts::Pass;
using python::guarded;
using python::guarded_pass;

namespace ringlab::python {

using gpu::Bytes;

/// A team with one member in each process. The caller of the C functions carries what members send to each other, with
/// its own time-out. Clocks are not aligned.
class CallbackTeam : public gpu::Team {
public:
    CallbackTeam(const ringlab_cuda_exchange& exchange, int rank, int ranks)
        : exchange_(exchange), rank_(rank), ranks_(ranks) {}

    int size() const override { return ranks_; }
    int first_local() const override { return rank_; }
    int local_size() const override { return 1; }

    std::vector<Bytes> all_gather(int, Bytes bytes, gpu::Clock::duration) override {
        if (ranks_ == 1) return {std::move(bytes)};
        const void* all = nullptr;
        std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks_));
        if (exchange_.all_gather(exchange_.context, bytes.data(), bytes.size(), &all, sizes.data()) != 0) {
            cancel();
            fail("the others did not come to make a plan, or one is gone");
        }
        std::vector<Bytes> given;
        const auto* next = static_cast<const std::byte*>(all);
        for (const auto size : sizes) {
            given.emplace_back(next, next + size);
            next += size;
        }
        return given;
    }
    std::vector<Bytes> gather_to_root(Bytes bytes, gpu::Clock::duration timeout) override {
        auto all = all_gather(rank_, std::move(bytes), timeout);
        if (!is_root()) all.clear();
        return all;
    }

    /// Does nothing for other processes: these notice by their time-outs.
    void give_up(const std::string&) override { cancel(); }
    void cancel() noexcept override { cancelled_ = true; }
    bool cancelled() const noexcept override { return cancelled_; }

    gpu::Clock::duration clock_offset() const override { return {}; }
    gpu::Clock::duration clock_uncertainty() const override { return {}; }

private:
    const ringlab_cuda_exchange exchange_;
    const int rank_, ranks_;
    std::atomic<bool> cancelled_ = false;
};

/// Device memory from the caller of the C functions.
class CallbackMemory : public gpu::StreamMemory {
public:
    CallbackMemory(const ringlab_cuda_allocator& allocator) : allocator_(allocator) {}

    void* allocate(std::size_t bytes, cudaStream_t stream) override {
        auto* const memory = allocator_.allocate(allocator_.context, bytes, stream);
        if (!memory) throw NoMemory(fmt::format("the caller has no device memory for a buffer of {} bytes", bytes));
        return memory;
    }
    void release(void* memory) noexcept override { allocator_.release(allocator_.context, memory); }

private:
    const ringlab_cuda_allocator allocator_;
};

}  // namespace ringlab::python

struct ringlab_cuda_plan {
    ringlab_cuda_ring& ring;
    std::shared_ptr<gpu::RingPlan> plan;
    bool sinks;
};

struct ringlab_cuda_ring {
    python::CallbackTeam team;
    python::CallbackMemory memory;
    std::optional<gpu::ReadyRing> ready = {};
    std::string broken = {};  // why the ring can be used no more
    std::vector<std::unique_ptr<ringlab_cuda_plan>> plans = {};
};

namespace {

gpu::TransportKind transport_from(ringlab_cuda_transport transport) {
    using enum gpu::TransportKind;
    switch (transport) {
        case RINGLAB_CUDA_AUTOMATIC: return mixed;
        case RINGLAB_CUDA_COPY_ENGINES: return copy;
        case RINGLAB_CUDA_NCCL: return nccl;
    }
    fail("{} is no transport; known: 0 (automatic), 1 (copy engines), 2 (NCCL)", static_cast<int>(transport));
}

/// The caller's tensors of one call, with the dims of the plan's problem.
class Tensors {
public:
    Tensors(const ringlab_cuda_plan& plan, const ringlab_cuda_inputs& inputs) : problem_(problem_of(plan)) {
        const auto& schedule = plan.plan->schedule(Pass::forward);
        tokens_ = schedule.block_tokens(schedule.row_block(plan.ring.team.first_local()));
        require(plan.sinks == (inputs.sinks != nullptr), "the plan is for calls {} sinks, this one is {}",
                plan.sinks ? "with" : "without", plan.sinks ? "without" : "with");
        tensors.q = strided(inputs.q, "q");
        tensors.k = strided(inputs.k, "k");
        tensors.v = strided(inputs.v, "v");
        tensors.sinks = inputs.sinks;
    }

    gpu::ConstView strided(const ringlab_tensor& tensor, const char* name) const {
        require(tensor.strides[3] == 1, "{} has stride {} along its dims; it must be 1", name, tensor.strides[3]);
        return {tensor.data, problem_.dtype, {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
    }
    gpu::View dense(void* data, std::int64_t heads, std::int64_t dim) const {
        return {data, problem_.dtype, gpu::dense_strides(tokens_, heads, dim)};
    }
    void set_results(const float* o_exact, const float* lse) {
        const auto heads = problem_.query_heads;
        tensors.o_exact = {const_cast<float*>(o_exact), DType::fp32,
                           gpu::dense_strides(tokens_, heads, problem_.value_dim)};
        tensors.lse = {const_cast<float*>(lse), gpu::dense_strides(tokens_, heads)};
    }

    CallerTensors tensors;

private:
    static const layouts::Problem& problem_of(const ringlab_cuda_plan& plan) {
        return plan.plan->schedule(Pass::forward).problem();
    }

    const layouts::Problem& problem_;
    std::int64_t tokens_ = 0;
};

}  // namespace

extern "C" {

int ringlab_cuda_version(void) { return RINGLAB_CUDA_VERSION; }
const char* ringlab_cuda_message(void) { return python::last_message.c_str(); }

ringlab_status ringlab_cuda_ring_create(const ringlab_cuda_exchange* exchange, const ringlab_cuda_allocator* allocator,
                                        int rank, int ranks, int device, ringlab_cuda_transport transport,
                                        double timeout, ringlab_cuda_ring** ring) {
    std::unique_ptr<ringlab_cuda_ring> made;
    const auto status = guarded(RINGLAB_REFUSED, [&] {
        python::require_ring(rank, ranks, timeout);
        int devices = 0;
        RINGLAB_CUDA(cudaGetDeviceCount(&devices));
        require(0 <= device && device < devices, "there is no CUDA device {}; this process sees {}", device, devices);
        made.reset(new ringlab_cuda_ring{{*exchange, rank, ranks}, {*allocator}});
        const auto patience = std::chrono::duration_cast<gpu::Clock::duration>(std::chrono::duration<double>(timeout));
        const gpu::DeviceScope scope(device);
        made->ready.emplace(made->team, made->memory,
                            gpu::ReadyRing::Options{transport_from(transport), device, patience});
    });
    if (status != RINGLAB_OK) return made && made->team.cancelled() ? RINGLAB_BROKEN : status;
    *ring = made.release();
    return status;
}

int ringlab_cuda_ring_destroy(ringlab_cuda_ring* ring) {
    if (!ring->ready->let_go()) return 0;
    delete ring;
    return 1;
}

void ringlab_cuda_ring_held(const ringlab_cuda_ring* ring, int64_t* device, int64_t* host) {
    const auto held = ring->ready->held();
    *device = held.device;
    *host = held.host;
}

ringlab_status ringlab_cuda_plan_create(ringlab_cuda_ring* ring, const ringlab_problem* problem,
                                        const ringlab_choices* choices, int sinks, int deterministic,
                                        ringlab_cuda_plan** plan) {
    const auto status = guarded(RINGLAB_REFUSED, [&] {
        require(ring->broken.empty(), "this ring ended in an earlier call: {}", ring->broken);
        auto schedules = python::schedules_from(*problem, *choices, sinks != 0);
        auto made = ring->ready->make_plan(std::move(schedules[0]), std::move(schedules[1]), deterministic != 0);
        ring->plans.emplace_back(new ringlab_cuda_plan{*ring, std::move(made), sinks != 0});
        *plan = ring->plans.back().get();
    });
    if (status == RINGLAB_OK || !(ring->team.cancelled() || ring->ready->is_broken())) return status;
    if (ring->broken.empty()) ring->broken = python::last_message;
    return RINGLAB_BROKEN;
}

void ringlab_cuda_plan_scratch(const ringlab_cuda_plan* plan, int64_t bytes[2]) {
    for (const auto pass : {Pass::forward, Pass::backward})
        bytes[static_cast<std::size_t>(pass)] = static_cast<std::int64_t>(plan->plan->local_bytes(pass));
}

void ringlab_cuda_plan_destroy(ringlab_cuda_plan* plan) {
    auto& ring = plan->ring;
    if (!ring.broken.empty()) return;  // passes that have not ended may be using its tables: it goes with the ring
    std::erase_if(ring.plans, [&](const auto& one) { return one.get() == plan; });
}

ringlab_status ringlab_cuda_forward(ringlab_cuda_plan* plan, const ringlab_cuda_inputs* inputs, void* o, float* o_exact,
                                    float* lse, void* scratch, void* stream) {
    return guarded_pass(plan->ring.broken, [&] {
        const auto& problem = plan->plan->schedule(Pass::forward).problem();
        Tensors call(*plan, *inputs);
        call.set_results(o_exact, lse);
        call.tensors.local = scratch;
        call.tensors.o = call.dense(o, problem.query_heads, problem.value_dim);
        plan->ring.ready->run(plan->plan, Pass::forward, call.tensors, inputs->seed, static_cast<cudaStream_t>(stream));
    });
}

ringlab_status ringlab_cuda_backward(ringlab_cuda_plan* plan, const ringlab_cuda_inputs* inputs,
                                     const ringlab_tensor* dout, const float* o_exact, const float* lse, void* dq,
                                     void* dk, void* dv, float* dsinks, void* scratch, void* stream) {
    return guarded_pass(plan->ring.broken, [&] {
        const auto& problem = plan->plan->schedule(Pass::backward).problem();
        Tensors call(*plan, *inputs);
        call.set_results(o_exact, lse);
        auto& tensors = call.tensors;
        tensors.local = scratch;
        tensors.dout = call.strided(*dout, "dout");
        tensors.dq = call.dense(dq, problem.query_heads, problem.head_dim);
        tensors.dk = call.dense(dk, problem.kv_heads, problem.head_dim);
        tensors.dv = call.dense(dv, problem.kv_heads, problem.value_dim);
        tensors.sink_gradient = dsinks;
        plan->ring.ready->run(plan->plan, Pass::backward, tensors, inputs->seed, static_cast<cudaStream_t>(stream));
    });
}

}  // extern "C"
