#include "gpu/kernels/attention.hpp"

#include "gpu/kernels/elementwise_params.hpp"
#include "gpu/kernels/kernel_family.hpp"
#include "gpu/kernels/launch_params.hpp"
#include "gpu/kernels/rows.hpp"
#include "layouts/basics/require.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace ringlab::gpu {
namespace {

static_assert(most_sums == CombineParams::most_sums);

CombineParams combine_params(const Conversion& conversion) {
    const auto& [extent, destination, source, sums] = conversion;
    require(sums.size() <= most_sums, "{} sums in one conversion; at most {}", sums.size(), most_sums);
    CombineParams params{.sizes = sizes(extent),
                         .destination = elements(destination, "the destination"),
                         .source = elements(source, "the source"),
                         .sums = {},
                         .sum_count = 0};
    for (const auto& sum : sums) {
        require(sum.dtype == DType::fp32 || sum.dtype == destination.dtype,
                "a sum is {}; it must be fp32 or {}, as the destination", to_string(sum.dtype),
                to_string(destination.dtype));
        params.sums[params.sum_count++] = elements(sum, "a sum");
    }
    return params;
}

}  // namespace

void attend_forward(const ForwardArgs& args, const WorkList& work, cudaStream_t stream) {
    work.family().attend_forward(args, work, stream);
}

void attend_backward(const BackwardArgs& args, const WorkList& work, cudaStream_t stream) {
    work.family().attend_backward(args, work, stream);
}

void merge(const MergeArgs& args, cudaStream_t stream) {
    launch_merge({.sizes = sizes(args.extent),
                  .first = args.first,
                  .o = elements(args.o, "the running o"),
                  .lse = row_values(args.lse, "the running lse"),
                  .partial_o = elements(args.partial_o, "the partial o"),
                  .partial_lse = row_values(args.partial_lse, "the partial lse")},
                 stream);
}

void prepare_backward(const PrepareBackwardArgs& args, cudaStream_t stream) {
    require_data(args.statistics.data, "statistics");
    const Elements zeroed = optional_elements(args.dq, "dq");
    require_fp32(zeroed, "dq");
    constexpr std::int64_t int_max = std::numeric_limits<int>::max();
    require(args.dq_dim >= 0 && args.dq_dim <= int_max, "dq has dim {}; it must be 0 to {}", args.dq_dim, int_max);
    launch_statistics({.sizes = sizes(args.extent),
                       .o = elements(args.o, "o"),
                       .dout = elements(args.dout, "dout"),
                       .lse = row_values(args.lse, "lse"),
                       .statistics = reinterpret_cast<float2*>(args.statistics.data),
                       .statistics_strides = args.statistics.strides,
                       .zeroed = zeroed,
                       .zeroed_dim = static_cast<int>(args.dq_dim)},
                      stream);
}

void add(const Extent& extent, const View& destination, const ConstView& source, cudaStream_t stream) {
    launch_combine(std::array{combine_params({extent, destination, source, {destination}})}, stream);
}

void convert(std::span<const Conversion> conversions, cudaStream_t stream) {
    std::vector<CombineParams> all;
    for (const auto& one : conversions) all.push_back(combine_params(one));
    launch_combine(all, stream);
}

void rotate(const RotateArgs& args, cudaStream_t stream) {
    const auto& [batch, tokens, heads, dim] = args.extent;
    if (batch == 0 || tokens == 0 || heads == 0) return;
    const auto& table = args.table;
    const auto pairs = static_cast<int>(table.frequencies.size());
    require(pairs <= RotateParams::most_pairs && table.first + table.dims() <= dim,
            "{} dims from {} on of heads of {} are to be rotated; there must be so many, and at most {}", table.dims(),
            table.first, dim, 2 * RotateParams::most_pairs);
    RotateParams params{.sizes = sizes(args.extent),
                        .to = elements(args.destination, "the destination"),
                        .from = elements(args.source, "the source"),
                        .positions = args.positions,
                        .first = static_cast<int>(table.first),
                        .pairs = pairs,
                        .distance = static_cast<int>(table.distance()),
                        .interleaved = table.pairs == layouts::Rotary::Pairs::interleaved,
                        .copies = args.destination.data != args.source.data,
                        .amplitude = table.amplitude,
                        .sign = args.back ? -1.0 : 1.0,
                        .frequencies = {}};
    std::copy(table.frequencies.begin(), table.frequencies.end(), params.frequencies);
    launch_rotate(params, stream);
}

void add_sinks(const AddSinksArgs& args, cudaStream_t stream) {
    launch_add_sinks({.sizes = sizes(args.extent),
                      .o = optional_elements(args.o, "o"),  // a rank without rows may have no memory
                      .o_rounded = optional_elements(args.o_rounded, "the rounded o"),
                      .lse = {args.lse.data, args.lse.strides},
                      .sinks = args.sinks},
                     stream);
}

void sink_gradient(const SinkGradientArgs& args, cudaStream_t stream) {
    launch_sink_gradient({args.batch, args.tokens, args.heads, reinterpret_cast<const float2*>(args.statistics.data),
                          args.statistics.strides, args.sinks, args.gradient},
                         stream);
}

}  // namespace ringlab::gpu
