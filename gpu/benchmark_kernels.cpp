// Rates of the attention kernels alone on one device: benchmark_kernels [TOKENS...]. TFLOP/s count visible pairs.

#include "gpu/cuda_check.hpp"
#include "gpu/device_buffer.hpp"
#include "gpu/kernels/attention.hpp"
#include "layouts/require.hpp"
#include "layouts/work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

namespace {

using namespace ringlab;
using layouts::DType;

/// Normal random bf16 values: zeros would draw less power and run faster than real data.
gpu::DeviceBuffer random_bf16(std::int64_t count) {
    static std::minstd_rand generator(1);
    // 1 + a 7-bit mantissa, exponents of -2 to 0 and a sign: about the spread of a normal distribution.
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
    for (auto& x : bits) {
        const auto r = generator();
        x = static_cast<std::uint16_t>((r >> 8 & 0x807f) | ((125 + (r >> 24) % 3) << 7));
    }
    gpu::DeviceBuffer buffer(bits.size() * sizeof(std::uint16_t));
    buffer.upload(bits.data());
    return buffer;
}

/// Median seconds of a call, after warm-up of about half a second.
double median_seconds(const std::function<void()>& call) {
    cudaEvent_t begin, end;
    RINGLAB_CUDA(cudaEventCreate(&begin));
    RINGLAB_CUDA(cudaEventCreate(&end));
    const auto once = [&] {
        RINGLAB_CUDA(cudaEventRecord(begin));
        call();
        RINGLAB_CUDA(cudaEventRecord(end));
        RINGLAB_CUDA(cudaEventSynchronize(end));
        float milliseconds = 0;
        RINGLAB_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
        return static_cast<double>(milliseconds) * 1e-3;
    };
    for (double spent = 0; spent < 0.3;) spent += once();
    std::vector<double> samples;
    for (double spent = 0; samples.size() < 7 || (spent < 0.5 && samples.size() < 200); spent += samples.back())
        samples.push_back(once());
    std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
    RINGLAB_CUDA(cudaEventDestroy(begin));
    RINGLAB_CUDA(cudaEventDestroy(end));
    return samples[samples.size() / 2];
}

struct Config {
    std::int64_t tokens, head_dim, value_dim;
    const char* mask;
};

void measure(const Config& config) {
    const layouts::Problem p{.batch = 1,
                             .tokens = config.tokens,
                             .query_heads = 32,
                             .kv_heads = 8,
                             .head_dim = config.head_dim,
                             .value_dim = config.value_dim};
    const auto mask = layouts::make_mask(config.mask, p.tokens);
    const layouts::Run all{0, 1, p.tokens};
    const std::span<const layouts::Run> runs(&all, 1);
    const auto rows = std::make_shared<gpu::RowBounds>(mask, runs);
    const auto keys = std::make_shared<gpu::KeyPositions>(mask, runs);
    const auto list = [&](layouts::Pass pass, bool deterministic) {
        return gpu::WorkList(
            mask, rows, keys,
            {.pass = pass, .head_dim = p.head_dim, .value_dim = p.value_dim, .deterministic = deterministic});
    };
    const auto forward_work = list(layouts::Pass::forward, false);
    const auto backward_work = list(layouts::Pass::backward, false), ordered_work = list(layouts::Pass::backward, true);

    const auto view = [](const gpu::DeviceBuffer& b, DType dtype, std::int64_t tokens, std::int64_t heads,
                         std::int64_t dim) {
        return gpu::View{b.data(), dtype, gpu::dense_strides(tokens, heads, dim)};
    };
    const auto fp32 = [](std::int64_t count) { return gpu::DeviceBuffer(static_cast<std::size_t>(4 * count)); };
    const auto T = p.tokens, H = p.query_heads, G = p.kv_heads, D = p.head_dim, V = p.value_dim;
    const auto q = random_bf16(T * H * D), k = random_bf16(T * G * D), v = random_bf16(T * G * V);
    const auto dout = random_bf16(T * H * V);
    const auto o = fp32(T * H * V), m = fp32(T * H), l = fp32(T * H), lse = fp32(T * H), pairs = fp32(2 * T * H);
    const auto result = fp32(T * H * V);
    auto dq = fp32(T * H * D);
    dq.fill(0, nullptr);
    const auto dk = fp32(T * G * D), dv = fp32(T * G * V);
    const gpu::AttendShape shape{
        .kv_heads = G, .query_heads_per_kv_head = H / G, .head_dim = D, .value_dim = V, .scale = p.effective_scale()};
    const auto row_view = [&](const gpu::DeviceBuffer& b) {
        return gpu::RowView{b.as<float>(), gpu::dense_strides(T, H)};
    };
    gpu::ForwardArgs forward{.shape = shape,
                             .q = view(q, DType::bf16, T, H, D),
                             .k = view(k, DType::bf16, T, G, D),
                             .v = view(v, DType::bf16, T, G, V),
                             .carry = {view(o, DType::fp32, T, H, V), row_view(m), row_view(l)},
                             .result = {.o = view(result, DType::fp32, T, H, V), .lse = row_view(lse)}};
    const double alone = median_seconds([&] { gpu::attend_forward(forward, forward_work, nullptr); });
    forward.last = false;
    gpu::attend_forward(forward, forward_work, nullptr);
    forward.first = false;
    const double carried = median_seconds([&] { gpu::attend_forward(forward, forward_work, nullptr); });

    const gpu::Statistics statistics{pairs.as<float>(), gpu::statistics_strides(H, T)};
    const double prepared = median_seconds([&] {
        gpu::prepare_backward({.extent = {1, T, H, V},
                               .o = forward.result.o,
                               .dout = view(dout, DType::bf16, T, H, V),
                               .lse = row_view(lse),
                               .statistics = statistics},
                              nullptr);
    });
    const gpu::BackwardArgs backward{.shape = shape,
                                     .q = forward.q,
                                     .k = forward.k,
                                     .v = forward.v,
                                     .dout = view(dout, DType::bf16, T, H, V),
                                     .statistics = statistics,
                                     .dq = view(dq, DType::fp32, T, H, D),
                                     .dk = view(dk, DType::fp32, T, G, D),
                                     .dv = view(dv, DType::fp32, T, G, V)};
    const double unordered = median_seconds([&] { gpu::attend_backward(backward, backward_work, nullptr); });
    const double ordered = median_seconds([&] { gpu::attend_backward(backward, ordered_work, nullptr); });

    const auto cells = static_cast<double>(layouts::visible_pairs(mask, runs, layouts::KeyCounter(runs)) * H);
    const double forward_tera = cells * p.forward_flop_per_cell() * 1e-12;
    const double backward_tera = cells * p.backward_flop_per_cell() * 1e-12;
    fmt::print(
        "{:>6} {:>7} {:>3}/{:<3} | {:8.3f} ms {:6.1f} | {:8.3f} ms {:6.1f} | {:6.3f} | {:8.3f} ms {:6.1f} | "
        "{:8.3f} ms {:6.1f} | {:6.1f}\n",
        T, config.mask, D, V, alone * 1e3, forward_tera / alone, carried * 1e3, forward_tera / carried, prepared * 1e3,
        unordered * 1e3, backward_tera / unordered, ordered * 1e3, backward_tera / ordered,
        (forward_tera + backward_tera) / (alone + prepared + unordered));
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
    std::vector<std::int64_t> sizes;
    for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoll(argv[i], nullptr, 10));
    if (sizes.empty()) sizes = {2048, 8192, 32768};
    fmt::print(
        "batch 1, 32:8 heads, bf16; ms and TFLOP/s\n"
        "tokens    mask dims    | forward              | with carry           | delta  | backward             | "
        "backward in order    | fwd+bwd\n");
    for (const auto tokens : sizes)
        for (const char* mask : {"causal", "full"}) measure({tokens, 128, 128, mask});
    for (const auto& [head, value] : {std::pair(64, 64), std::pair(192, 128), std::pair(256, 256)})
        measure({8192, head, value, "causal"});
    return 0;
} catch (const std::exception& error) {
    fmt::print(stderr, "benchmark_kernels: {}\n", error.what());
    return 1;
}
