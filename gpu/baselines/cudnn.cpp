#include "gpu/baselines/cudnn.hpp"

#include "gpu/device/cuda_check.hpp"
#include "gpu/device/device_buffer.hpp"
#include "gpu/device/shared_library.hpp"
#include "gpu/elements/elementwise.hpp"
#include "layouts/basics/require.hpp"

#include <cudnn_frontend.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend finds cuDNN's functions by it
}

namespace ringlab::gpu {
namespace {

namespace fe = cudnn_frontend;
using layouts::DType;

void require_good(fe::error_t status) { require(status.is_good(), "cuDNN: {}", status.get_message()); }

/// A mask in cuDNN's terms: row i sees keys up to i if causal, and only from i - left + 1 on if there is a left bound.
struct Band {
    bool causal = false;
    std::optional<int> left = {};
};

Band band_of(const layouts::Mask& mask) {
    const auto tokens = mask.tokens();
    Band band{.causal = mask.row(0).end == 1 && tokens > 1};
    const auto reach = tokens - 1 - mask.row(tokens - 1).begin;
    if (reach < tokens - 1) band.left = static_cast<int>(reach) + 1;
    for (std::int64_t i = 0; i < tokens; ++i) {
        const auto row = mask.row(i);
        require(row.end == (band.causal ? i + 1 : tokens) && row.begin == std::max<std::int64_t>(0, i - reach) &&
                    row.end_before() == 0 && mask.key_is_valid(i),
                "the cuDNN baseline has no word for the mask {}: it knows full, causal and causal windows",
                mask.name());
    }
    return band;
}

enum Uid : std::int64_t { q_uid = 1, k_uid, v_uid, o_uid, stats_uid, dout_uid, dq_uid, dk_uid, dv_uid };

/// Both passes of one problem, with memory of their own.
class Attention {
public:
    Attention(cudnnHandle_t handle, const layouts::Problem& problem, const Band& band)
        : handle_(handle), problem_(problem), band_(band) {
        const auto& p = problem;
        const auto element = layouts::bytes_of(p.dtype);
        for (const auto uid : {q_uid, k_uid, v_uid, dout_uid, o_uid, dq_uid, dk_uid, dv_uid})
            allocate(uid, elements(uid) * element);
        allocate(stats_uid, p.batch * p.tokens * p.query_heads * layouts::bytes_of(DType::fp32));
        make_forward();
        make_backward();
        draw(0, nullptr);
        forward(nullptr);
        RINGLAB_CUDA(cudaStreamSynchronize(nullptr));
    }

    void draw(std::uint64_t seed, cudaStream_t stream) const {
        for (const auto uid : {q_uid, k_uid, v_uid, dout_uid})
            fill_normal(buffers_.at(uid).data(), problem_.dtype, elements(uid), seed + static_cast<std::uint64_t>(uid),
                        stream);
    }

    void forward(cudaStream_t stream) { execute(forward_, {q_uid, k_uid, v_uid, o_uid, stats_uid}, stream); }
    void backward(cudaStream_t stream) {
        execute(backward_, {q_uid, k_uid, v_uid, o_uid, dout_uid, stats_uid, dq_uid, dk_uid, dv_uid}, stream);
    }

private:
    std::int64_t heads(Uid uid) const {
        const bool key_side = uid == k_uid || uid == v_uid || uid == dk_uid || uid == dv_uid;
        return key_side ? problem_.kv_heads : problem_.query_heads;
    }
    std::int64_t dim(Uid uid) const {
        const bool as_value = uid == v_uid || uid == dv_uid || uid == o_uid || uid == dout_uid;
        return as_value ? problem_.value_dim : problem_.head_dim;
    }

    std::int64_t elements(Uid uid) const { return problem_.batch * problem_.tokens * heads(uid) * dim(uid); }

    void allocate(Uid uid, std::int64_t bytes) { buffers_[uid] = DeviceBuffer(static_cast<std::size_t>(bytes)); }

    fe::graph::Graph graph() const {
        fe::graph::Graph graph;
        graph.set_io_data_type(problem_.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        return graph;
    }

    /// A tensor (batch, heads, tokens, dim) for cuDNN, whose order in memory is ours: (batch, tokens, heads, dim).
    std::vector<std::int64_t> shape(Uid uid) const { return {problem_.batch, heads(uid), problem_.tokens, dim(uid)}; }
    std::vector<std::int64_t> strides(Uid uid) const {
        const auto h = heads(uid), d = dim(uid);
        return {problem_.tokens * h * d, d, h * d, 1};
    }
    std::shared_ptr<fe::graph::Tensor_attributes> tensor(fe::graph::Graph& graph, Uid uid) const {
        return graph.tensor(fe::graph::Tensor_attributes().set_uid(uid).set_dim(shape(uid)).set_stride(strides(uid)));
    }
    void output(fe::graph::Tensor_attributes& tensor, Uid uid) const {
        tensor.set_output(true).set_uid(uid).set_dim(shape(uid)).set_stride(strides(uid));
    }
    void statistics(fe::graph::Tensor_attributes& tensor) const {
        const auto h = problem_.query_heads, t = problem_.tokens;
        tensor.set_uid(stats_uid)
            .set_dim({problem_.batch, h, t, 1})
            .set_stride({h * t, t, 1, 1})
            .set_data_type(fe::DataType_t::FLOAT);
    }

    template <class Options>
    Options options() const {
        Options options;
        options.set_attn_scale(static_cast<float>(problem_.effective_scale()));
        if (band_.causal)
            options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
        if (band_.left) options.set_diagonal_band_left_bound(*band_.left);
        return options;
    }

    void make_forward() {
        forward_ = graph();
        auto options = this->options<fe::graph::SDPA_attributes>();
        options.set_name("forward").set_generate_stats(true);
        const auto [o, stats] =
            forward_.sdpa(tensor(forward_, q_uid), tensor(forward_, k_uid), tensor(forward_, v_uid), options);
        output(*o, o_uid);
        statistics(*stats);
        stats->set_output(true);
        build(forward_);
    }

    void make_backward() {
        backward_ = graph();
        auto options = this->options<fe::graph::SDPA_backward_attributes>();
        options.set_name("backward");
        auto stats = fe::graph::Tensor_attributes();
        statistics(stats);
        const auto [dq, dk, dv] = backward_.sdpa_backward(
            tensor(backward_, q_uid), tensor(backward_, k_uid), tensor(backward_, v_uid), tensor(backward_, o_uid),
            tensor(backward_, dout_uid), backward_.tensor(stats), options);
        output(*dq, dq_uid);
        output(*dk, dk_uid);
        output(*dv, dv_uid);
        build(backward_);
    }

    void build(fe::graph::Graph& graph) {
        require_good(graph.build(handle_, {fe::HeurMode_t::A}));
        std::int64_t bytes = 0;
        require_good(graph.get_workspace_size(bytes));
        if (static_cast<std::size_t>(bytes) > workspace_.bytes())
            workspace_ = DeviceBuffer(static_cast<std::size_t>(bytes));
    }

    void execute(const fe::graph::Graph& graph, std::initializer_list<Uid> tensors, cudaStream_t stream) {
        std::unordered_map<std::int64_t, void*> pointers;
        for (const auto uid : tensors) pointers[uid] = buffers_.at(uid).data();
        require(fe::detail::set_stream(handle_, stream) == CUDNN_STATUS_SUCCESS, "cuDNN does not take the stream");
        require_good(graph.execute(handle_, pointers, workspace_.data()));
    }

    cudnnHandle_t handle_;
    layouts::Problem problem_;
    Band band_;
    std::unordered_map<std::int64_t, DeviceBuffer> buffers_;
    DeviceBuffer workspace_;
    fe::graph::Graph forward_, backward_;
};

}  // namespace

struct Cudnn::Library {
    cudnnHandle_t handle = nullptr;
};

Cudnn::Cudnn(const std::string& path) : library_(std::make_unique<Library>()) {
    const SharedLibrary found(path.empty() ? std::vector<std::string>{"libcudnn.so.9", "libcudnn.so"}
                                           : std::vector{path});
    if (!found.loaded()) {
        why_not_ = found.why_not();
        return;
    }
    fe::cudnn_dlhandle = found.handle();
    try {
        const auto version = fe::detail::get_backend_version();
        version_ = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
        const auto status = fe::detail::create_handle(&library_->handle);
        if (status != CUDNN_STATUS_SUCCESS)
            why_not_ = fmt::format("cuDNN {} does not start: {}", version_, fe::detail::get_error_string(status));
    } catch (const std::exception& error) {  // the frontend's, of a library that lacks a function
        why_not_ = error.what();
    }
}

Cudnn::~Cudnn() {
    if (library_->handle) fe::detail::destroy_handle(library_->handle);
}

std::vector<TimedCall> Cudnn::calls(const layouts::Problem& problem, const layouts::Mask& mask) const {
    require(available(), "{}", why_not_);
    require(problem.soft_cap == 0, "the cuDNN baseline has no soft cap");
    require(!problem.dropout.drops(), "the cuDNN baseline has no dropout");
    const auto attention = std::make_shared<Attention>(library_->handle, problem, band_of(mask));
    return {{"cudnn_forward", [attention](cudaStream_t stream) { attention->forward(stream); },
             [attention](std::uint64_t seed, cudaStream_t stream) { attention->draw(seed, stream); }},
            {"cudnn_backward", [attention](cudaStream_t stream) { attention->backward(stream); },
             [attention](std::uint64_t seed, cudaStream_t stream) {
                 attention->draw(seed, stream);
                 attention->forward(stream);
             }}};
}

}  // namespace ringlab::gpu
