#include "gpu/kernels/rows/sinks.hpp"

#include "gpu/kernels/rows/sinks_params.hpp"

namespace ringlab::gpu {
namespace {

Elements elements_with_sinks(const View& view) {
    const auto pair_bytes = static_cast<std::uintptr_t>(2 * layouts::bytes_of(view.dtype));
    const auto& strides = view.strides;
    return {view.data, view.dtype, strides,
            reinterpret_cast<std::uintptr_t>(view.data) % pair_bytes == 0 && strides.batch % 2 == 0 &&
                strides.token % 2 == 0 && strides.head % 2 == 0};
}

}  // namespace

void add_sinks(const AddSinksArgs& args, cudaStream_t stream) {
    const auto& [batch, tokens, heads, dim] = args.extent;
    launch_add_sinks({{batch, tokens, heads, dim},
                      elements_with_sinks(args.o),
                      elements_with_sinks(args.o_rounded),
                      {args.lse.data, args.lse.strides},
                      args.sinks},
                     stream);
}

void sink_gradient(const SinkGradientArgs& args, cudaStream_t stream) {
    launch_sink_gradient({args.batch, args.tokens, args.heads, reinterpret_cast<const float2*>(args.statistics.data),
                          args.statistics.strides, args.sinks, args.gradient},
                         stream);
}

}  // namespace ringlab::gpu
