#include "gpu/baselines/device_attention.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/elements/elementwise.hpp"
#include "gpu/ranks/fused_launches.hpp"
#include "layouts/basics/require.hpp"

#include <array>
#include <functional>
#include <map>

namespace ringlab::gpu {

struct DeviceAttention::Work {
    struct Tensor {
        DeviceBuffer buffer;
        Extent extent;
        View view;
    };

    Work(const layouts::Problem& problem_, const layouts::Mask& mask, std::span<const layouts::Run> row_runs,
         std::span<const layouts::Run> key_runs, const KernelFamily* kernels_)
        : problem(problem_),
          kernels(kernels_),
          row_tokens(count_tokens(row_runs)),
          key_tokens(count_tokens(key_runs)),
          rows(std::make_shared<RowBounds>(mask, row_runs)),
          keys(std::make_shared<KeyPositions>(mask, key_runs)),
          forward_work(work_list(mask, layouts::Pass::forward, false)),
          backward_work(work_list(mask, layouts::Pass::backward, false)),
          ordered_work(work_list(mask, layouts::Pass::backward, true)) {
        draw(0, nullptr);
        // The state in the middle of a ring, and the fp32 output that a backward pass starts from.
        auto args = forward_args();
        args.last = false;
        args.carry = carry();
        attend_forward(args, forward_work, nullptr);
        keep_output(nullptr);
        RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
    }

    WorkList work_list(const layouts::Mask& mask, layouts::Pass pass, bool deterministic) const {
        return {mask,
                rows,
                keys,
                {.pass = pass,
                 .head_dim = problem.head_dim,
                 .value_dim = problem.value_dim,
                 .deterministic = deterministic,
                 .family = &resolve(kernels, problem),
                 .drops_out = problem.dropout.drops()}};
    }

    static std::int64_t elements(const Tensor& t) {
        return t.extent.batch * t.extent.tokens * t.extent.heads * t.extent.dim;
    }
    Tensor tensor(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype) const {
        Tensor made;
        made.extent = {problem.batch, tokens, heads, dim};
        made.buffer = DeviceBuffer(static_cast<std::size_t>(elements(made) * layouts::bytes_of(dtype)));
        made.view = {made.buffer.data(), dtype, dense_strides(tokens, heads, dim)};
        return made;
    }
    Tensor query_side(std::int64_t dim, DType dtype) const {
        return tensor(row_tokens, problem.query_heads, dim, dtype);
    }
    Tensor key_side(std::int64_t dim, DType dtype) const { return tensor(key_tokens, problem.kv_heads, dim, dtype); }

    RowView row_view(const Tensor& t) const {
        const auto heads = problem.query_heads;
        return {t.buffer.as<float>(), {heads * row_tokens, 1, row_tokens}};
    }
    Carry carry() const { return {carried_o.view, row_view(m), row_view(l)}; }
    Statistics statistics() const {
        return {pairs.buffer.as<float>(), statistics_strides(problem.query_heads, row_tokens)};
    }

    AttendShape shape() const {
        return attend_shape(problem, {0, static_cast<int>(problem.query_heads)},
                            {0, static_cast<int>(problem.kv_heads)});
    }
    ForwardArgs forward_args() const {
        return {.shape = shape(),
                .q = q.view,
                .k = k.view,
                .v = v.view,
                .result = {.o = rounded_o.view, .lse = row_view(lse)}};
    }
    BackwardArgs backward_args() const {
        return {.shape = shape(),
                .q = q.view,
                .k = k.view,
                .v = v.view,
                .dout = dout.view,
                .statistics = statistics(),
                .dq = dq.view,
                .dk = rounded_dk.view,
                .dv = rounded_dv.view};
    }

    void draw(std::uint64_t seed, cudaStream_t stream) const {
        for (const auto* tensor : {&q, &k, &v, &dout})
            fill_normal(tensor->buffer.data(), problem.dtype, elements(*tensor), ++seed, stream);
    }
    /// Computes what a backward pass needs from the forward pass: o in fp32, and lse.
    void keep_output(cudaStream_t stream) const {
        auto args = forward_args();
        args.result.o = o.view;
        attend_forward(args, forward_work, stream);
    }

    void forward(bool first, bool last, cudaStream_t stream) const {
        auto args = forward_args();
        args.first = first;
        args.last = last;
        if (!first || !last) args.carry = carry();
        attend_forward(args, forward_work, stream);
    }
    /// The end of a rank's rows: writes o in fp32 as well, for the backward pass.
    void end_rows(bool first, cudaStream_t stream) const {
        auto args = forward_args();
        args.first = first;
        if (!first) args.carry = carry();
        args.result.o_rounded = args.result.o;
        args.result.o = o.view;
        attend_forward(args, forward_work, stream);
    }

    void prepare(cudaStream_t stream) const {
        prepare_backward({o.extent, o.view, dout.view, row_view(lse), statistics(), dq.view, problem.head_dim}, stream);
    }
    /// With dk and dv in fp32, as one block's contribution to them.
    void backward_block(cudaStream_t stream) const {
        auto args = backward_args();
        args.dk = dk.view;
        args.dv = dv.view;
        attend_backward(args, backward_work, stream);
    }
    void add_gradients(cudaStream_t stream) const {
        add(dk.extent, other_dk.view, dk.view, stream);
        add(dv.extent, other_dv.view, dv.view, stream);
    }
    void round_gradients(cudaStream_t stream) const {
        convert(
            std::array{Conversion{dq.extent, rounded_dq.view, dq.view}, Conversion{dk.extent, rounded_dk.view, dk.view},
                       Conversion{dv.extent, rounded_dv.view, dv.view}},
            stream);
    }
    void backward(const WorkList& work, cudaStream_t stream) const {
        prepare(stream);
        attend_backward(backward_args(), work, stream);
        convert(std::array{Conversion{dq.extent, rounded_dq.view, dq.view}}, stream);
    }

    layouts::Problem problem;
    const KernelFamily* kernels;
    std::int64_t row_tokens, key_tokens;
    std::shared_ptr<const RowBounds> rows;
    std::shared_ptr<const KeyPositions> keys;
    WorkList forward_work, backward_work, ordered_work;

    Tensor q = query_side(problem.head_dim, problem.dtype), k = key_side(problem.head_dim, problem.dtype),
           v = key_side(problem.value_dim, problem.dtype), dout = query_side(problem.value_dim, problem.dtype);
    Tensor rounded_o = query_side(problem.value_dim, problem.dtype), o = query_side(problem.value_dim, DType::fp32),
           carried_o = query_side(problem.value_dim, DType::fp32);
    Tensor lse = query_side(1, DType::fp32), m = query_side(1, DType::fp32), l = query_side(1, DType::fp32),
           pairs = query_side(2, DType::fp32);
    Tensor dq = query_side(problem.head_dim, DType::fp32), dk = key_side(problem.head_dim, DType::fp32),
           dv = key_side(problem.value_dim, DType::fp32), other_dk = key_side(problem.head_dim, DType::fp32),
           other_dv = key_side(problem.value_dim, DType::fp32);
    Tensor rounded_dq = query_side(problem.head_dim, problem.dtype),
           rounded_dk = key_side(problem.head_dim, problem.dtype),
           rounded_dv = key_side(problem.value_dim, problem.dtype);
};

DeviceAttention::DeviceAttention(const layouts::Problem& problem, const layouts::Mask& mask,
                                 std::span<const layouts::Run> rows, std::span<const layouts::Run> keys,
                                 const KernelFamily* kernels)
    : work_(std::make_unique<Work>(problem, mask, rows, keys, kernels)) {}

DeviceAttention::~DeviceAttention() = default;

TimedCall DeviceAttention::call(const std::string& name) {
    const auto& work = *work_;
    const std::map<std::string, std::function<void(cudaStream_t)>> all{
        {"forward", [&](cudaStream_t stream) { work.forward(true, true, stream); }},
        {"forward_first", [&](cudaStream_t stream) { work.forward(true, false, stream); }},
        {"forward_carried", [&](cudaStream_t stream) { work.forward(false, false, stream); }},
        {"forward_kept", [&](cudaStream_t stream) { work.end_rows(true, stream); }},
        {"forward_last_kept", [&](cudaStream_t stream) { work.end_rows(false, stream); }},
        {"backward", [&](cudaStream_t stream) { work.backward(work.backward_work, stream); }},
        {"backward_kernel",
         [&](cudaStream_t stream) { attend_backward(work.backward_args(), work.backward_work, stream); }},
        {"backward_deterministic", [&](cudaStream_t stream) { work.backward(work.ordered_work, stream); }},
        {"backward_block", [&](cudaStream_t stream) { work.backward_block(stream); }},
        {"backward_prepare", [&](cudaStream_t stream) { work.prepare(stream); }},
        {"backward_add", [&](cudaStream_t stream) { work.add_gradients(stream); }},
        {"backward_round", [&](cudaStream_t stream) { work.round_gradients(stream); }},
    };
    const auto found = all.find(name);
    require(found != all.end(), "no call '{}' of a device's attention", name);
    TimedCall call{name, found->second};
    if (name == "forward") call.refresh = [&](std::uint64_t seed, cudaStream_t stream) { work.draw(seed, stream); };
    if (name == "backward")
        call.refresh = [&](std::uint64_t seed, cudaStream_t stream) {
            work.draw(seed, stream);
            work.keep_output(stream);
        };
    return call;
}

}  // namespace ringlab::gpu
